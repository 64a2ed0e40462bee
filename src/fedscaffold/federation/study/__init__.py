"""A study: sites with a table each get one model, and nobody ever has the rows in one place.

A study goes through phases, in this order: `greet` (do the sites' tables have the same columns?), `prepare`
(counts and sums from which all sites agree on an encoding), `measure` (what the coordinator must know to choose
the settings of training), training, `certificate` (how far the model is from the one that pooled rows would
give), `evaluate`. Each phase is a file with the request, the site's answer and the coordinator's conclusion, as
functions of messages.
"""

"""A Flower app: hospitals with a table each fit one logistic regression."""

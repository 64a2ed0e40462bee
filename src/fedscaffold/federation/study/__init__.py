"""Studies: a plan that sites carry out, and sums over exactly these sites."""

"""Studies in which the coordinator learns only sums over all sites, by `fedscaffold.federation.secure_sum`."""

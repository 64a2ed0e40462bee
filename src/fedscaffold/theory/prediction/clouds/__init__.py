"""Averages of gradients, noise and curvature over clouds of local models, for each kind of problem."""

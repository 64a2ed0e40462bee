"""Means and covariances of every round for problems of few clients and features, one local step after another."""

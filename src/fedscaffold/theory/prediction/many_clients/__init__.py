"""Predictions for many clients: a first guess for all of them, and passes over a sample."""

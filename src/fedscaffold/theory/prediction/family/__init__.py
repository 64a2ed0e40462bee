"""Predictions for any method whose rounds are linear in its state: cohorts, momentum, random numbers of steps."""

"""Runs in several stages: smaller step sizes, extrapolation, and when a run is stationary."""

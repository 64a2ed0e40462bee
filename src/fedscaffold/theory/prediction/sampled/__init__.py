"""Drawn rounds of the method itself, which correct a prediction where its approximations do not hold."""

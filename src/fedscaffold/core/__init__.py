"""The vocabulary that all rooms share: types, random streams, checks, errors. NumPy only."""

"""Grids of runs: plateaus by number of clients, step size, local steps, batch size and method, in one table."""

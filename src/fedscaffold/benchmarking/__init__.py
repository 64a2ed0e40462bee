"""Methods compared at equal cost, what reaching a target costs, and sweeps over grids of settings."""

"""From a table's problem to a planned run: how close it should come, in which batches, with which settings."""

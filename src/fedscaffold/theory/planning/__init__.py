"""Which step size, local steps and rounds reach a target."""

"""The constants of the paper's assumptions A1 to A6, computed from a problem."""

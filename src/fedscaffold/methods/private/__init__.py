"""Methods whose messages can be protected in sums."""

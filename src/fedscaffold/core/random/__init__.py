"""The counter-based random stream that all engines share, and what is drawn from it: batches and records."""

"""Kernels for small batches: one shape each, with clients side by side."""

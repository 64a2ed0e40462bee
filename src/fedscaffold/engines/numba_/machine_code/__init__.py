"""Compiled kernels as files, which are loaded and called without Numba: importing it takes half a second."""

"""The Numba engine; its kernels are compiled when first used."""

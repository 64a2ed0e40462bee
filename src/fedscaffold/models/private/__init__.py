"""Fits under a privacy budget: everything that they give away is covered by it, or was public before."""

"""SciPy's special functions, loaded when one is first called: loading them takes longer than a short run."""

from fedscaffold.core.types import Array


def expit(z: Array) -> Array:
    """σ(z) = 1/(1 + exp(−z))."""
    from scipy.special import expit

    found: Array = expit(z)
    return found


def softmax(z: Array) -> Array:
    """exp(z_k) / Σ_j exp(z_j) along the second axis."""
    from scipy.special import softmax

    found: Array = softmax(z, axis=1)
    return found


def log_softmax(z: Array) -> Array:
    """z_k − log Σ_j exp(z_j) along the second axis."""
    from scipy.special import log_softmax

    found: Array = log_softmax(z, axis=1)
    return found

"""Means of powers of I − γG_c and of their sums over a round whose number of steps is fixed or drawn."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.prediction.local_steps import divided


@dataclass(frozen=True, eq=False)
class StepKernels:
    """E[k_a k_b'] for k = (g^H, (1 − g^H)/(1 − g)) of all pairs of eigenvalues g, g' of all clients, and E[k_a].

    Attributes
    ----------
    mean
        E[k_a], (2, n) for n = N·d.
    pairs
        E[k_a k_b'], (2, 2, n, n).
    """

    mean: Array
    pairs: Array


def step_kernels(g: Array, steps: IntArray, probabilities: Array | None) -> StepKernels:
    """Kernels for g = 1 − γλ, (N, d), with the clients' own numbers of steps, or numbers drawn for all."""
    N, d = g.shape
    flat = g.ravel()
    if probabilities is None:
        h = np.repeat(steps, d)
        power = flat**h
        mean = np.stack([power, _sums(flat, power, h)])
        return StepKernels(mean, mean[:, None, :, None] * mean[None, :, None, :])
    mean, pairs = np.zeros((2, N * d)), np.zeros((2, 2, N * d, N * d))
    for h, p in zip(steps, probabilities, strict=True):
        power = flat ** int(h)
        values = np.stack([power, _sums(flat, power, np.full(flat.size, h))])
        mean += p * values
        pairs += p * values[:, None, :, None] * values[None, :, None, :]
    return StepKernels(mean, pairs)


def _sums(g: Array, power: Array, h: IntArray) -> Array:
    return divided(g, power, 1.0, h)

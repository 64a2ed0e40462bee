"""Random Markov chains with rewards and linear features, alike for all clients but for a chosen part.

After the Garnet environments of Archibald, McKinnon and Thomas ("On the generation of Markov decision processes",
J. Oper. Res. Soc. 46, 1995), with the policy fixed: states, and a few successors of each.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.types import Array


class MarkovChains(NamedTuple):
    """One chain per client, on a common graph.

    Attributes
    ----------
    successors
        The states that may follow a state, (states, branching).
    kernel
        P_c(s, k), with which probability the k-th of them does, (N, states, branching).
    rewards
        r_c(s), (N, states).
    features
        φ(s), of norm one, (states, d).
    """

    successors: NDArray[np.int64]
    kernel: Array
    rewards: Array
    features: Array


def garnet(
    *, n_clients: int, states: int, branching: int, dim: int, heterogeneity: float, environments: int, seed: int
) -> MarkovChains:
    """P_c = (1 − ε)P + ε Q_c and r_c = (1 − ε)r + ε q_c, with P, Q_c and r, q_c drawn alike.

    Each state's first successor is its next one on a random cycle through all states, so that every state is
    visited; the others are drawn without replacement. Probabilities are the pieces into which uniform points
    cut [0, 1], rewards are uniform in [0, 1], features Gaussian, scaled to norm one. Client c lives in environment
    c mod `environments`, whose own part depends on the seed and its number alone.
    """
    rng = np.random.default_rng([seed, 0])
    successors = _graph(rng, states, branching)
    features = rng.normal(size=(states, dim))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    common_kernel, common_rewards = _pieces(rng, states, branching), rng.uniform(size=states)
    kernel = np.empty((environments, states, branching))
    rewards = np.empty((environments, states))
    for c in range(environments):
        own = np.random.default_rng([seed, 1 + c])
        kernel[c] = (1.0 - heterogeneity) * common_kernel + heterogeneity * _pieces(own, states, branching)
        rewards[c] = (1.0 - heterogeneity) * common_rewards + heterogeneity * own.uniform(size=states)
    lives_in = np.arange(n_clients) % environments
    return MarkovChains(successors, kernel[lives_in], rewards[lives_in], features)


def _graph(rng: np.random.Generator, states: int, branching: int) -> NDArray[np.int64]:
    cycle = rng.permutation(states)
    successors = np.empty((states, branching), dtype=np.int64)
    for s, following in zip(cycle, np.roll(cycle, -1), strict=True):
        others = np.delete(np.arange(states), following)
        successors[s, 0] = following
        successors[s, 1:] = rng.choice(others, branching - 1, replace=False)
    return successors


def _pieces(rng: np.random.Generator, states: int, branching: int) -> Array:
    """Lengths of the pieces of [0, 1] between uniform points, one row per state."""
    cuts = np.sort(rng.uniform(size=(states, branching - 1)), axis=1)
    return np.diff(cuts, axis=1, prepend=0.0, append=1.0)


def matrices(chains: MarkovChains) -> Array:
    """P_c as full matrices, (N, states, states)."""
    n_clients, states, branching = chains.kernel.shape
    full = np.zeros((n_clients, states, states))
    for k in range(branching):
        full[:, np.arange(states), chains.successors[:, k]] += chains.kernel[:, :, k]
    return full


def stationary(chains: MarkovChains) -> Array:
    """μ_c with μ_cᵀP_c = μ_cᵀ and Σ_s μ_c(s) = 1, (N, states)."""
    full = matrices(chains)
    states = full.shape[1]
    system = np.swapaxes(full, 1, 2) - np.eye(states)
    system[:, -1, :] = 1.0  # one balance equation follows from the others
    right = np.zeros((states, 1))
    right[-1] = 1.0
    law = np.maximum(np.linalg.solve(system, np.broadcast_to(right, (len(full), states, 1)))[:, :, 0], 0.0)
    return law / law.sum(axis=1, keepdims=True)

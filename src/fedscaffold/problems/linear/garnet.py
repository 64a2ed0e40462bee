"""Random Markov chains with rewards and linear features, alike for all clients but for a chosen part.

After the Garnet environments of Archibald, McKinnon and Thomas ("On the generation of Markov decision processes",
J. Oper. Res. Soc. 46, 1995), with the policy fixed: states, and a few successors of each.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import numbers
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

PROBABILITY_ROUNDING = 1e-6
LARGEST_CONDITION = 1e13


class MarkovChains(NamedTuple):
    """One Markov chain with rewards per client, on a common graph and with common features.

    Attributes
    ----------
    successors
        The states that may follow a state, (states, branching).
    kernel
        P_c(s, k), with which probability the k-th of them does, (N, states, branching).
    rewards
        r_c(s), (N, states).
    features
        φ(s), (states, d).

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> sticky, restless = np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([[0.5, 0.5], [0.5, 0.5]])
    >>> chains = fs.problems.MarkovChains.from_transitions(
    ...     [sticky, restless], rewards=[[0.0, 1.0], [0.0, 1.0]], features=np.eye(2))
    >>> fs.problems.GarnetTD(environments=chains, discount=0.5)
    GarnetTD(n_clients=2, dim=2, n_records=8)
    """

    successors: NDArray[np.int64]
    kernel: Array
    rewards: Array
    features: Array

    @classmethod
    def from_transitions(cls, transitions: ArrayLike, rewards: ArrayLike, features: ArrayLike) -> "MarkovChains":
        """Chains from full matrices P_c(s, s'), (N, states, states); rewards (N, states), features (states, d)."""
        kernel = table("transitions", transitions, 3)
        states = kernel.shape[1]
        successors = np.tile(np.arange(states), (states, 1))
        return cls(successors, kernel, table("rewards", rewards, 2), table("features", features, 2))


def checked_chains(chains: MarkovChains) -> MarkovChains:
    """Chains from outside, copied; refused where they are no chains or have no single stationary law."""
    kernel, rewards = table("kernel", chains.kernel, 3), table("rewards", chains.rewards, 2)
    features, successors = table("features", chains.features, 2), table("successors", chains.successors, 2)
    n_clients, states, branching = kernel.shape
    wanted = {"rewards": (n_clients, states), "successors": (states, branching)}
    found = {"rewards": rewards.shape, "successors": successors.shape}
    wrong = [
        f"{name} must have shape {shape}, got {found[name]}"
        for name, shape in wanted.items()
        if found[name] != shape
    ]
    if features.shape[0] != states or not 1 <= features.shape[1] <= states:
        wrong.append(f"features must have {states} rows, one per state, and at most as many columns")
    if wrong:
        raise InvalidInput(f"environments do not fit a kernel of shape {kernel.shape}: {'; '.join(wrong)}")
    if (kernel < 0.0).any() or np.abs(kernel.sum(axis=2) - 1.0).max() > PROBABILITY_ROUNDING:
        raise InvalidInput("transition probabilities must not be negative, and sum to one from each state")
    whole = successors.astype(np.int64)
    if (whole != successors).any() or whole.min() < 0 or whole.max() >= states:
        raise InvalidInput(f"successors must be states, whole numbers from 0 to {states - 1}")
    own = MarkovChains(whole, kernel / kernel.sum(axis=2, keepdims=True), rewards, features)
    worst = np.linalg.cond(_balance(own))
    if not worst.max() < LARGEST_CONDITION:
        raise InvalidInput(
            f"the chain of client {int(np.argmax(worst))} has no single stationary law: all its states must lead "
            "to one group of states that lead to each other"
        )
    return own


def table(name: str, value: ArrayLike, axes: int) -> Array:
    """A new array of finite numbers with so many axes, none of them empty."""
    try:
        array = np.array(numbers(value))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers: {error}") from None
    if array.ndim != axes or array.size == 0 or not np.isfinite(array).all():
        raise InvalidInput(f"{name} must be finite numbers with {axes} axes, got shape {array.shape}")
    return array


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
    system = _balance(chains)
    n_clients, states, _ = system.shape
    right = np.zeros((states, 1))
    right[-1] = 1.0
    law = np.maximum(np.linalg.solve(system, np.broadcast_to(right, (n_clients, states, 1)))[:, :, 0], 0.0)
    return law / law.sum(axis=1, keepdims=True)


def _balance(chains: MarkovChains) -> Array:
    """P_cᵀ − I with its last row replaced by ones, since one balance equation follows from the others."""
    full = matrices(chains)
    system = np.swapaxes(full, 1, 2) - np.eye(full.shape[1])
    system[:, -1, :] = 1.0
    return system

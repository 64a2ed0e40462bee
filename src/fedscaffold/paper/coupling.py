"""Lemma 4.1 and Theorem 4.2, measured: two Scaffold chains that draw the same records come together.

D_t = ‖θ_t − θ'_t‖² + γ²H² Σ_c w_c ‖ξ_{c,t} − ξ'_{c,t}‖² is the squared Λ-distance of two chains after t rounds.
Lemma 4.1 says that E[D_{t+1} | round t] ≤ (1 − γμ/4)^H D_t. If the second chain is stationary, the mean of D_t is
an upper bound on W₂² between the law after t rounds and the stationary law, as the two chains are one coupling
of these laws and W₂² is the least over all.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.random.stream import Sampling
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation.rounds import initial_state, open_rounds
from fedscaffold.simulation.setup import divergence_limit, validate_run
from fedscaffold.theory import constants
from fedscaffold.theory.bounds import Bound, ScaffoldBounds


class ChainStart(NamedTuple):
    """Start of a chain: θ, (dim,), and ξ, (n_clients, dim); None for zero."""

    theta: Array
    control_variates: ArrayLike | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Coupling:
    """Distances by round of two chains that draw the same records."""

    distances: Array  # D_t, (repetitions, rounds + 1)
    factor: Bound  # Lemma 4.1's, on the mean of D_{t+1}/D_t
    rounding: float  # distances below this, the square of 1e-13 of the state's size, are rounding errors

    @property
    def mean(self) -> Array:
        """Mean of D_t over repetitions, (rounds + 1,)."""
        return self.distances.mean(axis=0)

    @property
    def rates(self) -> Array:
        """Mean of D_{t+1} over mean of D_t while above rounding errors, to compare with `factor`."""
        mean = self.mean
        last = int(np.count_nonzero(np.cumprod(mean > self.rounding)))
        return mean[1:last] / mean[: max(last - 1, 0)]


def couple(
    problem: Ridge | Logistic,
    method: Scaffold,
    first: ChainStart,
    second: ChainStart,
    *,
    rounds: int,
    batch_size: int | None,
    repetitions: int = 1,
    seed: int = 0,
    sampling: Sampling = "with_replacement",
    burn_in: int = 0,
) -> Coupling:
    """Return D_t of two chains that draw the same records, and Lemma 4.1's factor.

    The second chain runs alone for `burn_in` rounds before the first starts; the rest is as in `fedscaffold.run`.
    """
    setup = validate_run(
        problem, method, rounds=rounds, batch_size=batch_size, seed=seed, repetitions=repetitions, engine="auto",
        theta0=None, sampling=sampling,
    )  # fmt: skip
    known = constants(problem, batch_size=batch_size, sampling=sampling)
    factor = ScaffoldBounds(
        known, step_size=method.step_size, local_steps=method.uniform_local_steps, n_clients=problem.n_clients
    ).contraction()
    a, b = (
        initial_state(problem, method, np.tile(each.theta, (repetitions, 1)), each.control_variates)
        for each in (first, second)
    )
    limit = max(divergence_limit(a.theta), divergence_limit(b.theta))
    with open_rounds(replace(setup, limit=limit)) as after:
        for _ in range(burn_in):
            b = after(b)
        a = a._replace(round=burn_in)  # the draws that follow are new to both
        size = max(float(squared_norm(x.theta, x.client_state.xi, method, problem.weights).max()) for x in (a, b))
        pairs = [(a, b)]
        for _ in range(rounds):
            pairs.append((after(pairs[-1][0]), after(pairs[-1][1])))
    distances = [
        squared_norm(a.theta - b.theta, a.client_state.xi - b.client_state.xi, method, problem.weights)
        for a, b in pairs
    ]
    return Coupling(distances=np.stack(distances, axis=1), factor=factor, rounding=1e-26 * size)


def to_stationarity(
    problem: Ridge | Logistic, method: Scaffold, start: ChainStart, *, burn_in: int, **settings: Any
) -> Coupling:
    """Couple the chain from `start` with one that has become stationary: mean D_t ≥ W₂² to the stationary law.

    The second chain starts at (θ*, −∇f_c(θ*)) and runs alone for `burn_in` rounds, after which, by Theorem 4.2,
    its law is within (1 − γμ/4)^{H·burn_in/2} of the stationary one, in units of its first distance.
    `settings` go to `couple`.
    """
    optimum = problem.optimum()
    ideal = -problem.client_gradients(optimum)
    stationary = ChainStart(optimum, ideal - problem.weights @ ideal)
    return couple(problem, method, start, stationary, burn_in=burn_in, **settings)


def squared_norm(theta: Array, xi: Array, method: Scaffold, weights: Array) -> Array:
    """Return ‖(θ, ξ)‖²_Λ = ‖θ‖² + γ²H² Σ_c w_c ‖ξ_c‖², one per repetition."""
    length = method.step_size * method.uniform_local_steps
    return np.square(theta).sum(axis=1) + length**2 * (np.square(xi).sum(axis=2) @ weights)

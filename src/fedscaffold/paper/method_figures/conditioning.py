"""Communications against the condition number, without noise: ProxSkip needs about √κ, Scaffold κ."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedscaffold.benchmarking.costs import LineFit, fit_line
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.engines import Numba
from fedscaffold.methods import ProxSkip, Scaffold
from fedscaffold.problems import Ridge
from fedscaffold.simulation.run_method import run

CONDITIONS = (10.0, 31.6, 100.0, 316.0, 1000.0, 3160.0, 10000.0)
CLIENTS, DIM, LOCAL_STEPS = 4, 4, 10
REDUCTION = 1e-8  # of the squared error
REPETITIONS = 5  # of ProxSkip, whose communications come at random


def conditioned(condition: float, *, n_clients: int = CLIENTS, dim: int = DIM, seed: int = 0) -> Ridge:
    """Clients with diagonal Hessians whose eigenvalues lie in [1/κ, 1], both ends taken, and optima of their own.

    A client has one record √(d λ_j) e_j for each coordinate j, so that its Hessian is diag(λ).
    """
    generator = np.random.default_rng(seed)
    eigenvalues = np.geomspace(1.0 / condition, 1.0, dim) * np.ones((n_clients, 1))
    eigenvalues[:, 1:-1] *= generator.uniform(0.5, 2.0, size=(n_clients, dim - 2))
    eigenvalues = np.clip(eigenvalues, 1.0 / condition, 1.0)
    x = np.zeros((n_clients, dim, dim))
    x[:, range(dim), range(dim)] = np.sqrt(dim * eigenvalues)
    targets = np.sqrt(dim * eigenvalues) * generator.normal(size=(n_clients, dim))
    return Ridge(x, targets)


@dataclass(frozen=True)
class Scaling:
    """Rounds by condition number, and the slope of their logarithms."""

    name: str
    conditions: Sequence[float]
    rounds: Sequence[float]

    @property
    def fit(self) -> LineFit:
        """The line through log rounds over log κ; its slope is the exponent of κ."""
        return fit_line(np.log(self.conditions), np.log(self.rounds))


def scaling(conditions: Sequence[float] = CONDITIONS) -> list[Scaling]:
    """Rounds until the squared error has fallen 10⁸ times, for each κ.

    ProxSkip with γ = 1/L and p = 1/√κ; Scaffold with H = 10 and the largest step size that Lemma 4.1 allows,
    γ = 1/(H(L + μ)). Here L = 1 and μ = 1/κ.
    """
    skipping, scaffold = [], []
    for condition in conditions:
        problem = conditioned(condition)
        slow = np.log(1.0 / REDUCTION) / 2.0
        proxskip = ProxSkip(step_size=1.0, communication_probability=1.0 / np.sqrt(condition))
        rounds = int(6 * slow * np.sqrt(condition)) + 50
        skipping.append(rounds_needed(problem, proxskip, rounds=rounds, repetitions=REPETITIONS))
        gamma = 1.0 / (LOCAL_STEPS * (1.0 + 1.0 / condition))
        method = Scaffold(step_size=gamma, local_steps=LOCAL_STEPS)
        scaffold.append(rounds_needed(problem, method, rounds=int(1.3 * slow * condition) + 50, repetitions=1))
    return [Scaling("ProxSkip", conditions, skipping), Scaling("Scaffold", conditions, scaffold)]


def rounds_needed(problem: Ridge, method: Method, *, rounds: int, repetitions: int) -> float:
    """The round in which the error has fallen 10⁸ times, in the mean over repetitions."""
    errors = run(
        problem, method, rounds=rounds, repetitions=repetitions, engine=Numba(threads=1), progress=False
    ).mse
    below = errors <= REDUCTION * errors[:, :1]
    if not below.any(axis=1).all():
        raise InvalidInput(f"{type(method).__name__} does not get there in {rounds} rounds")
    return float(below.argmax(axis=1).mean())

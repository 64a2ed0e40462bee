"""The exact law of a linear method on quadratic losses: which algorithm computes it, and whether one can."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.capabilities import PopulationMoments
from fedscaffold.core.checks import check_problem_and_method, positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import one_blas_thread
from fedscaffold.core.privacy import Privacy
from fedscaffold.core.protocols import Method, Problem
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.exact.dense import LARGEST, Rounds, stationary
from fedscaffold.theory.exact.linear_method import LinearMethod, linear_method
from fedscaffold.theory.exact.many_clients import ManyClients
from fedscaffold.theory.exact.quadratic import (
    MeanSystems,
    TransitionSystems,
    is_quadratic,
    noise_factors,
    quadratic,
)
from fedscaffold.theory.expansion import plain_method


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactLaw:
    """Mean and covariance of the stationary law, and E‖θ_t − θ*‖² of the rounds that lead there."""

    cov_theta: Array  # Cov θ on the plateau, (d, d)
    bias: Array  # E θ − θ* on the plateau, (d,)
    curve: Array | None  # (rounds + 1,), if rounds were given


def is_exact(problem: Problem, method: Method, batches: Batches, privacy: Privacy | None = None) -> bool:
    """Return whether `exact_law` applies: quadratic losses, a linear method, and at most minutes of work.

    Clipped gradients and messages are not linear in the model.
    """
    return _why_not(problem, method, batches, privacy) is None


def _why_not(problem: Problem, method: Method, batches: Batches, privacy: Privacy | None) -> str | None:
    """Return the reason why an exact law is not available, or None if it is."""
    if privacy is not None:
        return "clipped gradients and messages have no exact law"
    if not is_quadratic(problem):
        return f"only quadratic losses have an exact law, not {problem.kind}"
    if isinstance(problem, TransitionSystems) and problem.draws.chain is not None and batches.size is not None:
        return "records along a Markov chain have no exact law"
    N, d, work = problem.n_clients, problem.dim, _work(problem)
    if plain_method(method, N) is not None and not isinstance(problem, MeanSystems):
        enough = d <= 100 and work <= 2.5e9 and N * d**2 <= 2e7  # minutes, and about two gigabytes
        return None if enough else f"an exact law of {N:,} clients with {d:,} features would take too long"
    try:
        linear = linear_method(method, problem.weights)
    except InvalidInput as error:
        return str(error)
    size = 1 + (linear.n_server + linear.n_client * N) * d
    kinds = math.comb(N, linear.participants) * (1 if linear.probabilities is None else linear.steps.size)
    states = linear.n_client * N * d <= LARGEST and kinds * size**2 <= 4e7 and kinds * size**3 <= 5e9
    if not (states and int(linear.steps.max()) * work <= 1e9):  # about ten seconds
        return f"an exact law of {method.kind} with {N:,} clients and {d:,} features would take too long"
    return None


def _work(problem: Problem) -> float:
    """Return the number of multiplications, about, that the noise of one step of all clients takes."""
    records = problem.n_clients if isinstance(problem, PopulationMoments) else int(problem.sizes.sum())
    return float(records * problem.dim**2)


@one_blas_thread
def exact_law(
    problem: Problem,
    method: Method,
    batches: Batches,
    *,
    rounds: int | None = None,
    theta0: Array | None = None,
    privacy: Privacy | None = None,
) -> ExactLaw:
    """Return the stationary mean and covariance of a linear method on quadratic losses, and its error curve.

    With few clients the second moment of all states is followed step by step. For Scaffold and FedAvg with all
    clients and any number of them, local steps are summed in closed form: then the plateau is exact to about 1e-4.
    On the curve noise is interpolated between rounds, and followed at as many clients as change it by less than
    0.4 %: it is right to half a percent, and to one or two percent from a start that is far from θ*.

    Parameters
    ----------
    problem, method, batches, privacy
        A problem and a run for which `is_exact` is true.
    rounds, theta0
        If given, also compute the curve of this many rounds from a start, (d,); 0 by default.

    Raises
    ------
    NoPlateau
        If the method does not contract.
    InvalidInput
        If `is_exact` is False for these arguments.
    """
    check_problem_and_method(problem, method)
    reason = _why_not(problem, method, batches, privacy)
    if reason is not None:
        raise InvalidInput(f"{reason}; use theory.predict, which measures instead, or fedscaffold.run")
    begin = np.zeros(problem.dim) if theta0 is None else np.asarray(theta0, dtype=np.float64)
    chosen, _ = _cheapest(problem, method, batches, rounds or 0)
    if isinstance(chosen, Rounds):
        return _dense_law(chosen, rounds, begin)
    law, noise = chosen.plateau()
    curve = None if rounds is None else chosen.curve(rounds, begin, (law, noise))
    return ExactLaw(cov_theta=law.cov_theta, bias=chosen.resting()[0], curve=curve)


def is_quick(problem: Problem, method: Method, batches: Batches, rounds: int) -> bool:
    """Return whether `exact_law` applies and takes about a second; NoPlateau if it is clear that there is none."""
    if plain_method(method, problem.n_clients) is None or not is_exact(problem, method, batches):
        return False
    return _cheapest(problem, method, batches, rounds)[1] <= 1e9


def _cheapest(problem: Any, method: Method, batches: Batches, rounds: int) -> tuple[Rounds | ManyClients, float]:
    """Return the algorithm that takes less time, or the more precise one if it is quick; and about how many ns.

    A plateau is 20 equations of the form P = APAᵀ + Q, about, which take 25 products of matrices twice over.
    """
    N, d, many = problem.n_clients, problem.dim, many_clients(problem, method, batches)
    if many is not None and many.scaffold and N * d > LARGEST:
        return many, math.inf
    r = dense_rounds(problem, method, batches)
    H, units = int(r.method.steps.max()), 1 if r.units is None else len(r.units)
    steps = H * (units * _work(problem) + 2e5)  # calls of small products take as long as 2e5 multiplications
    followed = 1 if r.units is not None else rounds + 20  # how often steps are followed
    dense = followed * steps + 100.0 * r.size**3 + (rounds + 20) * (2e5 + 0.2 * r.size**3)
    if many is None:
        return r, dense
    states = many.system.c.size * d
    closed = 100.0 * states**3 + (rounds + 20) * (1e6 + 0.2 * N * states * d**2)
    return (r, dense) if dense <= max(closed, 3e8) else (many, closed)


def dense_rounds(problem: Any, method: Method, batches: Batches) -> Rounds:
    """Return the rounds of a linear method as a map of the second moment of all states."""
    linear: LinearMethod = linear_method(method, problem.weights)
    return Rounds(quadratic(problem), linear, noise_factors(problem, batches))


def many_clients(problem: Any, method: Method, batches: Batches) -> ManyClients | None:
    """Return Scaffold or FedAvg with all clients and symmetric Hessians; None for others."""
    plain = plain_method(method, problem.n_clients)
    if plain is None or isinstance(problem, MeanSystems):
        return None
    q, factors = quadratic(problem), noise_factors(problem, batches)
    return ManyClients(q, factors, plain.gamma, plain.H, plain.scaffold, problem.weights)


def _dense_law(r: Rounds, rounds: int | None, theta0: Array) -> ExactLaw:
    law, at = stationary(r), r.server(0)
    bias, cov = law.mean[at], law.cov[at, at]
    curve = None
    if rounds is not None:
        curve = np.full(rounds + 1, np.trace(cov) + bias @ bias)
        for t, second in zip(range(rounds + 1), law.rounds.laws(theta0, law.free), strict=False):
            curve[t] = np.trace(second[at, at]) + 2.0 * bias @ second[0, at] + bias @ bias
            left = max(np.abs(second[1:, 1:] - law.cov[1:, 1:]).max(), np.square(second[0, 1:]).max())
            if left <= 1e-14 * np.abs(cov).max():
                break
    return ExactLaw(cov_theta=cov, bias=bias, curve=curve)


def error_interval(bias: Array, cov_theta: Array, level: float = 0.9) -> tuple[float, float]:
    """Return the quantiles (1 ∓ level)/2 of ‖θ − θ*‖² for θ − θ* ~ N(bias, cov_theta): the errors of single runs.

    On the plateau models are nearly normal, as sums of many small noises. The quantiles are from 100,000 fixed
    draws, right to about half a percent.

    Parameters
    ----------
    bias, cov_theta
        Of a `Prediction`, shapes (d,) and (d, d).
    level
        Probability that the interval holds the error of one run, in (0, 1).

    Returns
    -------
    tuple of float
        The two quantiles.

    Raises
    ------
    InvalidInput
        If the level is not a probability.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=6, dim=3)
    >>> found = fs.theory.predict(problem, fs.FedLin(step_size=0.1, local_steps=10), batch_size=4)
    >>> low, high = fs.theory.error_interval(found.bias, found.cov_theta, level=0.9)
    >>> low < found.mse < high
    True
    """
    if positive("level", level) >= 1.0:
        raise InvalidInput(f"level is a probability below 1, got {level!r}")
    variances, U = np.linalg.eigh(cov_theta)
    draws = np.random.default_rng(0).normal(size=(100_000, variances.size))
    errors = np.square(U.T @ bias + np.sqrt(np.maximum(variances, 0.0)) * draws).sum(axis=1)
    low, high = np.quantile(errors, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)

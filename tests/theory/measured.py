"""What simulations give, with standard errors from independent repetitions."""

from typing import NamedTuple

import numpy as np

import fedscaffold as fs
from fedscaffold import FedAvg, Scaffold
from fedscaffold.core.random.stream import Sampling
from fedscaffold.core.types import Array
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation import TailAverage


class Measured(NamedTuple):
    """A mean over repetitions and its standard error."""

    value: Array
    error: Array


def over_repetitions(values: Array) -> Measured:
    return Measured(values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values)))


def curve(
    problem: Ridge | Logistic, method: Scaffold | FedAvg, *, batch_size: int, repetitions: int, rounds: int
) -> Measured:
    """MSE after each round, from θ_0 = 0."""
    trace = fs.run(
        problem, method, rounds=rounds, batch_size=batch_size, repetitions=repetitions, seed=1, progress=False
    )
    return over_repetitions(trace.mse)


class Plateau(NamedTuple):
    """MSE and mean error of θ on the plateau."""

    mse: Measured
    bias: Measured


def plateau(
    problem: Ridge | Logistic,
    method: Scaffold | FedAvg,
    *,
    batch_size: int,
    repetitions: int,
    rounds: int,
    start: Array,
    after: int = 60,
    sampling: Sampling = "with_replacement",
) -> Plateau:
    """Averages over rounds `after` to `rounds`, from near the plateau: θ = start and ideal control variates.

    Rounds of one repetition are correlated; the errors come from the spread over repetitions, which are not.
    """
    optimum = problem.optimum()
    trace = fs.run(
        problem,
        method,
        rounds=rounds,
        batch_size=batch_size,
        repetitions=repetitions,
        seed=2,
        theta0=start,
        control_variates0=-problem.client_gradients(optimum) if isinstance(method, Scaffold) else None,
        sampling=sampling,
        progress=False,
        record=("mse", TailAverage(after=after)),
    )
    return Plateau(
        over_repetitions(trace.mse[:, after + 1 :].mean(axis=1)), over_repetitions(trace.average - optimum)
    )


class Covariances(NamedTuple):
    """Second moments about (θ*, ξ*) with their standard errors in Frobenius norm."""

    theta: Measured  # (d, d)
    theta_xi: Measured  # (N, d, d)
    xi: Measured  # (N, N, d, d)
    mean_theta: Measured  # (d,)


def covariances(
    problem: Ridge | Logistic, method: Scaffold, *, batch_size: int, repetitions: int, burn: int, rounds: int
) -> Covariances:
    """Sampled after every round of `repetitions` chains; errors from the spread over 20 groups of chains."""
    groups = 20
    theta: Array = np.broadcast_to(problem.optimum(), (repetitions, problem.dim))
    ideal = -problem.client_gradients(problem.optimum())
    xi: Array = np.broadcast_to(ideal, (repetitions, *ideal.shape))
    sums: list[Array | float] = [0.0, 0.0, 0.0, 0.0]
    for t in range(rounds + 1):
        trace = fs.run(
            problem,
            method,
            rounds=1 if t else burn,
            batch_size=batch_size,
            repetitions=repetitions,
            seed=t,
            theta0=theta,
            control_variates0=xi,
            progress=False,
            record=(),
        )
        theta, xi = trace.theta, trace.control_variates
        if t:
            a = (theta - problem.optimum()).reshape(groups, -1, problem.dim)
            b = (xi - ideal).reshape(groups, -1, *ideal.shape)
            n = a.shape[1]
            sums[0] += np.einsum("gri,grj->gij", a, a) / n
            sums[1] += np.einsum("gri,grcj->gcij", a, b, optimize=True) / n
            sums[2] += np.einsum("grci,grej->gceij", b, b, optimize=True) / n
            sums[3] += a.mean(axis=1)
    theta_m, cross, own, mean = (over_repetitions(np.asarray(total) / rounds) for total in sums)
    return Covariances(theta_m, cross, own, mean)

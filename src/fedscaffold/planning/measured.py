"""Measure the plateau and the error curve of any method by runs of the simulator, with standard errors.

Repetitions of a run are independent, so their spread gives standard errors, and products of the mean errors of two
repetitions have the squared bias as their expectation. The amount of work follows from the problem and from what
was measured: the same call gives the same numbers on any machine, unless the time limit ends it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import Diverged, InvalidInput, NoPlateau
from fedscaffold.core.privacy import Privacy
from fedscaffold.core.protocols import Method, Problem
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.simulation.run_method import run_to_end
from fedscaffold.simulation.setup import validate_run
from fedscaffold.theory.expansion import first_order_law

BLOCKS = 32  # a plateau is divided into at most this many blocks of rounds; it is judged from 16 on
PERTURBATION = 1e-9  # distance of a start from θ*, relative to 1 + ‖θ*‖: an unstable method leaves θ* then
LARGEST_COVARIANCE = 500  # dimensions up to which the covariance of θ is measured
MOST_ROUNDS = 200_000  # of a plateau; only a time limit of many minutes gets there
SEED = 20_250_713  # runs that users compare predictions with have other seeds
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75)  # of the rounds, that an average of iterates may leave out
clock = time.perf_counter


@dataclass(frozen=True, eq=False)
class Subject:
    """A run to measure: problem, method, batches, privacy, and the optimum that errors are measured from."""

    problem: Problem
    method: Method
    batches: Batches
    optimum: Array
    privacy: Privacy | None = None

    def follow(
        self,
        look: Callable[[int, Array], bool],
        *,
        rounds: int,
        repetitions: int,
        seed: int = SEED,
        theta0: Array | None = None,
        control_variates0: Array | None = None,
    ) -> None:
        """Run rounds until they are done or `look` returns True; it gets the round and θ of every repetition.

        Raises
        ------
        Diverged
            If θ grows beyond all bounds.
        """
        setup = validate_run(
            self.problem, self.method, rounds=1, batch_size=self.batches.size, sampling=self.batches.sampling,
            seed=seed, repetitions=repetitions, engine="auto", theta0=theta0, privacy=self.privacy,
            control_variates0=control_variates0,
        )  # fmt: skip
        run_to_end(
            replace(setup, rounds=rounds), None, record=lambda state: look(state.round, state.theta), file=None,
            arrays=lambda: ({}, {}), progress=lambda done: None,
        )  # fmt: skip

    @property
    def work(self) -> float:
        """Number of local steps of all clients in a round, in steps of ten records with twenty features."""
        problem = self.problem
        uniform = (np.arange(16) + 0.5) / 16
        steps = self.method.local_step_counts(problem.n_clients, uniform).mean()
        records = float(np.mean(problem.sizes)) if self.batches.size is None else self.batches.size
        participants = self.method.participants(problem.n_clients)
        drawing = 2000.0 if participants < problem.n_clients else 0.0  # a cohort takes as long to draw
        return drawing + participants * float(steps) * (0.5 + records * problem.dim / 400.0)

    def repetitions(self, work: float, least: int, most: int) -> int:
        """Return how many repetitions of one round do this much work, within limits and in half a gigabyte."""
        fit = max(2, int(6e7 / (self.problem.n_clients * self.problem.dim)))
        return int(min(np.clip(work / self.work, least, most), fit))

    def is_random(self) -> bool:
        """Return whether two repetitions differ after two rounds."""
        seen: list[Array] = []

        def look(round: int, theta: Array) -> bool:
            seen.append(theta)
            return False

        self.follow(look, rounds=2, repetitions=2)
        return bool((seen[-1][0] != seen[-1][1]).any())

    def control_variates(self) -> Array | None:
        """Return ξ*_c = −∇f_c(θ*) if the method takes control variates and the problem has gradients."""
        problem: Any = self.problem
        if not hasattr(problem, "client_gradients"):
            return None
        gradients = problem.client_gradients(self.optimum)
        found = problem.weights @ gradients - gradients
        try:
            self.method.init_clients(1, problem.weights, problem.dim, found)
        except InvalidInput:
            return None
        return found

    def rounds_to_settle(self) -> float:
        """Return about how many rounds it takes until the start is forgotten; 0 if the problem does not say.

        By first order the model forgets as max |1 − γλ|^H does, and control variates in about γHλ rounds.
        """
        problem: Any = self.problem
        N, gamma = problem.n_clients, self.method.step_size
        H = max(1, round(float(self.method.local_step_counts(N, (np.arange(16) + 0.5) / 16).mean())))
        try:
            law = first_order_law(problem, Scaffold(step_size=gamma, local_steps=H), self.batches)
        except (InvalidInput, np.linalg.LinAlgError):
            return 0.0
        model = 12.0 / (1.0 - law.rate) if law.rate < 1.0 else 0.0
        return max(model, 6.0 * gamma * H * law.largest_curvature) * N / self.method.participants(N)

    def start(self, repetitions: int, *, random: bool) -> Array:
        """Return models near the stationary law, (repetitions, d), drawn from the first-order law if possible."""
        rng, d = np.random.default_rng(SEED), self.problem.dim
        size, draws = float(np.linalg.norm(self.optimum)), rng.normal(size=(repetitions, d))
        near = self.optimum + PERTURBATION * (1.0 + size) * draws / np.sqrt(d)
        if not random or self.privacy is not None or d > LARGEST_COVARIANCE:
            return near
        problem: Any = self.problem
        try:
            law = first_order_law(problem, self.method, self.batches)
            if not law.rate < 1.0 or law.mse > size**2:
                return near
            lam, U = np.linalg.eigh(law.cov_theta)
        except (InvalidInput, np.linalg.LinAlgError):
            return near
        return near + law.bias + draws * np.sqrt(np.maximum(lam, 0.0)) @ U.T


def measured_plateau(subject: Subject, *, accuracy: float, seconds: float) -> "MeasuredPlateau":
    """Run the method near θ* until its error is known to a relative standard error, or the time is over.

    Raises
    ------
    NoPlateau
        If the run diverges, or its error grows faster and faster when the time is over.
    """
    begin = clock()
    try:
        random = subject.is_random()
        settling = subject.rounds_to_settle()
        most = int(np.clip(512 * 100 / max(settling, 1.0), 64, 512))  # slow methods need rounds instead
        # rounds of about 0.02 s if possible; with two repetitions a hundred rounds of 10,000 clients take seconds
        repetitions = subject.repetitions(4e5, 2, most) if random else 1
        blocks = _Blocks(subject.optimum, repetitions)

        def look(round: int, theta: Array) -> bool:
            if round == 0:
                return False
            blocks.add(theta)
            over = clock() - begin > seconds and round >= 4
            return over or (
                blocks.can_be_judged
                and round >= settling
                and MeasuredPlateau(blocks, settling).is_enough(accuracy)
            )

        subject.follow(
            look, rounds=MOST_ROUNDS, repetitions=repetitions, theta0=subject.start(repetitions, random=random),
            control_variates0=subject.control_variates(),
        )  # fmt: skip
    except Diverged as error:
        raise NoPlateau(f"there is no plateau: {error}") from None
    found = MeasuredPlateau(blocks, settling)
    if blocks.rounds < settling:  # the part of the start that is left
        left = found.mse * float(np.exp(-6.0 * blocks.rounds / settling))
        found.standard_error = float(np.hypot(found.standard_error, left))
    if not found.settled(accuracy):
        if found.explodes:
            raise NoPlateau(
                f"no plateau was seen within {seconds:g} seconds: after {blocks.rounds:,} rounds the squared "
                f"error is {found.mse:.3g} and grows; take a smaller step size, or allow more seconds"
            )
        found.standard_error = max(found.standard_error, abs(found.change))
    if found.vanishes:  # up to rounding
        found.mse, found.standard_error, found.bias = 0.0, 0.0, 0.0 * found.bias
        found.cov_theta = None if found.cov_theta is None else 0.0 * found.cov_theta
    return found


class _Blocks:
    """Sums of errors over consecutive blocks of rounds, which become twice as long once there are BLOCKS."""

    def __init__(self, optimum: Array, repetitions: int) -> None:
        self.optimum, self.rounds, self.length = optimum, 0, 1
        self.repetitions = repetitions
        self.with_products = optimum.size <= LARGEST_COVARIANCE
        self.squares: list[Array] = []  # Σ ‖e‖² of each block, (repetitions,)
        self.errors: list[Array] = []  # Σ e, (repetitions, d)
        self.products: list[Array] = []  # Σ e eᵀ over rounds and repetitions, (d, d)

    def add(self, theta: Array) -> None:
        """Take in θ of every repetition after a round."""
        e = theta - self.optimum
        sums = np.square(e).sum(axis=1), e, e.T @ e if self.with_products else np.zeros(())
        lists = (self.squares, self.errors, self.products)
        for values, value in zip(lists, sums, strict=True):
            if self.rounds % self.length:
                values[-1] = values[-1] + value
            else:
                values.append(value)
        self.rounds += 1
        if len(self.squares) == BLOCKS and self.rounds % self.length == 0:
            for values in lists:
                values[:] = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
            self.length *= 2

    @property
    def can_be_judged(self) -> bool:
        """Whether a block has just ended and there are at least 16."""
        return self.rounds % self.length == 0 and len(self.squares) >= BLOCKS // 2


class MeasuredPlateau:
    """Means over the last three quarters of the rounds, and over parts of them.

    `mse` has a `standard_error`; `bias`, (d,), has a norm such that its square estimates ‖E θ − θ*‖² without bias;
    `cov_theta` is (d, d), or None for many dimensions.
    """

    def __init__(self, blocks: _Blocks, settling: float) -> None:
        R, n = blocks.repetitions, len(blocks.squares)
        first, lengths = n // 4, np.full(n, blocks.length)
        lengths[-1] = blocks.rounds - blocks.length * (n - 1)
        rounds = int(lengths[first:].sum())

        def parts(count: int) -> list[Array]:
            """Return the mean squared errors of every repetition in consecutive parts of about equal length."""
            found = np.array_split(np.arange(first, n), count)
            return [np.sum([blocks.squares[k] for k in part], axis=0) / lengths[part].sum() for part in found]

        (early, late), thirds = parts(2), parts(3)
        bend = thirds[2] - 2.0 * thirds[1] + thirds[0]  # on the way to a plateau growth slows down
        self.explodes = bool(late.mean() > 1.2 * early.mean() and bend.mean() > 2.0 * _error_of_mean(bend))
        each, means = parts(1)[0], np.sum(blocks.errors[first:], axis=0) / rounds
        self.mse = float(each.mean())
        self.change, self.grown = float((late - early).mean()), float(late.mean() / max(early.mean(), 1e-300))
        # of few repetitions, parts that are longer than errors are remembered count as samples too
        count = int(np.clip(3.0 * rounds / max(settling, 1.0), 2, 16)) if 1 < R < 16 else 1
        self.standard_error = _error_of_mean(np.concatenate(parts(min(count, n - first))))
        self.change_error = _error_of_mean(late - early) if count == 1 else 2.0 * self.standard_error
        self.zero = 100.0 * (PERTURBATION * (1.0 + float(np.linalg.norm(blocks.optimum)))) ** 2
        mean = means.mean(axis=0)
        square = float(mean @ mean)
        if R > 1:  # products of different repetitions
            square = max(0.0, float((R * R * square - np.square(means).sum()) / (R * (R - 1))))
        norm = float(np.linalg.norm(mean))
        self.bias = mean * (np.sqrt(min(square, self.mse)) / norm if norm > 0.0 else 0.0)
        self.cov_theta: Array | None = None
        if blocks.with_products:
            products: Array = np.sum(blocks.products[first:], axis=0) / (R * rounds)
            self.cov_theta = products - np.outer(self.bias, self.bias)

    def settled(self, accuracy: float) -> bool:
        """Return whether both halves agree within their errors."""
        return abs(self.change) <= 2.0 * self.change_error + 0.2 * accuracy * self.mse or self.vanishes

    @property
    def vanishes(self) -> bool:
        """Whether errors are as small as the perturbation of the start and do not grow."""
        return self.mse <= self.zero and self.grown <= 1.0

    def is_enough(self, accuracy: float) -> bool:
        """Return whether the plateau is reached and its error is known well enough."""
        return self.settled(accuracy) and (self.standard_error <= accuracy * self.mse or self.vanishes)


def _error_of_mean(samples: Array) -> float:
    """Return the standard deviation of Student's law for the mean of n samples; 0 for one sample.

    That is their standard error times √((n − 1)/(n − 3)), which is close to 1 unless they are few; of three
    samples or two, whose law has no standard deviation, times 3.
    """
    n = samples.size
    if n == 1:
        return 0.0
    few = np.sqrt((n - 1) / (n - 3)) if n > 3 else 3.0
    return float(few * samples.std(ddof=1) / np.sqrt(n))


class ErrorCurve(NamedTuple):
    """Mean squared errors of rounds 0, 1, ..., their standard errors, and how many rounds averages leave out."""

    errors: Array
    spread: Array
    after: list[int] | None = None

    def first(self, aim: float, target: float) -> int | None:
        """Return the first round after the start at an aim, and below a target by 1.75 standard errors (96 %).

        Errors with standard errors above 5 % are means over a quarter of the rounds, as a dip is chance.
        """
        t = np.arange(self.errors.size)
        width = np.where(self.spread > 0.05 * self.errors, 1 + t // 4, 1)
        sums = np.cumsum(np.pad([self.errors, self.spread], ((0, 0), (1, 0))), axis=1)
        errors, spread = (sums[:, t + 1] - sums[:, t + 1 - width]) / width
        below = np.flatnonzero((errors <= aim) & (errors + 1.75 * spread <= target) & (t > 0))
        return int(below[0]) if below.size else None

    def until(self, T: int) -> "ErrorCurve":
        """Return the first T rounds."""
        return ErrorCurve(self.errors[: T + 1], self.spread[: T + 1], self.after)


class Meter:
    """Mean squared errors by round over repetitions, of θ_t or of averages of θ_t with several tails."""

    def __init__(self, optimum: Array, *, averaged: bool) -> None:
        self.optimum, self.averaged, self.repetitions = optimum, averaged, 0
        self.sums: list[Array] = []  # over repetitions, of squared errors, one for each share that is left out
        self.squares: list[Array] = []  # of their squares
        self.totals: list[Array] = []  # of errors up to each round, for averages

    def add(self, round: int, theta: Array) -> bool:
        """Take in θ of every repetition after a round; False, as no error ends a run."""
        e = theta - self.optimum
        if round == 0:
            self.repetitions += len(e)
            self.totals = [np.zeros_like(e)]
        means = [e]
        if self.averaged and round > 0:
            self.totals.append(self.totals[-1] + e)
            tails = (int(share * round) for share in SHARES)
            means = [(self.totals[-1] - self.totals[after]) / (round - after) for after in tails]
        errors = np.stack([np.square(each).sum(axis=1) for each in means])
        if round == len(self.sums):
            self.sums.append(np.zeros(len(means)))
            self.squares.append(np.zeros(len(means)))
        self.sums[round] += errors.sum(axis=1)
        self.squares[round] += np.square(errors).sum(axis=1)
        return False

    def error(self, round: int) -> float:
        """Return the mean error after a round, of the best tail."""
        return float(self.sums[round].min()) / self.repetitions

    def curve(self) -> ErrorCurve:
        """Return the mean errors of all rounds, each of its best tail."""
        R, best = self.repetitions, [int(one.argmin()) for one in self.sums]
        means = np.array([one[k] for one, k in zip(self.sums, best, strict=True)]) / R
        squares = np.array([one[k] for one, k in zip(self.squares, best, strict=True)]) / R
        spread = np.sqrt(np.maximum(squares - means**2, 0.0) / max(R - 1, 1))
        return ErrorCurve(
            means, spread, [int(SHARES[k] * t) for t, k in enumerate(best)] if self.averaged else None
        )


def measured_curve(
    subject: Subject, rounds: int, *, work: float, enough: Callable[[ErrorCurve, int], bool],
    averaged: bool = False, least: int = 2,
) -> ErrorCurve:  # fmt: skip
    """Measure E‖θ_t − θ*‖² for t = 0, ..., rounds from θ_0 = 0, or of averages, by independent repetitions.

    The first repetitions, at least `least`, take about `work` local steps; later ones double them, up to ten times
    as many, until `enough` of the curve and the number of repetitions. Diverged is raised if θ grows without end.
    """
    meter = Meter(subject.optimum, averaged=averaged)
    repetitions = subject.repetitions(work / rounds, least, 1024) if subject.is_random() else 1
    while True:
        subject.follow(meter.add, rounds=rounds, repetitions=repetitions, seed=SEED + 1 + meter.repetitions)
        curve = meter.curve()
        if meter.repetitions == 1 or enough(curve, meter.repetitions):
            return curve
        repetitions = min(meter.repetitions, subject.repetitions(10.0 * work / rounds, 2, 8192))

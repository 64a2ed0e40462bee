"""Train a regression from sums over clients: Newton steps, rounds of Scaffold, and certificates of what is left.

With g the gradient and A the Hessian of the penalised loss of all clients together, the distance to the optimum is
A⁻¹g up to its square, and θ − A⁻¹g is far closer to it than θ. So the sums are a certificate and a Newton step at
once. No decision needs the optimum: step size, local steps and when to stop follow from sums alone.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import given, positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.inference.closing import ROUNDING, Certificate, newton_step
from fedscaffold.inference.diagnosis import check_not_separated
from fedscaffold.inference.sums import ClosingSums

Trainer = Literal["auto", "newton", "scaffold"]
TRAINERS = ("Scaffold", "Newton's method")
TOLERANCE = "se:0.05"
MAX_EXCHANGES = 500
CLOSE_ENOUGH = 1e-5  # relative error from which one Newton step leaves about its square, 1e-10
CLOSING_BELOW = 0.1  # relative error at which Newton steps take over from Scaffold
RELATIVE_TOLERANCE = 0.005  # if a tolerance in standard errors cannot be checked, for lack of Hessians
ENOUGH_DECREASE = 0.1  # of the decrease that Newton's quadratic model promises
MOST_HALVINGS = 30  # of a step: 2⁻³⁰ of it is below the rounding of the loss
CLOSED = 1e-9  # of the standard errors: a distance that needs no further step
NEWTON_STEPS, SCAFFOLD_ROUNDS = 8, 30  # usual numbers from θ = 0, to choose between the two
STEPS_PER_HESSIAN = 6  # a Hessian takes as long as d/6 local steps, as `benchmarks.trainers` measured
FIRST_LOCAL_STEPS, MOST_LOCAL_STEPS = 64, 4096  # the best number differs by a factor 60 between tables
FACTOR = 4  # between two numbers of local steps that are tried
ROUNDS_PER_STAGE = 3  # enough to see a rate in the norm of the gradient
STAGES_UNTIL_NEXT_TRIAL = 3  # with the best number, before another one is tried again


class NotFinite(InvalidInput):
    """Sums at a model that are not finite, or too large to be added up: the model is too far off."""


class Sums(Protocol):
    """All sums that a training asks for; every call is one exchange with all clients."""

    dim: int  # number of coefficients d
    names: tuple[str, ...]  # of the features, for messages
    slopes: NDArray[np.bool_]  # whether each coefficient is a slope, and not an intercept, (dim,)
    needs_newton: str | None  # the setting that only Newton's method can train, such as "client_intercepts"
    hessians: bool  # whether clients add up Hessians
    exchange_seconds: float  # expected duration of an exchange, apart from the clients' work
    step_seconds: float  # expected duration of a local step on all rows of the slowest client

    @property
    def smoothness(self) -> float:
        """The largest curvature L_c of any client's loss; local steps of size 1/L are stable."""

    def penalty(self, sums: ClosingSums) -> Array:
        """Return the second derivatives of the penalty in units of the sums, (dim,)."""

    def closing(self, theta: Array, *, scores: bool) -> ClosingSums:
        """Return the closing sums at θ, with products of scores if these are asked for."""

    def gradient(self, theta: Array) -> tuple[Array, float]:
        """Return ∇f(θ) and f(θ), the mean over all rows with the penalty."""

    def scaffold_round(self, theta: Array, step_size: float, local_steps: int) -> Array:
        """Return the model after one round of Scaffold from θ; clients keep their control variates."""


def parse_tolerance(tolerance: Any) -> tuple[Literal["se", "relative"], float]:
    """Return the unit and the number of a tolerance: ("se", 0.05) of "se:0.05", ("relative", 0.005) of 0.005."""
    if isinstance(tolerance, str):
        unit, _, number = tolerance.partition(":")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if unit.strip() != "se" or not 0.0 < value < math.inf:
            raise InvalidInput(f"tolerance must be a number below 1, or such as 'se:0.05', got {given(tolerance)}")
        return "se", value
    if not positive("tolerance", tolerance) < 1.0:
        raise InvalidInput(f"tolerance must be below 1, got {given(tolerance)}")
    return "relative", float(tolerance)


def aim(tolerance: Any, *, in_standard_errors: bool) -> float:
    """Return the tolerance in standard errors, or relative to the norm if it is not checked in these."""
    unit, value = parse_tolerance(tolerance)
    return RELATIVE_TOLERANCE if unit == "se" and not in_standard_errors else value


@dataclass(frozen=True, kw_only=True)
class ErrorPoint:
    """The distance to the optimum after some exchanges, without knowing the optimum.

    Parameters
    ----------
    exchange
        Number of exchanges until then.
    relative
        Distance relative to the norm of the coefficients, intercepts left out.
    standard_errors
        Largest distance of a coefficient in its standard errors; None if these are not known.
    certified
        Whether sums over all clients say so; otherwise the latest rounds suggest it.
    method
        What brought the model there, for example "Scaffold, 64 local steps" or "Newton".
    """

    exchange: int
    relative: float
    standard_errors: float | None = None
    certified: bool = True
    method: str = ""


def newton_path(at: "Descent", first: Certificate) -> Iterator[Certificate]:
    """Yield certificates of models that come closer and closer to the optimum, from `first` on.

    Each step is halved until the loss decreases by a tenth of what the quadratic model promises, so that the
    method converges from any start.
    """
    current = first
    while True:
        yield current
        share = 1.0
        for _ in range(MOST_HALVINGS):
            theta = current.theta - share * current.step
            promised = 2.0 * share * current.decrement
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # a step may be too long for an exponential
                    there = at.loss(theta)
            except NotFinite:
                there = math.inf
            if there <= current.loss - ENOUGH_DECREASE * promised + 1e-13 * abs(current.loss):
                break
            share *= 0.5
        else:
            return  # no shorter step helps; the certificate says how far it is
        current = at.certificate(theta)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A trained model with its certificate, and the decisions that led there.

    Parameters
    ----------
    theta
        The model, (dim,).
    certificate
        The certificate of the model; without Hessians, of the model one Newton step before.
    reached
        Whether the certified error is within the tolerance.
    rounds
        Number of exchanges.
    trainer
        "newton" or "scaffold".
    notes
        Decisions and their reasons, in sentences.
    history
        The error by exchange, estimated or certified on the way.
    """

    theta: Array
    certificate: Certificate
    reached: bool
    rounds: int
    trainer: str
    notes: tuple[str, ...]
    history: tuple[ErrorPoint, ...] = ()


@one_blas_thread
def train(
    sums: Sums,
    *,
    trainer: Trainer = "auto",
    tolerance: str | float = TOLERANCE,
    max_exchanges: int = MAX_EXCHANGES,
    start: Array | None = None,
    look: Callable[[ErrorPoint], None] = lambda point: None,
) -> Trained:
    """Train until the certified error is within the tolerance, or the exchanges are used up.

    Parameters
    ----------
    sums
        The sums over all clients.
    trainer, tolerance, max_exchanges
        As in `fedscaffold.models.FitSettings`.
    start
        A first model near the optimum, from which Newton steps start, (dim,); None to start at 0.
    look
        Called with each estimated or certified error.

    Returns
    -------
    Trained
        The model and its certificate.

    Raises
    ------
    InvalidInput
        If the data do not determine the coefficients, or Newton's method is asked for without Hessians.
    """
    return Descent(sums, trainer, tolerance, max_exchanges, look).run(start)


@dataclass
class Descent:
    """The state of a training; parameters are as for `train`. Closing sums are asked for once at each model."""

    sums: Sums
    trainer: Trainer = "auto"
    tolerance: str | float = TOLERANCE
    max_exchanges: int = MAX_EXCHANGES
    look: Callable[[ErrorPoint], None] = lambda point: None
    rounds: int = 0  # exchanges
    notes: list[str] = field(default_factory=list)
    history: list[ErrorPoint] = field(default_factory=list)
    latest: tuple[Array, Array, float] | None = None  # θ, ∇f(θ), f(θ)
    closing: ClosingSums | None = None  # the latest, without products of scores
    first: ClosingSums | None = None  # at the first certified model; their curvatures show separated classes
    least_curvature: float = math.inf  # of any search for a certificate by gradients

    def run(self, start: Array | None) -> Trained:
        """Return the trained model; see `train`."""
        theta = np.zeros(self.sums.dim) if start is None else start
        by_newton = start is not None or self._takes_newton()
        first = self.certificate(theta) if by_newton else self._scaffold(theta)
        for found in newton_path(self, first):
            errors = found.error_in_standard_errors
            rounding = errors is not None and errors <= CLOSED  # which is large relative to coefficients of 0
            close = found.relative_error <= CLOSE_ENOUGH or not self.sums.hessians or rounding
            if (self._within_tolerance(found) and close) or self.rounds >= self.max_exchanges:
                break
        last = found.theta - found.step
        if self.sums.hessians:  # with products of scores for robust standard errors
            found = self.certificate(last, scores=True)
        return Trained(
            theta=last, certificate=found, reached=self._within_tolerance(found), rounds=self.rounds,
            trainer="newton" if by_newton else "scaffold", notes=tuple(self.notes), history=tuple(self.history),
        )  # fmt: skip

    def certificate(self, theta: Array, *, scores: bool = False) -> Certificate:
        """Return the certificate of θ: one exchange with Hessians, else one per conjugate-gradient step."""
        certify = self._certify if self.sums.hessians else self._certify_by_gradients
        found = certify(theta, scores)
        self._report(found.relative_error, found.error_in_standard_errors, method="Newton")
        return found

    def _certify(self, theta: Array, scores: bool) -> Certificate:
        sums = self._closing_sums(theta, scores)
        penalty, names = self.sums.penalty(sums), self.sums.names
        if self.first is not None:
            check_not_separated(sums, self.first, penalty, names)
        self.first = self.first or sums
        try:
            return newton_step(sums, penalty, names, slopes=self.sums.slopes)
        except np.linalg.LinAlgError:
            message = "the sums do not determine the coefficients; pass a positive penalty l2=..."
            raise InvalidInput(message) from None

    def _closing_sums(self, theta: Array, scores: bool = False) -> ClosingSums:
        if not scores and self.closing is not None and np.array_equal(self.closing.theta, theta):
            return self.closing
        self.rounds += 1
        self.closing = self.sums.closing(theta, scores=scores)
        return self.closing

    def loss(self, theta: Array) -> float:
        """Return f(θ), the penalised loss per row."""
        if not self.sums.hessians:
            return self.gradient(theta)[1]
        sums = self._closing_sums(theta)
        return sums.penalised_loss(self.sums.penalty(sums))

    def gradient(self, theta: Array) -> tuple[Array, float]:
        """Return ∇f(θ) and f(θ); one exchange, unless they were asked for last."""
        if self.latest is None or not np.array_equal(self.latest[0], theta):
            self.rounds += 1
            self.latest = (theta, *self.sums.gradient(theta))
        return self.latest[1:]

    def _takes_newton(self) -> bool:
        """Return whether to train by Newton's method, and note why."""
        asked, dim = self.trainer, self.sums.dim
        if (asked == "newton" or self.sums.needs_newton) and not self.sums.hessians:
            raise InvalidInput("Newton's method needs sums of Hessians, which are too large or not allowed here")
        if self.sums.needs_newton:
            newton, why = True, f"Training is by Newton's method, as {self.sums.needs_newton} requires."
        elif asked != "auto":
            newton = asked == "newton"
            why = f"{TRAINERS[newton]} was asked for."
        elif not self.sums.hessians:
            newton = False
            why = (
                "Training is by Scaffold: Newton's method needs sums of Hessians, which are too large or not "
                "allowed here."
            )
        else:
            wait, step = self.sums.exchange_seconds, self.sums.step_seconds
            seconds = NEWTON_STEPS * (wait + step * dim / STEPS_PER_HESSIAN)
            other = SCAFFOLD_ROUNDS * (wait + step * FIRST_LOCAL_STEPS)
            newton = seconds < other
            why = (
                f"Training is by {TRAINERS[newton]}: with {dim:,} coefficients it is "
                f"expected to take {min(seconds, other):.2g} s of exchanges and local work, the other way "
                f"{max(seconds, other):.2g} s."
            )
        self.notes.append(why)
        return newton

    def _within_tolerance(self, found: Certificate) -> bool:
        if found.relative_error <= 10.0 * ROUNDING:  # a perfect fit has standard errors of rounding's size
            return True
        errors, tolerance = found.error_in_standard_errors, self.tolerance
        if errors is None or parse_tolerance(tolerance)[0] == "relative":
            return found.relative_error <= aim(tolerance, in_standard_errors=False)
        return errors <= aim(tolerance, in_standard_errors=True)

    def _report(
        self, relative: float, errors: float | None = None, *, certified: bool = True, method: str
    ) -> None:
        if np.isfinite(relative):
            point = ErrorPoint(
                exchange=self.rounds, relative=relative, standard_errors=errors, certified=certified, method=method
            )
            self.history.append(point)
            self.look(point)

    # Scaffold

    def _scaffold(self, theta: Array) -> Certificate:
        """Run stages of Scaffold, with local steps found on the way, until Newton steps can take over."""
        if self.sums.hessians:
            self.certificate(theta)  # finds columns that depend on each other before any long work
        wait, step = self.sums.exchange_seconds, self.sums.step_seconds
        search = LocalStepsSearch(seconds_per_round=wait, seconds_per_step=step).affordable()
        step_size = 1.0 / self.sums.smoothness
        norm = float(np.linalg.norm(self.gradient(theta)[0]))
        tried: list[int] = []
        found: Certificate | None = None
        while self.rounds < self.max_exchanges and norm > 0.0:
            begin, H = theta, search.local_steps
            tried.append(H)
            for _ in range(ROUNDS_PER_STAGE):
                self.rounds += 1
                theta = self.sums.scaffold_round(theta, step_size, H)
            before, norm = norm, float(np.linalg.norm(self.gradient(theta)[0]))
            search = search.after_stage(before, norm)
            moved = float(np.linalg.norm(theta - begin)) / max(float(np.linalg.norm(theta)), 1e-300)
            ratio = min(norm / before, 0.99)
            estimate = moved * ratio / (1.0 - ratio)
            self._report(estimate, certified=False, method=f"Scaffold, {H} local steps")
            if estimate <= CLOSING_BELOW:
                found = self.certificate(theta)
                if found.relative_error <= CLOSING_BELOW:
                    break
        self.notes.append(
            f"Scaffold ran {ROUNDS_PER_STAGE * len(tried)} rounds with step size {step_size:.3g} and, in stages "
            f"of {ROUNDS_PER_STAGE} rounds, {', '.join(map(str, tried))} local steps."
        )
        return found if found is not None and found.theta is theta else self.certificate(theta)

    def _certify_by_gradients(self, theta: Array, scores: bool) -> Certificate:
        """Return the certificate of θ by conjugate gradients, with one exchange for each product with A.

        Products with A come from differences of gradients. The search ends when the residual is a hundredth of
        the gradient. The part of A⁻¹g that is not solved for then is at most the residual over the least
        curvature, for which half of the least Ritz value of any search stands in: these come down to it.
        """
        gradient, loss = self.gradient(theta)
        step, residual = np.zeros_like(theta), gradient.copy()
        found = Certificate(theta=theta, loss=loss, step=step, decrement=0.0, slopes=self.sums.slopes)
        direction, diagonal, beside, beta, last = residual.copy(), list[float](), list[float](), 0.0, 1.0
        for _ in range(min(theta.size, 200)):  # 200 products, beyond which rounds of Scaffold are cheaper
            square = float(residual @ residual)
            if np.sqrt(square) <= 0.01 * float(np.linalg.norm(gradient)):
                break
            length = 1e-6 * (1.0 + float(np.linalg.norm(theta))) / float(np.linalg.norm(direction))
            image = (self.gradient(theta + length * direction)[0] - gradient) / length
            curvature = float(direction @ image)
            if curvature <= 0.0:
                raise InvalidInput("the loss has directions without curvature; pass a positive penalty l2=...")
            share = square / curvature
            diagonal.append(1.0 / share + beta / last)  # Lanczos' tridiagonal matrix
            step, residual = step + share * direction, residual - share * image
            beta, last = float(residual @ residual) / square, share
            beside.append(math.sqrt(beta) / share)
            direction = residual + beta * direction
        if diagonal:
            ritz = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1))
            self.least_curvature = min(self.least_curvature, max(float(ritz[0]), 1e-300))
        unsolved = float(np.linalg.norm(residual)) / (0.5 * self.least_curvature)
        return replace(found, step=step, decrement=0.5 * float(gradient @ step), unsolved=unsolved)


@dataclass(frozen=True, kw_only=True)
class LocalStepsSearch:
    """Search for the number of local steps with the fastest decrease of the gradient per second.

    A stage of a few rounds is judged by how much it shortened the full gradient; the next one takes four times as
    many local steps, or a quarter, whichever direction helps.

    Parameters
    ----------
    local_steps
        H of the next stage.
    seconds_per_round, seconds_per_step
        Duration of a round apart from local steps, and of a local step at the slowest client.

    Examples
    --------
    >>> from fedscaffold.inference.training import LocalStepsSearch
    >>> search = LocalStepsSearch(seconds_per_round=1.0, seconds_per_step=1e-4)
    >>> search = search.after_stage(1.0, 0.1)
    >>> search.local_steps
    256
    >>> search.after_stage(0.1, 0.09).local_steps
    64
    """

    local_steps: int = FIRST_LOCAL_STEPS
    seconds_per_round: float = 1.0
    seconds_per_step: float = 0.0
    upwards: bool = True
    best_local_steps: int = 0  # of the stage to compare with; 0 before the first
    best_rate: float = -math.inf
    stages_left: int = 0  # until another number of local steps is tried again

    def affordable(self) -> "LocalStepsSearch":
        """Return the search with fewer first steps if that many take longer than ten rounds' overhead."""
        steps = self.local_steps
        while steps > 1 and steps * self.seconds_per_step > 10.0 * self.seconds_per_round:
            steps //= FACTOR
        return replace(self, local_steps=steps)

    def after_stage(self, before: float, after: float) -> "LocalStepsSearch":
        """Return the search after a stage in which the norm of the gradient went from `before` to `after`."""
        seconds = self.seconds_per_round + self.local_steps * self.seconds_per_step
        rate = math.log(before / after) / seconds if after > 0.0 else math.inf
        if self.local_steps == self.best_local_steps:
            known = replace(self, best_rate=rate, stages_left=max(self.stages_left - 1, 0))
            much_worse = rate < 0.5 * self.best_rate  # starts a new trial at once
            return known if self.stages_left > 0 and not much_worse else known._try_next()
        if rate >= self.best_rate:
            return replace(self, best_local_steps=self.local_steps, best_rate=rate)._try_next()
        return replace(
            self, local_steps=self.best_local_steps, upwards=not self.upwards, stages_left=STAGES_UNTIL_NEXT_TRIAL
        )

    def _try_next(self) -> "LocalStepsSearch":
        steps = self.local_steps * FACTOR if self.upwards else self.local_steps // FACTOR
        if 1 <= steps <= MOST_LOCAL_STEPS:
            return replace(self, local_steps=steps)
        return replace(self, upwards=not self.upwards)

"""Training on autopilot: settings come from what sites told and what rounds achieved, none from the optimum."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.study.certificate import Certificate, certify, slopes_of
from fedscaffold.federation.study.coordinator import Coordinator
from fedscaffold.federation.study.measure import Measurements
from fedscaffold.federation.study.report.history import ErrorPoint, How
from fedscaffold.federation.study.training import autopilot
from fedscaffold.federation.study.training.by_gradients import Products, certify_by_gradients
from fedscaffold.federation.study.training.plateau import PlateauMean, estimate_stage, find_plateau
from fedscaffold.federation.study.training.rounds import StudyRounds

CLOSE_ENOUGH = 3e-4  # relative error from which one Newton step leaves about its square
CLOSING_BELOW = 0.1  # relative error at which Newton steps take over from Scaffold
RELATIVE_TOLERANCE = 0.005  # where a tolerance in standard errors cannot be checked, for lack of Hessians
WITHIN_REACH = 0.5  # certified error from which Newton steps are cheaper than another stage on batches
MOST_PLATEAUS = 4  # of a run on batches, after which Newton steps take over wherever it is
ENOUGH_DECREASE = 0.1  # of what Newton's quadratic model promises
MOST_HALVINGS = 30
NEWTON_STEPS, SCAFFOLD_ROUNDS = 8, 30  # what each usually takes from θ = 0, to choose between them


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingResult:
    """The model that training ended with, its certificate, and the decisions that led there.

    Parameters
    ----------
    theta
        The model, shape (dim,).
    certificate
        What sums over all sites say about it; where sites add up gradients alone, about the model one Newton step
        before.
    reached
        Whether the certificate is within the study's tolerance.
    rounds
        Number of exchanges with all sites.
    notes
        What was decided and why, in sentences.
    history
        The error by exchange, estimated or certified on the way.
    """

    theta: Array
    certificate: Certificate
    reached: bool
    rounds: int
    notes: tuple[str, ...]
    history: tuple[ErrorPoint, ...] = ()


@dataclass(kw_only=True)
class StudyTraining:
    """One training of a study.

    Parameters
    ----------
    coordinator
        Asks the sites.
    agreement
        The encoding that they accepted.
    measured
        What they told about themselves.
    hessians
        Whether all sites allow sums of Hessians of this size.
    part
        Whether the rows that the evaluation will use are left out.
    """

    coordinator: Coordinator
    agreement: Agreement
    measured: Measurements
    hessians: bool
    part: bool = False
    rounds: int = 0
    notes: list[str] = field(default_factory=list)
    history: list[ErrorPoint] = field(default_factory=list)
    products: Products = field(default_factory=Products)
    latest: tuple[Array, Array, float] | None = None  # θ, ∇f(θ), f(θ)

    def run(self, start: Array | None = None) -> TrainingResult:
        """Train until the certified error is within the tolerance, or the study's rounds are used up.

        Parameters
        ----------
        start
            The initial model, near the optimum; by default zeros, from which Scaffold or Newton's method starts.
        """
        theta = np.zeros(self.agreement.dim) if start is None else start
        if start is None and self.coordinator.settings.trainer == "newton":
            self._note("The study asked for Newton’s method.")
            if not self.hessians:
                raise InvalidInput(
                    "Newton's method needs Hessians, which not all sites allow; choose another trainer"
                )
        elif start is None and self.agreement.client_intercepts:
            self._note("Sites fit intercepts of their own, so training is by Newton's method.")
        elif start is None:
            cost = self.coordinator.seconds_per_exchange, self.measured.seconds_per_step
            if not self._takes_newton(theta.size, *cost):
                norm = float(np.linalg.norm(self._gradient_and_loss(theta)[0]))
                return self._close(self._run_scaffold(theta, norm, *cost))
        return self._close(self.certificate(theta))

    def certificate(self, theta: Array, *, scores: bool = False) -> Certificate:
        """The certificate of θ: one exchange where Hessians are allowed, else one per conjugate-gradient step."""
        if self.hessians:
            self.rounds += 1
            sums = self.coordinator.closing_sums(theta, self.agreement, scores=scores, part=self.part)
            found = certify(sums, self.agreement)
        else:
            found, self.products = certify_by_gradients(
                theta, self._gradient_and_loss, self.agreement, tolerance=self._aim(None), known=self.products
            )
        self._tell_error(found.relative_error, found.error_in_standard_errors, method="Newton")
        return found

    def _tell_error(
        self, relative: float, standard_errors: float | None = None, *, how: How = "certified", method: str
    ) -> None:
        if np.isfinite(relative):
            point = ErrorPoint(
                exchange=self.rounds, relative=relative, standard_errors=standard_errors, how=how, method=method
            )
            self.history.append(point)
            if not self.part:
                self.coordinator.board.error(point, self._aim(standard_errors))

    def _note(self, sentence: str) -> None:
        self.notes.append(sentence)
        if not self.part:
            self.coordinator.board.note(sentence)

    def _gradient_and_loss(self, theta: Array) -> tuple[Array, float]:
        """∇f(θ) and f(θ); one exchange, unless they were asked for last."""
        if self.latest is None or not np.array_equal(self.latest[0], theta):
            self.rounds += 1
            self.latest = (theta, *self.coordinator.gradient_and_loss(theta, self.agreement, part=self.part))
        return self.latest[1:]

    def _takes_newton(self, dim: int, per_round: float, per_step: float) -> bool:
        """Whether Newton's method takes less time; a round and a local step cost this many seconds."""
        if self.coordinator.settings.trainer == "scaffold":
            self._note("The study asked for Scaffold.")
            return False
        newton = NEWTON_STEPS * (per_round + per_step * dim / 2.0)
        scaffold = SCAFFOLD_ROUNDS * (per_round + per_step * autopilot.FIRST_LOCAL_STEPS)
        reason = f"expected to take {newton:.2g} s with {dim} coefficients, Scaffold {scaffold:.2g} s"
        reason = reason if self.hessians else "not possible, since Hessians are too large or not allowed"
        self._note(f"Newton's method on sums of Hessians is {reason}.")
        return self.hessians and newton < scaffold

    def _run_scaffold(self, theta: Array, norm: float, per_round: float, per_step: float) -> Certificate:
        """Stages of Scaffold, with local steps found on the way, until Newton steps can take over.

        At θ the gradient has this norm; a round and a local step cost this many seconds.
        """
        batch = autopilot.choose_batch(
            self.coordinator.settings.batch_size, self.measured.largest_site, per_round, per_step
        )
        self._tell_error(1.0, how="estimated", method="no rounds yet")
        if batch is not None:
            per_step *= autopilot.DRAWING * batch / self.measured.largest_site
            return self._run_on_batches(theta, batch, affordable=per_round / max(per_step, 1e-300))
        search = autopilot.LocalStepsSearch.start(per_round, per_step)
        step_size = autopilot.safe_step_size(self.measured.smoothness)
        rounds = self._rounds(theta, None)
        found: Certificate | None = None
        while not self._out_of_rounds and norm > 0.0:
            rounds.change(step_size, search.local_steps)
            begin = rounds.theta
            for _ in range(autopilot.ROUNDS_PER_STAGE):
                self._run_round(rounds)
            now = rounds.theta
            before, norm = norm, float(np.linalg.norm(self._gradient_and_loss(now)[0]))
            method = f"Scaffold, {search.local_steps} local steps"
            search = search.after_stage(before, norm)
            moved = float(np.linalg.norm(now - begin)) / max(float(np.linalg.norm(now)), 1e-300)
            ratio = min(norm / before, 0.99)
            estimate = moved * ratio / (1.0 - ratio)
            self._tell_error(estimate, how="estimated", method=method)
            if estimate <= CLOSING_BELOW:
                found = self.certificate(now)
                if found.relative_error <= CLOSING_BELOW:
                    break
        tried = ", ".join(map(str, rounds.local_steps))
        self._note(
            f"Scaffold ran {rounds.ledger.round} rounds with step size {step_size:.3g} and, in stages of "
            f"{autopilot.ROUNDS_PER_STAGE} rounds, {tried} local steps."
        )
        now = rounds.theta
        return found if found is not None and np.array_equal(found.theta, now) else self.certificate(now)

    def _run_on_batches(self, theta: Array, batch_size: int, affordable: float) -> Certificate:
        """Stages of Scaffold on minibatches: when one is stationary, half the step size, twice the local steps.

        The model is the tail average of the newest stage; its error is known from the walk on the plateau and from
        the difference between stages. So many local steps take no longer than the rest of a round.
        """
        step_size = autopilot.batch_step_size(self.measured, batch_size)
        search = autopilot.BatchSearch(most=affordable)
        rounds, slopes = self._rounds(theta, batch_size), slopes_of(self.agreement)
        plateaus: list[PlateauMean] = []
        found: Certificate | None = None
        while not self._out_of_rounds and len(plateaus) < MOST_PLATEAUS:
            rounds.change(step_size, search.local_steps)
            models, plateau = self._run_stage(rounds, search.rounds)
            if plateau is None:
                search = search.after(models)
                continue
            plateaus.append(plateau)
            estimate = estimate_stage(plateaus, slopes)
            norm = max(float(np.linalg.norm(estimate.theta[slopes])), 1e-300)
            method = f"Scaffold, {search.local_steps} local steps on batches of {batch_size}"
            self._tell_error(estimate.error / norm, how="estimated", method=method)
            likely = estimate.error if estimate.bias_known else estimate.fluctuation
            if likely <= CLOSING_BELOW * norm or len(plateaus) == MOST_PLATEAUS:
                found = self.certificate(estimate.theta)
                if found.relative_error <= WITHIN_REACH:
                    break
            step_size, search = step_size / 2.0, search.settled()
        tried = ", ".join(f"{step:.3g} × {steps}" for _, step, steps in rounds.config.schedule)
        self._note(
            f"Scaffold ran {rounds.ledger.round} rounds on batches of {batch_size} rows, in stages with these "
            f"step sizes × local steps: {tried}; {len(plateaus)} of them became stationary."
        )
        return found if found is not None else self.certificate(rounds.theta)

    def _run_stage(self, rounds: StudyRounds, most: float) -> tuple[list[Array], PlateauMean | None]:
        """Rounds until they are stationary, or so many are done: the models, and their plateau if there is one."""
        models: list[Array] = []
        while len(models) < min(most, self.coordinator.settings.max_rounds) and not self._out_of_rounds:
            models.append(self._run_round(rounds))
            if len(models) % autopilot.ROUNDS_PER_STAGE == 0:
                plateau = find_plateau(models)
                if plateau is not None:
                    return models, plateau
        return models, None

    def _rounds(self, theta: Array, batch_size: int | None) -> StudyRounds:
        return StudyRounds.start(self.coordinator, self.measured, theta, part=self.part, batch_size=batch_size)

    def _run_round(self, rounds: StudyRounds) -> Array:
        self.rounds += 1
        return rounds.run()

    def _close(self, first: Certificate) -> TrainingResult:
        """Newton steps until the certified error is within the tolerance, and one more.

        Where Hessians are allowed the model after the last step is certified too, with products of scores for
        robust standard errors.
        """
        for found in newton_certificates(self.certificate, first):
            close = found.relative_error <= CLOSE_ENOUGH or not self.hessians
            if (self._within_tolerance(found) and close) or self._out_of_rounds:
                break
        last = found.theta - found.step
        if self.hessians:
            found = self.certificate(last, scores=True)
        return TrainingResult(
            theta=last,
            certificate=found,
            reached=self._within_tolerance(found),
            rounds=self.rounds,
            notes=tuple(self.notes),
            history=tuple(self.history),
        )

    @property
    def _out_of_rounds(self) -> bool:
        return self.rounds >= self.coordinator.settings.max_rounds

    def _within_tolerance(self, found: Certificate) -> bool:
        in_errors = found.error_in_standard_errors
        if self.coordinator.settings.se_tolerance is not None and in_errors is not None:
            return in_errors <= self._aim(in_errors)
        return found.relative_error <= self._aim(None)

    def _aim(self, standard_errors: float | None) -> float:
        """The tolerance, in standard errors if it is and these are known, else relative."""
        settings = self.coordinator.settings
        if settings.se_tolerance is not None and standard_errors is not None:
            return settings.se_tolerance
        return settings.relative_tolerance or RELATIVE_TOLERANCE


def newton_certificates(certify: Callable[[Array], Certificate], current: Certificate) -> Iterator[Certificate]:
    """Certificates of models that come closer and closer to the optimum, one exchange with all sites each.

    Each step is halved until the loss decreases as much as a tenth of what the quadratic model promises, so that
    the method converges from any start. The caller stops when a certificate is good enough.
    """
    while True:
        yield current
        share = 1.0
        for _ in range(MOST_HALVINGS):
            found = certify(current.theta - share * current.step)
            promised = 2.0 * share * current.decrement
            rounding = 1e-13 * abs(current.loss)
            if found.loss <= current.loss - ENOUGH_DECREASE * promised + rounding:
                break
            share *= 0.5
        else:
            raise InvalidInput("Newton's method found no smaller loss; the sites' sums contradict each other")
        current = found

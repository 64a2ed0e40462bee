"""The paper's open question by measurement: √κ communications together with linear speed-up?

Scaffold, ProxSkip and FedLin with stochastic gradients: rounds until a target error against the condition number κ
and against γHL, gradients per client against the number of clients, measured and predicted.
`python -m benchmarks.acceleration [--quick]` takes several minutes, resumes what an interrupted call left in
results/acceleration, and draws the figure of the documentation.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks import measured
from fedscaffold.benchmarking.fits import LineFit, fit_line
from fedscaffold.core.checks import positive, seed_number
from fedscaffold.core.display import Advance, part_of, progress_bar
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.files import folder_at, write_frame
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.methods import FedLin, ProxSkip, Scaffold
from fedscaffold.paper.claims import Claim, check_client_numbers, save_claims
from fedscaffold.paper.verify.table1 import crossing
from fedscaffold.problems import LogisticStream, Ridge
from fedscaffold.reports.figures import INK, MARKERS, PALETTE, legend_above, powers_of_ten, saved_panels
from fedscaffold.simulation.run_method import run
from fedscaffold.theory import predict

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

CONDITIONS = (10.0, 31.6, 100.0, 316.0, 1000.0, 3160.0, 10000.0)  # evenly spaced logarithms
CLIENTS = (10, 30, 100, 300, 1000, 3000, 10000)
DIM = 4  # small, so that the longest runs take minutes
FEW_CLIENTS = 16  # of the parts in which N is fixed
LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)  # γHL, on both sides of √κ
LARGE_STEP = 0.08  # γL of the most clients: noise is then a few percent of the start's error
LOGISTIC_TARGET = 2e-3  # squared error; half of it is noise and bias, which end the speed-up within CLIENTS
MOST_RUNS = 4  # repetitions of a run; fewer for thousands of clients, whose errors hardly vary
SECONDS = 1000  # rounds up to which FedLin is predicted: more takes longer than to run it

Part = Literal["condition", "length", "clients", "logistic"]
SHORT, LONG, SKIP, FEDLIN = "Scaffold, γHL = 1", "Scaffold, γHL = √κ", "ProxSkip, γL/p = √κ", "FedLin, γHL = 1"
RECIPES = (SHORT, LONG, SKIP, FEDLIN)


@dataclass(frozen=True, kw_only=True)
class AccelerationSettings:
    """Condition numbers and numbers of clients, at least three of each, and the seed of data and runs."""

    conditions: Sequence[float] = CONDITIONS
    clients: Sequence[int] = CLIENTS
    seed: int = 0

    def __post_init__(self) -> None:
        seed_number("seed", self.seed)
        check_client_numbers(self.clients, fewest=3)
        found = [positive("conditions", each) for each in self.conditions]
        if len(set(found)) < 3 or len(set(found)) < len(found) or min(found) < 2.0:
            raise InvalidInput(
                f"conditions must be three or more different numbers, each at least 2; got {list(self.conditions)}"
            )

    @property
    def condition_for_clients(self) -> float:
        """The condition number for which the number of clients varies: a moderate one."""
        return sorted(self.conditions)[max(0, len(self.conditions) // 2 - 1)]

    @property
    def condition_for_lengths(self) -> float:
        """The condition number for which γHL varies: a large one."""
        return sorted(self.conditions)[len(self.conditions) // 2 + 1]


@dataclass(frozen=True, kw_only=True)
class AccelerationRun:
    """One method on one problem: how it runs, and the error to reach."""

    part: Part
    recipe: str
    condition: float
    n_clients: int
    length: float  # γHL
    method: Method
    target: float
    rounds: int  # the most to run
    repetitions: int

    @property
    def label(self) -> str:
        """A name for files."""
        name = self.recipe.split(",")[0].lower()
        return (
            f"{self.part}-{name}-{self.condition:g}-{self.n_clients}-{self.length:.4g}-{self.method.step_size:.6g}"
        )

    @property
    def steps(self) -> float:
        """Local steps of a client in a round, on average."""
        if isinstance(self.method, ProxSkip):
            return 1.0 / self.method.communication_probability
        assert isinstance(self.method, Scaffold | FedLin)
        return float(self.method.local_steps)  # type: ignore[arg-type]

    @property
    def work(self) -> float:
        """Local steps of all clients in all rounds and repetitions; a round costs as much as 2,000 of them."""
        return self.rounds * (self.steps * self.n_clients * self.repetitions + 2000.0)

    def problem(self, seed: int) -> Ridge | LogisticStream:
        """Build the problem to run on."""
        if self.part == "logistic":
            return logistic(self.n_clients, seed)
        return stiff(self.condition, n_clients=self.n_clients, seed=seed)


# Problems and runs


def stiff(condition: float, *, n_clients: int, seed: int = 0) -> Ridge:
    """Build clients whose Hessians have eigenvalues from 1/κ to 1 and differ as much as these bounds allow.

    One direction has curvature 1/κ on every client, so that this is also the smallest curvature of their mean. In
    the other directions, which each client turns in its own way, one curvature is 1 and the others are log-uniform
    in [1/κ, 1]. Clients have different optima. A client has two records for each of its eigenvectors, with targets
    a little above and below, so that gradients stay noisy at the optimum, in proportion to the Hessian.
    """
    rng = np.random.default_rng([seed, 15])
    lam = condition ** -rng.uniform(size=(n_clients, DIM))
    lam[:, 0], lam[:, -1] = 1.0 / condition, 1.0
    turn = np.zeros((n_clients, DIM, DIM))
    turn[:, 0, 0] = 1.0
    turn[:, 1:, 1:] = np.linalg.qr(rng.normal(size=(n_clients, DIM - 1, DIM - 1)))[0]
    x = np.sqrt(DIM * lam)[:, :, None] * np.swapaxes(turn, 1, 2)
    y = np.einsum("cij,cj->ci", x, 1.0 + 0.5 * rng.normal(size=(n_clients, DIM)))
    return Ridge(np.concatenate([x, x], axis=1), np.concatenate([y + 0.3, y - 0.3], axis=1))


def logistic(n_clients: int, seed: int = 0) -> LogisticStream:
    """Build streamed clients of different scales whose features have variances from 1 to 1/100."""
    return LogisticStream(
        n_clients=n_clients, dim=DIM, spectrum=np.geomspace(1.0, 0.01, DIM), scale_spread=0.9, signal=3.0,
        heterogeneity=1.0, l2=0.0, seed=seed,
    )  # fmt: skip


def made(recipe: str, gamma: float, length: float) -> Method:
    """Build the method of a recipe with γ, and γH (on average) of this length."""
    H = max(1, round(length / gamma))
    if recipe == SKIP:
        return ProxSkip(step_size=gamma, communication_probability=min(1.0, gamma / length))
    if recipe == FEDLIN:
        return FedLin(step_size=gamma, local_steps=H)
    return Scaffold(step_size=gamma, local_steps=H)


def all_cells(settings: AccelerationSettings) -> Iterator[AccelerationRun]:
    """Yield every run of the study."""
    length_condition, clients = settings.condition_for_lengths, sorted(settings.clients)
    for condition in sorted(settings.conditions):
        few, target = _few_clients(condition, settings.seed)
        for recipe in RECIPES:
            yield _cell("condition", recipe, few, condition, 0.02, _length(recipe, condition), target)
    few, target = _few_clients(length_condition, settings.seed)
    for x in (x for x in LENGTHS if x < length_condition):
        for recipe in (LONG, SKIP, FEDLIN):
            yield _cell("length", recipe, few, length_condition, 0.02, x, target)
    condition, per_client = settings.condition_for_clients, LARGE_STEP / clients[-1]
    fewest = stiff(condition, n_clients=clients[0], seed=settings.seed)
    first = made(LONG, per_client * clients[0], math.sqrt(condition))
    target = 4.0 * predict(fewest, first, batch_size=1).mse  # above the plateau, so that γ ∝ N reaches it
    for n in clients:
        problem = stiff(condition, n_clients=n, seed=settings.seed)
        for recipe in RECIPES:
            x = _length(recipe, condition)
            yield _cell("clients", recipe, problem, condition, per_client * n, x, target)
    yield from _logistic_cells(clients, settings.seed)


def _few_clients(condition: float, seed: int) -> tuple[Ridge, float]:
    """Return the problem and the target of runs for which N is fixed: a thousandth of the first squared error."""
    problem = stiff(condition, n_clients=FEW_CLIENTS, seed=seed)
    return problem, 1e-3 * float(problem.optimum() @ problem.optimum())


def _length(recipe: str, condition: float) -> float:
    """Return γHL of a recipe."""
    return math.sqrt(condition) if recipe in (LONG, SKIP) else 1.0


def _repetitions(n_clients: int) -> int:
    return max(1, min(MOST_RUNS, 4000 // n_clients))


def _rounds(start: float, target: float, slowest: float) -> int:
    """Return one and a half times the rounds that the slowest direction needs without noise, and some."""
    return math.ceil(1.5 * 0.5 * math.log(start / target) * slowest) + 20


def _cell(
    part: Part, recipe: str, problem: Ridge, condition: float, gamma: float, x: float, target: float
) -> AccelerationRun:
    """Build a run on `stiff` clients, for which L = 1 and μ = 1/κ, that is long enough to reach its target."""
    start = float(problem.optimum() @ problem.optimum())
    return AccelerationRun(
        part=part, recipe=recipe, condition=condition, n_clients=problem.n_clients, length=x,
        method=made(recipe, gamma, x), target=target, rounds=_rounds(start, target, max(condition / x, x)),
        repetitions=_repetitions(problem.n_clients),
    )  # fmt: skip


def _logistic_cells(clients: Sequence[int], seed: int) -> Iterator[AccelerationRun]:
    few = logistic(FEW_CLIENTS, seed)
    optimum = few.optimum()
    largest = float(np.linalg.eigvalsh(few.client_hessians(optimum)).max())
    condition = largest / float(np.linalg.eigvalsh(few.hessian(optimum)).min())
    for recipe in (SHORT, LONG, SKIP):
        x = _length(recipe, condition)
        for n in clients:
            gamma = logistic_step_size(x / largest, n, seed)
            yield AccelerationRun(
                part="logistic", recipe=recipe, condition=condition, n_clients=n, length=x,
                method=made(recipe, gamma, x / largest), target=LOGISTIC_TARGET,
                rounds=_rounds(float(optimum @ optimum), LOGISTIC_TARGET, 0.5 * condition / x),
                repetitions=_repetitions(n),
            )  # fmt: skip


def logistic_step_size(length: float, n_clients: int, seed: int) -> float:
    """Return the γ for which N clients' plateau, aγ/N of noise and bγ² of squared bias, is half the target."""
    a, b = _parts(length, seed)
    noise, half = a / n_clients, 0.5 * LOGISTIC_TARGET
    return 2.0 * half / (noise + math.sqrt(noise**2 + 4.0 * b * half))


@cache
def _parts(length: float, seed: int) -> tuple[float, float]:
    """Return the two factors a and b, by a prediction in the middle of the step sizes that are used."""
    gamma = 0.02
    method = made(LONG, gamma, length)
    many = predict(logistic(1000, seed), method, batch_size=1, accuracy=0.05)
    return 1000.0 * many.variance / gamma, many.squared_bias / gamma**2


# Measurement


@dataclass(frozen=True)
class Point:
    """The result of a run: rounds until the mean squared error is at the target, with a fraction; NaN if never."""

    cell: AccelerationRun
    rounds: float
    error: float  # standard error of `rounds`, by leaving out one repetition; NaN with fewer than three
    predicted: float  # rounds by theory; NaN if it was not asked
    diverged: bool = False

    @property
    def gradients_per_round(self) -> float:
        """Stochastic gradients of each client in a round; an exchanged full gradient counts as its records."""
        return self.cell.steps + (2 * DIM if isinstance(self.cell.method, FedLin) else 0)


def simulate(
    settings: AccelerationSettings, *, scratch: Path, advance: Advance = lambda done, total: None
) -> list[Point]:
    """Return all points; runs that an interrupted call left in `scratch` are not computed again."""
    cells = list(all_cells(settings))
    total, done, points = sum(cell.work for cell in cells), 0.0, []
    for cell in cells:
        problem = cell.problem(settings.seed)
        predicted = _predicted(problem, cell)
        try:
            trace = run(
                problem, cell.method, rounds=cell.rounds, batch_size=1, seed=settings.seed,
                repetitions=cell.repetitions, checkpoint=scratch / f"{cell.label}-{settings.seed}.npz",
                checkpoint_every=cell.rounds if cell.work < 1e8 else None,  # brief runs are kept whole
                progress=part_of(advance, done, cell.work, total),
            )  # fmt: skip
            points.append(Point(cell, *crossing_with_error(trace.mse, cell.target), predicted))
        except Diverged:
            points.append(Point(cell, math.nan, math.nan, predicted, diverged=True))
        done += cell.work
        advance(int(done), int(total))
    return points


def _predicted(problem: Ridge | LogisticStream, cell: AccelerationRun) -> float:
    """Return the round in which the predicted error is at the target; NaN without a prediction."""
    slow = cell.rounds > SECONDS or cell.steps > 200 or DIM * cell.n_clients > 200
    if isinstance(cell.method, ProxSkip) or (isinstance(cell.method, FedLin) and slow):
        return math.nan  # it takes longer to predict than to run
    try:
        how: Any = "first order" if isinstance(problem, LogisticStream) else "exact"
        found = predict(problem, cell.method, batch_size=1, rounds=cell.rounds, how=how)
    except InvalidInput:  # no plateau
        return math.nan
    assert found.curve is not None
    return crossing(found.curve, cell.target)


def crossing_with_error(errors: Array, target: float) -> tuple[float, float]:
    """Return the crossing of the mean over repetitions, (repetitions, rounds + 1), and its jackknife error."""
    R = len(errors)
    found = crossing(errors.mean(axis=0), target)
    if R < 3:
        return found, math.nan
    total = errors.sum(axis=0)
    each = np.array([crossing((total - one) / (R - 1), target) for one in errors])
    return found, float(np.sqrt((R - 1) * np.mean((each - each.mean()) ** 2)))


@dataclass(frozen=True)
class Line:
    """Points of one recipe in one part of the study: x is κ, γHL or N; y rounds or gradients per client."""

    x: Array
    measured: Array
    error: Array
    predicted: Array

    def fit(self, y: Array) -> LineFit:
        """Fit log y, measured or predicted, over log x: the slope is the exponent."""
        there = np.isfinite(y)
        return fit_line(np.log(self.x[there]), np.log(y[there]))


def line(points: Sequence[Point], part: Part, recipe: str) -> Line:
    """Return the points of a recipe, by κ (rounds), by γHL (rounds) or by N (gradients per client)."""
    chosen = [point for point in points if point.cell.part == part and point.cell.recipe == recipe]
    name = {"condition": "condition", "length": "length"}.get(part, "n_clients")
    each = np.array([point.gradients_per_round if name == "n_clients" else 1.0 for point in chosen])
    return Line(
        x=np.array([getattr(point.cell, name) for point in chosen], dtype=np.float64),
        measured=each * np.array([point.rounds for point in chosen]),
        error=each * np.array([point.error for point in chosen]),
        predicted=each * np.array([point.predicted for point in chosen]),
    )


def to_frame(points: Sequence[Point]) -> "pd.DataFrame":
    """Return one row for each point."""
    import pandas as pd

    same = ("part", "recipe", "condition", "n_clients", "target", "repetitions")
    return pd.DataFrame(
        {
            **{name: getattr(point.cell, name) for name in same},
            "gamma_H_L": point.cell.length,
            "step_size": point.cell.method.step_size,
            "steps_per_round": point.cell.steps,
            "rounds": point.rounds,
            "rounds_error": point.error,
            "rounds_predicted": point.predicted,
            "gradients_per_client": point.rounds * point.gradients_per_round,
            "diverged": point.diverged,
        }
        for point in points
    )


# Proof for quadratic losses, in full on the page docs/explanation/theory/acceleration.md


def enough_rounds(condition: float, reduction: float) -> int:
    """Return rounds after which ‖θ‖² + Σ w_c ‖η_c‖² has fallen by a factor, γH = 1/√(μL), quadratic losses.

    Parameters
    ----------
    condition
        κ = L/μ, at least 1.
    reduction
        The factor, below 1.
    """
    # a round leaves at most 1 − 0.6 min(x, 1/x) of it for x = γHλ, which lies in [1/√κ, √κ]
    return math.ceil(math.sqrt(condition) / 0.6 * math.log(1.0 / reduction))


def proved_rounds(points: Sequence[Point], settings: AccelerationSettings) -> Array:
    """Return the rounds that the proof allows for each κ: half the target for the mean, half for the noise."""
    found = []
    for cell in (point.cell for point in points if point.cell.part == "condition" and point.cell.recipe == LONG):
        problem = cell.problem(settings.seed)
        optimum = problem.optimum()
        slopes = np.square(problem.client_gradients(optimum)).sum(axis=1)
        start = float(optimum @ optimum) + cell.condition * float(problem.weights @ slopes)
        found.append(enough_rounds(cell.condition, 0.5 * cell.target / start))
    return np.array(found, dtype=np.float64)


# Claims


def claims(points: Sequence[Point], settings: AccelerationSettings) -> list[Claim]:
    """Return every claim of the page about the paper's open question."""
    by_condition = {recipe: line(points, "condition", recipe) for recipe in RECIPES}
    return [
        _exponent("Scaffold with γHL = √κ: rounds grow as √κ", by_condition[LONG], 0.5),
        _exponent("Scaffold with γHL = 1: rounds grow as κ", by_condition[SHORT], 1.0),
        _exponent("ProxSkip: rounds grow as √κ", by_condition[SKIP], 0.5),
        _exponent("FedLin with γHL = 1: rounds grow as κ", by_condition[FEDLIN], 1.0),
        _fedlin_is_bounded(points, settings),
        _below_proved(points, settings),
        _exponent("Scaffold with γHL = √κ: gradients per client fall as 1/N", line(points, "clients", LONG), -1.0),
        _same_rounds(points),
        _as_predicted(points),
        _flattens(points),
    ]


def _exponent(claim: str, found: Line, expected: float) -> Claim:
    if np.isfinite(found.measured).sum() < 3:
        return Claim(claim, "the target is reached in fewer than three cases", False)
    fit = found.fit(found.measured)
    words = f"exponent {fit.slope:.3f}, 95 % interval [{fit.low:.3f}, {fit.high:.3f}]"
    return Claim(claim, words, abs(fit.slope - expected) <= 0.1)


def _fedlin_is_bounded(points: Sequence[Point], settings: AccelerationSettings) -> Claim:
    claim = "FedLin does not reach the target where γHL ≥ √κ, Scaffold does"
    root = math.sqrt(settings.condition_for_lengths)
    found, other = line(points, "length", FEDLIN), line(points, "length", LONG)
    long = found.x >= root
    if root < 16.0 or not long.any():  # otherwise FedLin's local models have no room to go too far
        return Claim(claim, "needs √κ of 16 or more, and γHL above it", None)
    reached = found.x[np.isfinite(found.measured)]
    words = f"FedLin reaches it up to γHL = {reached.max():g}" if reached.size else "FedLin never reaches it"
    words += f", Scaffold up to {other.x[np.isfinite(other.measured)].max():g}; √κ = {root:.1f}"
    holds = bool(np.isnan(found.measured[long]).all() and np.isfinite(other.measured[other.x >= root]).any())
    return Claim(claim, words, holds)


def _below_proved(points: Sequence[Point], settings: AccelerationSettings) -> Claim:
    ratio = line(points, "condition", LONG).measured / proved_rounds(points, settings)
    words = f"{np.nanmin(ratio):.2f} to {np.nanmax(ratio):.2f} of the rounds that the proof for quadratics allows"
    return Claim("Scaffold with γHL = √κ: no more rounds than proved", words, bool((ratio <= 1.0).all()))


def _same_rounds(points: Sequence[Point]) -> Claim:
    rounds = [p.rounds for p in points if p.cell.part == "clients" and p.cell.recipe == LONG]
    words = f"{min(rounds):.1f} to {max(rounds):.1f} rounds"
    holds = bool(max(rounds) / min(rounds) <= 1.5)
    return Claim("Scaffold with γHL = √κ: the rounds do not depend on N", words, holds)


def over_predicted(points: Sequence[Point]) -> Array:
    """Return measured over predicted rounds of Scaffold on quadratic losses."""
    each = [p.rounds / p.predicted for p in points if p.cell.recipe in (SHORT, LONG) and p.cell.part != "logistic"]
    found = np.array(each)
    return found[np.isfinite(found)]


def _as_predicted(points: Sequence[Point]) -> Claim:
    ratio = over_predicted(points)
    words = f"{ratio.min():.2f} to {ratio.max():.2f} times what was predicted, in {ratio.size} cases"
    return Claim("Scaffold: rounds as predicted, within 15 %", words, bool(np.abs(ratio - 1.0).max() <= 0.15))


def _flattens(points: Sequence[Point]) -> Claim:
    claim = "Logistic regression: the speed-up ends, with γHL = √κ at fewer clients than with γHL = 1"
    long, short = line(points, "logistic", LONG), line(points, "logistic", SHORT)
    if not {1000.0, 10000.0} <= set(long.x):
        return Claim(claim, "needs N = 1,000 and 10,000", None)
    falls = []
    for each in (long, short):
        at = dict(zip(each.x, each.measured, strict=True))
        falls.append(at[1000.0] / at[10000.0])
    more = long.measured[-1] / short.measured[-1]
    words = (
        f"from 1,000 to 10,000 clients gradients fall {falls[0]:.2f} and {falls[1]:.2f} times; 1/N would give 10; "
        f"at 10,000 clients γHL = √κ takes {more:.2f} times the gradients"
    )
    return Claim(claim, words, bool(falls[0] < 3.0 and more > 1.0))


# Figure


LOOKS = dict(zip((LONG, SHORT, SKIP, FEDLIN), zip(PALETTE, MARKERS, strict=False), strict=False))


def draw(points: Sequence[Point], settings: AccelerationSettings, files: Sequence[Path]) -> None:
    """Draw measured points ± two standard errors and predicted lines in four panels; to PNG, SVG or PDF."""
    with saved_panels(files, 2, 2, width=10.0, height=8.4) as (figure, axes):
        first, second, third, fourth = axes.ravel()
        _draw_lines(first, points, "condition", RECIPES)
        x, proved = line(points, "condition", LONG).x, proved_rounds(points, settings)
        first.plot(x, proved, color=INK, lw=1.0, ls=":", label="proved for γHL = √κ, quadratic losses")
        first.set(xlabel="condition number κ", ylabel="rounds to ε", title="rounds: √κ or κ")
        _draw_lengths(second, points, settings)
        _draw_lines(third, points, "clients", RECIPES)
        kappa = settings.condition_for_clients
        third.set(title=f"quadratic losses, κ = {kappa:,.0f}: linear speed-up")
        _draw_lines(fourth, points, "logistic", (SHORT, LONG, SKIP))
        condition = next(p.cell.condition for p in points if p.cell.part == "logistic")
        fourth.set(title=f"logistic regression, κ = {condition:,.0f}: bias ends it")
        guides: list[Any] = []
        for axis, found in ((third, line(points, "clients", LONG)), (fourth, line(points, "logistic", LONG))):
            below = 0.6 * found.measured[0] * found.x[0] / found.x
            guides += axis.plot(found.x, below, color=INK, lw=1.0, ls="--", label="1/N")
            axis.set(xlabel="number of clients N", ylabel="gradients per client to ε")
        for axis in axes.ravel():
            axis.set(xscale="log", yscale="log")
            axis.title.set_fontsize(10)
            powers_of_ten(axis)
        third.legend(handles=guides[:1], frameon=False, fontsize=9)
        legend_above(figure, first, columns=3)


def _draw_lines(axis: "Axes", points: Sequence[Point], part: Part, recipes: Sequence[str]) -> None:
    for recipe in recipes:
        found = line(points, part, recipe)
        colour, marker = LOOKS[recipe]
        error = np.minimum(2.0 * np.nan_to_num(found.error), 0.9 * np.nan_to_num(found.measured, nan=1.0))
        axis.errorbar(
            found.x, found.measured, yerr=error, color=colour, marker=marker, ms=5, ls="none", capsize=2,
            label=recipe,
        )  # fmt: skip
        there = np.isfinite(found.predicted)
        if there.any():
            axis.plot(found.x[there], found.predicted[there], color=colour, lw=1.1)


def _draw_lengths(axis: "Axes", points: Sequence[Point], settings: AccelerationSettings) -> None:
    _draw_lines(axis, points, "length", (LONG, SKIP, FEDLIN))
    kappa = settings.condition_for_lengths
    axis.axvline(math.sqrt(kappa), color=INK, lw=1.0, ls="--")
    axis.text(math.sqrt(kappa), 0.98, " √κ", transform=axis.get_xaxis_transform(), va="top", color=INK)
    fedlin = line(points, "length", FEDLIN)
    lost = fedlin.x[np.isnan(fedlin.measured)]
    if lost.size:
        colour = LOOKS[FEDLIN][0]
        axis.axvspan(lost.min() / math.sqrt(2.0), fedlin.x.max() * 1.2, color=colour, alpha=0.12, lw=0)
        axis.text(
            1.1 * math.sqrt(kappa), 0.86, "FedLin does not\nreach ε here", color=colour, fontsize=9, va="top",
            transform=axis.get_xaxis_transform(),
        )  # fmt: skip
    title = f"κ = {kappa:,.0f}: how far clients may go between rounds"
    axis.set(xlabel="γHL", ylabel="rounds to ε", title=title)


def save(points: Sequence[Point], found: Sequence[Claim], settings: AccelerationSettings, out: Path) -> None:
    """Write the figure (PNG, SVG), the points (CSV, Parquet) and the claims (JSON) to a folder."""
    draw(points, settings, [out / "acceleration.png", out / "acceleration.svg"])
    frame = to_frame(points)
    for suffix in ("csv", "parquet"):
        write_frame(out / f"acceleration.{suffix}", frame)
    save_claims(found, settings, out / "claims.json")


# The numbers of the page


QUICK = AccelerationSettings(conditions=(4.0, 8.0, 16.0), clients=(4, 8, 16))
NAMES = {SHORT: "scaffold_short", LONG: "scaffold_long", SKIP: "proxskip", FEDLIN: "fedlin"}
PARTS: tuple[Part, ...] = ("condition", "clients", "logistic")


def figures(points: Sequence[Point], settings: AccelerationSettings) -> dict[str, Any]:
    """Return the numbers of the page, by name."""
    found: dict[str, Any] = {}
    for part in PARTS:
        there = {point.cell.recipe for point in points if point.cell.part == part}
        found[part] = {
            name: _numbers(line(points, part, recipe)) for recipe, name in NAMES.items() if recipe in there
        }
    ratio = over_predicted(points)
    lengths = {NAMES[recipe]: line(points, "length", recipe) for recipe in (LONG, SKIP, FEDLIN)}
    proved = line(points, "condition", LONG).measured / proved_rounds(points, settings)
    return found | {
        "longest": {name: float(each.x[np.isfinite(each.measured)].max()) for name, each in lengths.items()},
        "condition_for_lengths": settings.condition_for_lengths,
        "condition_for_clients": settings.condition_for_clients,
        "logistic_condition": next(p.cell.condition for p in points if p.cell.part == "logistic"),
        "over_predicted": {"least": float(ratio.min()), "most": float(ratio.max()), "cases": ratio.size},
        "over_proved": {"least": float(proved.min()), "most": float(proved.max())},
    }


def _numbers(found: Line) -> dict[str, Any]:
    there = found.measured[np.isfinite(found.measured)]
    numbers: dict[str, Any] = {"first": float(there[0]), "last": float(there[-1])} if there.size else {}
    for name, y in (("measured", found.measured), ("predicted", found.predicted)):
        if np.isfinite(y).sum() >= 3:
            fit = found.fit(y)
            numbers[name] = {"exponent": fit.slope, "low": fit.low, "high": fit.high}
    return numbers


def main() -> None:
    """Measure, print, draw and save."""
    options = measured.parser(__doc__).parse_args()
    settings = QUICK if options.quick else AccelerationSettings()
    out = folder_at(measured.ROOT / "results" / ("quick/acceleration" if options.quick else "acceleration"))
    with progress_bar("Acceleration", None) as advance:
        points = simulate(settings, scratch=folder_at(out / "unfinished"), advance=advance)
    found = claims(points, settings)
    for claim in found:
        print(f"{claim.verdict:10} {claim.claim}: {claim.measured}")
    save(points, found, settings, out)
    if not options.quick:
        image = measured.ROOT / "docs" / "images" / "acceleration.png"
        draw(points, settings, [image])
    note = "Ridge regression on tables and logistic regression on streams, d = 4, B = 1."
    measured.save("acceleration", figures(points, settings), options, note=note)


if __name__ == "__main__":
    main()

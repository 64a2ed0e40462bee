"""Figure 1 of the paper: Scaffold against FedAvg, ridge and logistic, from 10 to 10,000 clients."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedscaffold.benchmarking.fits import ReachedPlateau, reached_plateau
from fedscaffold.core.checks import not_negative, seed_number, whole_number
from fedscaffold.core.display import Advance, part_of
from fedscaffold.core.files import write_frame, write_text
from fedscaffold.core.imports import load_optional
from fedscaffold.core.types import Array
from fedscaffold.engines import Native
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.paper.claims import Claim, check_client_numbers, save_claims, to_markdown
from fedscaffold.planning.prediction import Prediction, predict
from fedscaffold.problems import paper
from fedscaffold.problems.paper import INFORMATIVE, check_informative
from fedscaffold.problems.paper import L2 as PAPER_L2
from fedscaffold.reports.figures import (
    ERROR_LABEL,
    CurvePanel,
    draw_curves,
)
from fedscaffold.simulation import Trace
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.stages.stationarity import Plateau

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["regression", "classification"]
KINDS: tuple[Kind, ...] = ("regression", "classification")
DRAWN = 1000  # most clients of many draws: the exact law takes about a millisecond per client and method
# Each N is another draw of the data: standard deviation of the logarithm of Scaffold's plateau over 40 draws of
# the regression data (0.28, 0.39 and 0.32 at N = 10, 100 and 1,000; docs/explanation/figure1.md)
SPREAD = 0.33
STEP_SIZE, LOCAL_STEPS, ROUNDS, BATCH_SIZE = 0.05, 100, 100, 10  # the paper's
METHODS = (
    Scaffold(step_size=STEP_SIZE, local_steps=LOCAL_STEPS),
    FedAvg(step_size=STEP_SIZE, local_steps=LOCAL_STEPS),
)


@dataclass(frozen=True, eq=False)
class PanelCurve:
    """The runs of one method in one panel of the figure."""

    kind: Kind
    n_clients: int
    method: str
    trace: Trace

    @property
    def reached(self) -> ReachedPlateau:
        """Mean squared error once stationary, or else over the last quarter of the rounds, and which one."""
        return reached_plateau(self.trace)


@dataclass(frozen=True)
class Figure1Settings:
    """Choices for the figure; defaults are the paper's if it gives them.

    Attributes
    ----------
    clients
        Numbers of clients, even, a column of panels each.
    runs, seed, threads
        Runs per curve, the seed of data and runs, and threads (None for all).
    l2
        Penalty of both problems.
    informative
        Informative features of the two halves of the classification data; (2, 2) is scikit-learn's default.
    seeds
        Draws of the regression data, from `seed` on, for the share in which Scaffold's plateau is below FedAvg's.
    """

    clients: Sequence[int] = (10, 100, 1000, 10000)
    runs: int = 3
    seed: int = 0
    l2: float = PAPER_L2
    threads: int | None = None
    informative: tuple[int, int] = INFORMATIVE
    seeds: int = 1

    def __post_init__(self) -> None:
        whole_number("runs", self.runs, least=1)
        whole_number("seeds", self.seeds, least=1)
        seed_number("seed", self.seed)
        not_negative("l2", self.l2)
        check_informative("classification", self.informative)
        check_client_numbers(self.clients, multiple_of=2)


def simulate(
    settings: Figure1Settings, *, scratch: Path, advance: Advance = lambda done, total: None
) -> list[PanelCurve]:
    """Return all curves, panel after panel; runs that an interrupted call left in `scratch` are not run again."""
    total, done, curves = len(KINDS) * len(METHODS) * sum(settings.clients) * ROUNDS, 0, []
    for kind in KINDS:
        for n_clients in sorted(settings.clients):
            features = INFORMATIVE if kind == "regression" else settings.informative
            problem = paper(kind, n_clients=n_clients, l2=settings.l2, seed=settings.seed, informative=features)
            data = f"seed{settings.seed}-l2_{settings.l2:g}-informative{features[0]}_{features[1]}"
            for method in METHODS:
                name = type(method).__name__
                label = f"{kind}-{n_clients}-{name}-runs{settings.runs}-{data}"
                trace = run(
                    problem, method, rounds=ROUNDS, batch_size=BATCH_SIZE, seed=settings.seed,
                    repetitions=settings.runs, engine=Native(threads=settings.threads),
                    checkpoint=scratch / f"{label.lower()}.npz",
                    progress=part_of(advance, done, ROUNDS * n_clients, total),
                )  # fmt: skip
                curves.append(PanelCurve(kind, n_clients, name, trace))
                done += ROUNDS * n_clients
    return curves


def to_frame(curves: Sequence[PanelCurve]) -> "pd.DataFrame":
    """Return one row per kind, number of clients, method, run and round."""
    import pandas as pd

    parts = []
    for curve in curves:
        frame = curve.trace.to_frame().rename(columns={"repetition": "run"})
        for name in ("method", "n_clients", "kind"):
            frame.insert(0, name, getattr(curve, name))
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


class DataDraw(NamedTuple):
    """Exact plateaus of both methods on one draw of the regression data."""

    n_clients: int
    seed: int
    scaffold: Prediction
    fedavg: Prediction

    @property
    def below(self) -> bool:
        """Whether Scaffold's plateau is below FedAvg's."""
        return self.scaffold.mse < self.fedavg.mse


def draws(settings: Figure1Settings, *, advance: Advance = lambda done, total: None) -> list[DataDraw]:
    """Return the exact plateaus of linear regression with the next `seeds` data seeds, for N up to DRAWN."""
    clients = sorted(n for n in settings.clients if n <= DRAWN)
    total, done, found = settings.seeds * sum(clients), 0, []
    for n_clients in clients:
        for seed in range(settings.seed, settings.seed + settings.seeds):
            problem = paper("regression", n_clients=n_clients, l2=settings.l2, seed=seed)
            both = (predict(problem, method, batch_size=BATCH_SIZE) for method in METHODS)
            found.append(DataDraw(n_clients, seed, *both))
            done += n_clients
            advance(done, total)
    return found


class Interval(NamedTuple):
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def shares(found: Sequence[DataDraw]) -> dict[int, Interval]:
    """Return the share of draws with Scaffold's plateau below FedAvg's by N, with Clopper–Pearson intervals."""
    stats = load_optional("scipy.stats", "intervals of shares need SciPy", extra="reproduce")
    result = {}
    for n_clients in sorted({each.n_clients for each in found}):
        below = [each.below for each in found if each.n_clients == n_clients]
        interval = stats.binomtest(sum(below), len(below)).proportion_ci(0.95)
        result[n_clients] = Interval(sum(below) / len(below), float(interval.low), float(interval.high))
    return result


def _factor(numerator: Plateau, denominator: Plateau, *, spread: float = 0.0) -> Interval:
    """Return the ratio, with the noise of the runs and, if given, the spread of log plateaus over draws."""
    value = numerator.mean / denominator.mean
    above, below = (np.hypot(each.standard_error / each.mean, spread) for each in (numerator, denominator))
    width = float(np.exp(1.96 * np.hypot(above, below)))  # 1.96 standard errors on each side
    return Interval(value, value / width, value * width)


def _verdict(found: Iterable[Interval], limit: float) -> bool | None:
    """Return True if every interval lies above a limit, False if one lies below, None if noise decides."""
    each = list(found)
    if all(interval.low > limit for interval in each):
        return True
    return False if any(interval.high < limit for interval in each) else None


Levels = Mapping[int, Plateau]  # by number of clients


def claims(curves: Sequence[PanelCurve], drawn: Sequence[DataDraw] = ()) -> list[Claim]:
    """Return every claim that Section 6 makes about the figure.

    Verdicts come from 95 % intervals, and are None if these cannot decide. In linear regression it depends on the
    draw of the data whether Scaffold's plateau is below FedAvg's; there the claim is about the share of draws.
    """
    levels: dict[tuple[Kind, str], dict[int, Plateau]] = {}
    for curve in curves:
        levels.setdefault((curve.kind, curve.method), {})[curve.n_clients] = curve.reached.plateau
    ridge, logistic = (dict(sorted(levels[kind, "Scaffold"].items())) for kind in KINDS)
    below = {n: _factor(levels["classification", "FedAvg"][n], logistic[n]) for n in logistic}
    least = min(below, key=lambda n: below[n].value)
    return [
        Claim(
            "Classification: Scaffold's plateau is below FedAvg's in all panels",
            f"FedAvg's is {below[least]} times Scaffold's where they are closest, N = {least:,}",
            _verdict(below.values(), 1.0),
        ),
        _below_in_draws(ridge, levels["regression", "FedAvg"], drawn),
        _one_over_n(ridge),
        _last_step("Regression: Scaffold still improves from N = 1,000 to 10,000", ridge, spread=SPREAD),
        _improves(logistic),
        _last_step("Classification: no more improvement from N = 1,000 to 10,000", logistic),
    ]


def _below_in_draws(scaffold: Levels, fedavg: Levels, drawn: Sequence[DataDraw]) -> Claim:
    claim = "Regression: Scaffold's plateau is below FedAvg's in most draws of the data"
    if not drawn:
        below = sum(fedavg[n].mean > scaffold[n].mean for n in scaffold)
        return Claim(claim, f"in this draw in {below} of {len(scaffold)} panels; --seeds 40 draws more", None)
    found = shares(drawn)
    many = len({each.seed for each in drawn})
    measured = (
        f"N = {n:,}: {share.value * many:.0f} of {many} draws, [{share.low:.0%}, {share.high:.0%}]"
        for n, share in found.items()
    )
    return Claim(claim, "; ".join(measured), _verdict(found.values(), 0.5))


def _one_over_n(levels: Levels) -> Claim:
    claim = "Regression: Scaffold's plateau falls as 1/N"
    if len(levels) < 3:
        return Claim(claim, "needs three numbers of clients", None)
    x = np.log(list(levels)) - np.log(list(levels)).mean()
    slope = float(x @ np.log([level.mean for level in levels.values()]) / (x @ x))
    half = 1.96 * SPREAD / float(np.sqrt(x @ x))
    words = f"slope {slope:.3f}, 95 % interval [{slope - half:.3f}, {slope + half:.3f}]"
    if abs(slope + 1.0) > half:
        return Claim(claim, words, False)
    return Claim(claim, words, True if slope + half < 0.0 else None)


def _improves(levels: Levels) -> Claim:
    kept = [n for n in levels if n <= 1000]
    if len(kept) < 2:
        claim = "Classification: Scaffold improves up to N = 1,000"
        return Claim(claim, "needs two numbers of clients up to 1,000", None)
    whole = _factor(levels[kept[0]], levels[kept[-1]])
    steps = (f"{a:,} to {b:,}: {_factor(levels[a], levels[b])} times (1/N: {b / a:g})" for a, b in pairwise(kept))
    claim = f"Classification: Scaffold improves from N = {kept[0]:,} to {kept[-1]:,}"
    return Claim(claim, ", ".join(steps), _verdict([whole], 1.0))


def _last_step(claim: str, levels: Levels, *, spread: float | None = None) -> Claim:
    """With a spread over draws check that the last step improves, else that it does not, where 1/N would."""
    if not {1000, 10000} <= levels.keys():
        return Claim(claim, "needs N = 1,000 and 10,000", None)
    factor = _factor(levels[1000], levels[10000], spread=spread or 0.0)
    measured = f"the plateau at 1,000 is {factor} times that at 10,000; 1/N would give 10"
    if spread is not None:
        return Claim(claim, measured, _verdict([factor], 1.0))
    return Claim(claim, measured, False if factor.low > 1.0 else True if factor.high < 10.0 else None)


def draw(curves: Sequence[PanelCurve], files: Sequence[Path]) -> None:
    """Draw the paper's eight panels: a row per problem, a column per number of clients."""
    titles = {"regression": "linear regression", "classification": "logistic regression"}
    rows: dict[str, dict[int, dict[str, Array]]] = {}
    for curve in curves:
        rows.setdefault(curve.kind, {}).setdefault(curve.n_clients, {})[curve.method] = curve.trace.mse
    panels = [
        [
            CurvePanel(
                title=f"N = {n:,}", y=f"{titles[kind]}\n{ERROR_LABEL}",
                lines={name: (np.arange(mse.shape[1], dtype=np.float64), mse) for name, mse in lines.items()},
            )
            for n, lines in row.items()
        ]
        for kind, row in rows.items()
    ]  # fmt: skip
    draw_curves(panels, files)


def draws_to_frame(found: Sequence[DataDraw]) -> "pd.DataFrame":
    """Return one row per number of clients and draw: variance and squared bias of both methods."""
    import pandas as pd

    parts = [(name, part) for name in ("scaffold", "fedavg") for part in ("variance", "squared_bias")]
    return pd.DataFrame(
        {"n_clients": each.n_clients, "seed": each.seed}
        | {f"{name}_{part}": getattr(getattr(each, name), part) for name, part in parts}
        for each in found
    )


def save(
    curves: Sequence[PanelCurve],
    found: Sequence[Claim],
    settings: Figure1Settings,
    out: Path,
    drawn: Sequence[DataDraw] = (),
) -> None:
    """Write the figure (PNG, SVG), the curves (Parquet, CSV), the claims (JSON, Markdown) and the draws (CSV)."""
    draw(curves, [out / "figure1.png", out / "figure1.svg"])
    frame = to_frame(curves)
    for suffix in ("csv", "parquet"):
        write_frame(out / f"figure1.{suffix}", frame)
    save_claims(found, settings, out / "claims.json")
    write_text(out / "claims.md", to_markdown(found))
    if drawn:
        write_frame(out / "draws.csv", draws_to_frame(drawn))

"""Figure 1 of the paper: Scaffold against FedAvg, ridge and logistic, from 10 to 10,000 clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedscaffold.benchmarking.fits import ReachedPlateau, fit_line, reached_plateau
from fedscaffold.core.checks import not_negative, seed_number, whole_number
from fedscaffold.core.display import Advance, part_of
from fedscaffold.core.files import write_frame, write_text
from fedscaffold.core.types import Array
from fedscaffold.engines import Native
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.paper.claims import Claim, check_client_numbers, save_claims, to_markdown
from fedscaffold.problems import paper
from fedscaffold.problems.paper import L2 as PAPER_L2
from fedscaffold.reports.figures import ERROR_LABEL, CurvePanel, draw_curves
from fedscaffold.simulation import Trace
from fedscaffold.simulation.run_method import run

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["regression", "classification"]
KINDS: tuple[Kind, ...] = ("regression", "classification")
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
    """Numbers of clients, runs, seed, penalty and threads; defaults are the paper's if it gives them."""

    clients: Sequence[int] = (10, 100, 1000, 10000)
    runs: int = 3
    seed: int = 0
    l2: float = PAPER_L2
    threads: int | None = None

    def __post_init__(self) -> None:
        whole_number("runs", self.runs, least=1)
        seed_number("seed", self.seed)
        not_negative("l2", self.l2)
        check_client_numbers(self.clients, multiple_of=2)


def simulate(
    settings: Figure1Settings, *, scratch: Path, advance: Advance = lambda done, total: None
) -> list[PanelCurve]:
    """Return all curves, panel after panel; runs that an interrupted call left in `scratch` are not run again."""
    total, done, curves = len(KINDS) * len(METHODS) * sum(settings.clients) * ROUNDS, 0, []
    for kind in KINDS:
        for n_clients in sorted(settings.clients):
            problem = paper(kind, n_clients=n_clients, l2=settings.l2, seed=settings.seed)
            for method in METHODS:
                name = type(method).__name__
                label = f"{kind}-{n_clients}-{name}-runs{settings.runs}-seed{settings.seed}-l2_{settings.l2:g}"
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


def claims(curves: Sequence[PanelCurve]) -> list[Claim]:
    """Return every claim that Section 6 makes about the figure."""
    plateaus = {(curve.kind, curve.method, curve.n_clients): curve.reached.plateau.mean for curve in curves}
    clients = np.unique([curve.n_clients for curve in curves])
    ridge, logistic = (np.array([plateaus[kind, "Scaffold", n] for n in clients]) for kind in KINDS)
    return [
        _below_fedavg(plateaus, clients.tolist()),
        _one_over_n(clients, ridge),
        _no_floor(clients, ridge),
        _improves(clients, logistic),
        _flattens(dict(zip(clients.tolist(), logistic, strict=True))),
    ]


def _below_fedavg(plateaus: dict[tuple[Kind, str, int], float], clients: Sequence[int]) -> Claim:
    ratios = {(k, n): plateaus[k, "FedAvg", n] / plateaus[k, "Scaffold", n] for k in KINDS for n in clients}
    kind, n_clients = min(ratios, key=lambda key: ratios[key])
    least, most = ratios[kind, n_clients], max(ratios.values())
    measured = f"{least:.2f} to {most:.0f} times below; least in {kind}, N = {n_clients:,}"
    return Claim("Scaffold's plateau is below FedAvg's in all panels", measured, bool(least > 1.0))


def _one_over_n(clients: NDArray[np.int64], plateaus: Array) -> Claim:
    claim = "Regression: Scaffold's plateau falls as 1/N"
    if len(clients) < 3:
        return Claim(claim, "needs three numbers of clients", None)
    fit = fit_line(np.log(clients), np.log(plateaus))
    words = f"slope {fit.slope:.3f}, 95 % interval [{fit.low:.3f}, {fit.high:.3f}]"
    return Claim(claim, words, abs(fit.slope + 1.0) <= 0.15)


def _no_floor(clients: NDArray[np.int64], plateaus: Array) -> Claim:
    claim = "Regression: no floor at the largest N"
    if len(clients) < 2:
        return Claim(claim, "needs two numbers of clients", None)
    scaled = clients * plateaus
    excess = float(scaled[-1] / np.exp(np.log(scaled[:-1]).mean()))
    measured = f"N × plateau at N = {clients[-1]:,} is {excess:.2f} times what smaller N give"
    return Claim(claim, measured, excess < 1.5)


def _improves(clients: NDArray[np.int64], plateaus: Array) -> Claim:
    claim = "Classification: Scaffold improves up to N = 1,000"
    kept = clients <= 1000
    if kept.sum() < 2:
        return Claim(claim, "needs two numbers of clients up to 1,000", None)
    factors = plateaus[kept][:-1] / plateaus[kept][1:]
    steps = zip(clients[kept][:-1], clients[kept][1:], factors, strict=True)
    measured = ", ".join(f"{a:,} to {b:,}: {factor:.1f} times" for a, b, factor in steps)
    return Claim(claim, measured, bool((factors > 1.5).all()))


def _flattens(plateaus: dict[int, float]) -> Claim:
    claim = "Classification: the improvement flattens from N = 1,000 to 10,000"
    if not {1000, 10000} <= plateaus.keys():
        return Claim(claim, "needs N = 1,000 and 10,000", None)
    factor = plateaus[1000] / plateaus[10000]
    measured = f"improves {factor:.2f} times where 1/N would give 10; flattened, not yet flat"
    if factor < 1.1:
        measured = f"changes {factor:.2f} times where 1/N would give 10"
    return Claim(claim, measured, bool(factor < 2.0))


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


def save(curves: Sequence[PanelCurve], found: Sequence[Claim], settings: Figure1Settings, out: Path) -> None:
    """Write the figure (PNG, SVG), the curves (Parquet, CSV) and the claims (JSON, Markdown) to a folder."""
    draw(curves, [out / "figure1.png", out / "figure1.svg"])
    frame = to_frame(curves)
    for suffix in ("csv", "parquet"):
        write_frame(out / f"figure1.{suffix}", frame)
    save_claims(found, settings, out / "claims.json")
    write_text(out / "claims.md", to_markdown(found))

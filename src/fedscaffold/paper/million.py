"""Plateaus from ten clients to a million: ridge regression's falls as 1/N, logistic regression's reaches a floor.

Both on streamed clients, with B = 1 and H = 10, features of equal variance so that a hundred rounds suffice, and a
start at θ* for the same reason; the control variates start at zero. Small numbers of clients run many times, large
ones, whose plateaus hardly vary, once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.benchmarking import Sweep
from fedscaffold.benchmarking.fits import fit_saturation
from fedscaffold.benchmarking.sweeps import SweepRow, SweepTable
from fedscaffold.core.checks import seed_number
from fedscaffold.core.display import Advance, part_of
from fedscaffold.core.files import write_frame
from fedscaffold.core.protocols import Engine
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.paper.claims import Claim, check_client_numbers, save_claims
from fedscaffold.problems import LogisticStream, RidgeStream
from fedscaffold.reports.figures import PlateauSeries, draw_plateaus

CLIENTS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
STREAMS = {
    "ridge-stream": Scaffold(step_size=0.02, local_steps=10),
    "logistic-stream": Scaffold(step_size=0.05, local_steps=10),
}
PROBLEMS: dict[str, Callable[..., Any]] = {
    "ridge-stream": partial(RidgeStream, dim=20, spectrum=np.ones(20)),
    "logistic-stream": partial(LogisticStream, dim=20, spectrum=np.ones(20)),
}
TITLES = {"ridge-stream": "linear regression", "logistic-stream": "logistic regression"}
ROUNDS = 150  # from the optimum, plateaus are reached in a third of them
MODELS = 100_000  # clients times repetitions that run side by side: plateaus of more clients hardly vary
CLOSE = 0.2  # largest relative difference of measured and predicted numbers: three or four standard errors


@dataclass(frozen=True, kw_only=True)
class MillionSettings:
    """Numbers of clients to run, and the seed of data and runs."""

    clients: Sequence[int] = CLIENTS
    seed: int = 0

    def __post_init__(self) -> None:
        seed_number("seed", self.seed)
        check_client_numbers(self.clients, fewest=3)


def simulate(
    settings: MillionSettings,
    *,
    out: Path,
    engine: str | Engine = "auto",
    advance: Advance = lambda done, total: None,
) -> dict[str, SweepTable]:
    """Measure all plateaus of each problem, and keep them in a folder, from which an interrupted call resumes."""
    clients = sorted(settings.clients)
    total, before, tables = len(STREAMS) * sum(clients), 0, {}
    for name, method in STREAMS.items():
        rows: list[SweepRow] = []
        for n in clients:
            study = Sweep(
                problem=PROBLEMS[name],
                grid={"n_clients": n, "seed": settings.seed},
                method=method,
                batch_size=1,
                rounds=ROUNDS,
                repetitions=max(1, min(30, MODELS // n)),
                seed=settings.seed,
                start="optimum",
            )
            progress = part_of(advance, before, n, total)
            rows += study.run(out=out / name, engine=engine, predict=True, progress=progress).rows
            before += n
        tables[name] = SweepTable(rows, name)
        write_frame(out / name / "sweep.parquet", tables[name].to_frame())
    advance(total, total)
    return tables


def lines(tables: dict[str, SweepTable]) -> dict[str, PlateauSeries]:
    """Return plateaus by number of clients, for each problem."""
    found = {}
    for name, table in tables.items():  # repetitions follow from the number of clients
        rows = [replace(row, settings={**row.settings, "repetitions": None}) for row in table.rows]
        (found[name],) = SweepTable(rows).series().values()
    return found


def claims(found: dict[str, PlateauSeries]) -> list[Claim]:
    """Return the five claims of the figure, against plateaus by problem."""
    ridge, logistic = found["ridge-stream"], found["logistic-stream"]
    return [_falls(ridge), _no_floor(ridge), _floor(logistic), *(_as_predicted(*each) for each in found.items())]


def _falls(line: PlateauSeries) -> Claim:
    slope = float(np.polyfit(np.log(line.x), np.log(line.plateau), 1, w=line.plateau / line.error)[0])
    span = f"N = {line.x.min():,.0f} to {line.x.max():,.0f}"
    return Claim("Ridge stream: the plateau falls as 1/N", f"slope {slope:.3f}, {span}", abs(slope + 1.0) < 0.15)


def _no_floor(line: PlateauSeries) -> Claim:
    fit = fit_saturation(line.x, line.plateau, line.error)
    assert fit is not None
    level = f"a floor of {fit.floor:.1g} ± {fit.floor_error:.1g}, smallest plateau {line.plateau.min():.2g}"
    return Claim("Ridge stream: no floor", level, fit.n_clients is None)


def _floor(line: PlateauSeries) -> Claim:
    claim = f"Logistic stream: saturates where predicted, within {100 * CLOSE:.0f} %"
    fit, predicted = fit_saturation(line.x, line.plateau, line.error), line.saturation[1]
    if fit is None or fit.n_clients is None or fit.standard_error is None or predicted is None:
        return Claim(claim, "no floor is seen up to this number of clients", None)
    ratio = fit.n_clients / predicted
    measured = f"N = {fit.n_clients:,.0f} ± {fit.standard_error:,.0f}, predicted {predicted:,.0f}"
    return Claim(claim, f"{measured}: {ratio:.2f} times", abs(ratio - 1.0) < CLOSE)


def _as_predicted(name: str, line: PlateauSeries) -> Claim:
    ratio: Array = line.plateau / line.predicted
    worst = int(np.abs(np.log(ratio)).argmax())
    span = f"{ratio.min():.2f} to {ratio.max():.2f} times what was predicted"
    most = f"{ratio[worst]:.2f} ± {line.error[worst] / line.predicted[worst]:.2f}, at N = {line.x[worst]:,.0f}"
    claim = f"{name.replace('-', ' ').capitalize()}: plateaus as predicted, within {100 * CLOSE:.0f} %"
    return Claim(claim, f"{span}; furthest {most}", bool(np.abs(ratio - 1.0).max() < CLOSE))


def save(found: dict[str, PlateauSeries], claims: Sequence[Claim], settings: MillionSettings, out: Path) -> None:
    """Draw measured and predicted plateaus, one panel for each problem (PNG, SVG), and write the claims (JSON)."""
    panels = {
        f"{TITLES[name]}, γ = {STREAMS[name].step_size:g}, H = 10, B = 1": {"Scaffold": line}
        for name, line in found.items()
    }
    draw_plateaus(panels, [out / "million.png", out / "million.svg"])
    save_claims(claims, settings, out / "claims.json")

"""Plateaus from ten clients to a million: ridge regression's falls as 1/N, logistic regression's reaches a floor.

Both on streamed clients, with B = 1 and H = 10, features of equal variance so that a hundred rounds suffice, and a
start at θ* for the same reason; the control variates start at zero. Small numbers of clients run many times, large
ones, whose plateaus hardly vary, once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.benchmarking import Family, Sweep, sweep
from fedscaffold.benchmarking.client_numbers import check_client_numbers
from fedscaffold.benchmarking.sweeps import saturation
from fedscaffold.benchmarking.sweeps.figure import series
from fedscaffold.core.checks import seed_number
from fedscaffold.core.display.progress import Advance
from fedscaffold.core.protocols import Engine
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.paper.claims import Claim
from fedscaffold.reports.plateaus import PlateauSeries
from fedscaffold.reports.plateaus import draw as draw_panels

if TYPE_CHECKING:
    import pandas as pd

CLIENTS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
STREAMS = {
    "ridge-stream": Scaffold(step_size=0.02, local_steps=10),
    "logistic-stream": Scaffold(step_size=0.05, local_steps=10),
}
TITLES = {"ridge-stream": "linear regression", "logistic-stream": "logistic regression"}
ROUNDS, BATCH_SIZE = 150, 1
MODELS, MOST_SEEDS = 100_000, 30  # clients times seeds that run side by side, at least one seed
CLOSE = 0.2  # measured and predicted saturation
STEEP = 0.15  # of the slope −1


@dataclass(frozen=True, kw_only=True)
class MillionSettings:
    """Numbers of clients to run, and the seed of data and runs."""

    clients: Sequence[int] = CLIENTS
    seed: int = 0

    def __post_init__(self) -> None:
        seed_number("seed", self.seed)
        check_client_numbers(self.clients, fewest=saturation.FEWEST)


def simulate(
    settings: MillionSettings,
    *,
    out: Path,
    engine: str | Engine = "auto",
    advance: Advance = lambda done, total: None,
) -> "pd.DataFrame":
    """All plateaus, in Parquet files of a folder, where an interrupted call goes on."""
    import pandas as pd

    grids = [
        (name, Sweep(
            family=Family(name=name, settings={"spectrum": 1.0}, seed=settings.seed),
            clients=(n,),
            methods=(method,),
            batch_sizes=(BATCH_SIZE,),
            rounds=ROUNDS,
            seeds=max(1, min(MOST_SEEDS, MODELS // n)),
            seed=settings.seed,
            start="optimum",
        ))
        for name, method in STREAMS.items()
        for n in sorted(settings.clients)
    ]  # fmt: skip
    total = sum(cell.steps() for _, grid in grids for cell in grid.cells())
    before, frames = 0.0, []
    for name, grid in grids:
        own = sum(cell.steps() for cell in grid.cells())
        progress = _counting(advance, before, own, total)
        frames.append(sweep(grid, out=out / f"{name}.parquet", engine=engine, predict=True, progress=progress))
        before += own
    advance(int(total), int(total))
    return pd.concat(frames, ignore_index=True)


def _counting(advance: Advance, before: float, own: float, total: float) -> Advance:
    """Progress of one cell as progress of the whole."""
    return lambda done, all: advance(int(before + own * done / max(all, 1)), int(total))


def lines(frame: "pd.DataFrame") -> dict[str, PlateauSeries]:
    """Plateaus by number of clients, for each problem."""
    return {name: series(frame[frame["problem"] == name]) for name in STREAMS}


def claims(found: dict[str, PlateauSeries]) -> list[Claim]:
    """The five claims of the figure, against plateaus by problem."""
    ridge, logistic = found["ridge-stream"], found["logistic-stream"]
    return [_falls(ridge), _no_floor(ridge), _floor(logistic), *(_as_predicted(*each) for each in found.items())]


def _falls(line: PlateauSeries) -> Claim:
    slope = float(np.polyfit(np.log(line.clients), np.log(line.plateau), 1, w=line.plateau / line.error)[0])
    span = f"N = {line.clients.min():,.0f} to {line.clients.max():,.0f}"
    return Claim("Ridge stream: the plateau falls as 1/N", f"slope {slope:.3f}, {span}", abs(slope + 1.0) < STEEP)


def _no_floor(line: PlateauSeries) -> Claim:
    fit = saturation.fit_saturation(line.clients, line.plateau, line.error)
    assert fit is not None
    level = f"a floor of {fit.floor:.1g} ± {fit.floor_error:.1g}, smallest plateau {line.plateau.min():.2g}"
    return Claim("Ridge stream: no floor", level, fit.n_clients is None)


def _floor(line: PlateauSeries) -> Claim:
    claim = f"Logistic stream: saturates where predicted, within {100 * CLOSE:.0f} %"
    fit, predicted = saturation.fit_saturation(line.clients, line.plateau, line.error), line.saturation[1]
    if fit is None or fit.n_clients is None or fit.standard_error is None or predicted is None:
        return Claim(claim, "no floor is seen up to this number of clients", None)
    ratio = fit.n_clients / predicted
    measured = f"N = {fit.n_clients:,.0f} ± {fit.standard_error:,.0f}, predicted {predicted:,.0f}"
    return Claim(claim, f"{measured}: {ratio:.2f} times", abs(ratio - 1.0) < CLOSE)


def _as_predicted(name: str, line: PlateauSeries) -> Claim:
    ratio: Array = line.plateau / line.predicted
    worst = int(np.abs(np.log(ratio)).argmax())
    span = f"{ratio.min():.2f} to {ratio.max():.2f} times what was predicted"
    most = (
        f"{ratio[worst]:.2f} ± {line.error[worst] / line.predicted[worst]:.2f}, at N = {line.clients[worst]:,.0f}"
    )
    claim = f"{name.replace('-', ' ').capitalize()}: plateaus as predicted, within {100 * CLOSE:.0f} %"
    return Claim(claim, f"{span}; furthest {most}", bool(np.abs(ratio - 1.0).max() < CLOSE))


def draw(found: dict[str, PlateauSeries], files: Sequence[Path]) -> None:
    """Draw measured and predicted plateaus by the number of clients, one panel for each problem."""
    panels = {
        f"{TITLES[name]}, γ = {STREAMS[name].step_size:g}, H = 10, B = 1": {"Scaffold": line}
        for name, line in found.items()
    }
    draw_panels(panels, files)

"""Methods compared at equal cost, what it costs to reach a target error, and sweeps over grids of settings.

- `compare` runs several methods on one problem with the same random draws; `cheapest`, `best` and `growth` say
  what each needs to reach a target, which ends with the smallest error, and how costs grow.
- `sweep` runs every cell of a grid `Sweep` and returns a table of plateaus; `fit_saturation` says from which
  number of clients on more clients stop helping.
- `audit_privacy` attacks a private run and bounds ε from below.
"""

from fedscaffold.benchmarking.comparison import compare, nested_problems
from fedscaffold.benchmarking.costs import Cost, Growth, LineFit, best, cheapest, fit_line, growth, holds_from
from fedscaffold.benchmarking.curves import Curve, curves_to_frame
from fedscaffold.benchmarking.newton import FedNewton
from fedscaffold.benchmarking.privacy_audit import Audit, audit_privacy
from fedscaffold.benchmarking.sweeps.cells import SweepRow
from fedscaffold.benchmarking.sweeps.grid import Cell, Family, Sweep
from fedscaffold.benchmarking.sweeps.loop import sweep
from fedscaffold.benchmarking.sweeps.saturation import Saturation, fit_saturation, predict_saturation

__all__ = [
    "Audit",
    "Cell",
    "Cost",
    "Curve",
    "Family",
    "FedNewton",
    "Growth",
    "LineFit",
    "Saturation",
    "Sweep",
    "SweepRow",
    "audit_privacy",
    "best",
    "cheapest",
    "compare",
    "curves_to_frame",
    "fit_line",
    "fit_saturation",
    "growth",
    "holds_from",
    "nested_problems",
    "predict_saturation",
    "sweep",
]


def __dir__() -> list[str]:
    return __all__

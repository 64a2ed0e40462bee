"""Methods compared at equal cost, sweeps over grids of settings, and an audit of privacy.

- `compare` runs several methods on one problem with the same random draws and returns a `MethodComparison`: the
  cost of each method to reach a target, the best of each, tables and figures.
- `Sweep` takes a function that makes problems and a grid of settings; its `run` returns a table of plateaus.
  `fit_saturation` finds the number of clients from which on more clients stop helping.
- `audit_privacy` attacks a private run and bounds ε from below.
"""

from fedscaffold.benchmarking.comparison import FedNewton, compare
from fedscaffold.benchmarking.fits import fit_line, fit_saturation
from fedscaffold.benchmarking.privacy_audit import Audit, audit_privacy
from fedscaffold.benchmarking.sweeps import Sweep

__all__ = [
    "Audit",
    "FedNewton",
    "Sweep",
    "audit_privacy",
    "compare",
    "fit_line",
    "fit_saturation",
]


def __dir__() -> list[str]:
    return __all__

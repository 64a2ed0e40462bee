"""How the clients' local steps are computed.

`reference` (plain NumPy) defines what is right, `numba` is fast and the default, `jax` differentiates any loss,
`ray` divides the clients among workers, on one machine or many.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from fedscaffold.core.checks import given
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.imports import load_on_demand
from fedscaffold.core.protocols import Engine, HasBatchLoss

if TYPE_CHECKING:
    from fedscaffold.engines.jax_.engine import Jax
    from fedscaffold.engines.numba_.engine import Numba
    from fedscaffold.engines.ray_.engine import Ray
    from fedscaffold.engines.reference import Reference

__all__ = ["Jax", "Numba", "Ray", "Reference", "choose_engine"]

__getattr__ = load_on_demand(
    __name__,
    {"Jax": "jax_.engine", "Numba": "numba_.engine", "Ray": "ray_.engine", "Reference": "reference"},
)
CLASS_OF = {"numba": "Numba", "reference": "Reference", "jax": "Jax", "ray": "Ray"}


def choose_engine(engine: str | Engine, problem: Any = None, *, anchored: bool = False) -> Engine:
    """The engine of that name, the engine itself, or with "auto" the fastest one that can run the problem.

    "auto" takes Numba where it has a kernel for the problem's loss (and, for methods that subtract gradients at an
    anchor, one that does so), else JAX for a loss that JAX can differentiate, else the reference engine.

    Parameters
    ----------
    engine
        "auto", "numba", "jax", "reference", "ray", or an engine such as `engines.Numba(threads=1)`.
    problem
        The problem to run, for "auto".
    anchored
        Whether the method subtracts gradients at an anchor, as LocalSvrg and VRProxSkip do, for "auto".

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.engines.choose_engine("auto", fs.problems.RidgeStream(n_clients=2, dim=3)).name
    'numba-float64'
    >>> fs.engines.choose_engine("reference")
    Reference(secret_noise=False)
    """
    if isinstance(engine, str):
        if engine == "auto":
            numba = _make("numba")
            if problem is None or numba.supports(problem, anchored=anchored):
                return numba
            return _make("jax" if isinstance(problem, HasBatchLoss) else "reference")
        if engine in CLASS_OF:
            return _make(engine)
    elif not isinstance(engine, type | os.PathLike) and isinstance(engine, Engine):  # a path has open and name too
        return engine
    names = ", ".join(map(repr, ("auto", *CLASS_OF)))
    raise InvalidInput(f"engine must be one of {names}, or an engine; got {given(engine)}")


def _make(name: str) -> Any:
    """The engine of that name with its default settings."""
    return getattr(sys.modules[__name__], CLASS_OF[name])()


def __dir__() -> list[str]:
    return __all__

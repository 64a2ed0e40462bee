"""How the clients' local steps are computed.

`reference` (plain NumPy) defines what is right, `native` (compiled) is fast and the default, `jax` differentiates
any loss, `torch` runs PyTorch modules, `ray` divides the clients among workers, on one machine or many.
"""

import os
import sys
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from fedscaffold.core.checks import given
from fedscaffold.core.errors import EngineFailed, InvalidInput
from fedscaffold.core.imports import load_on_demand
from fedscaffold.core.protocols import Engine, HasBatchLoss

if TYPE_CHECKING:
    from fedscaffold.engines.jax_.engine import Jax
    from fedscaffold.engines.native.engine import Native
    from fedscaffold.engines.ray_ import Ray
    from fedscaffold.engines.reference import Reference
    from fedscaffold.engines.torch_ import Torch

__all__ = ["Jax", "Native", "Ray", "Reference", "Torch", "choose_engine"]

__getattr__ = load_on_demand(
    __name__,
    {
        "Jax": "jax_.engine",
        "Native": "native.engine",
        "Ray": "ray_",
        "Reference": "reference",
        "Torch": "torch_",
    },
)
CLASS_OF = {"native": "Native", "reference": "Reference", "jax": "Jax", "torch": "Torch", "ray": "Ray"}


def choose_engine(engine: str | Engine, problem: Any = None, *, anchored: bool = False) -> Engine:
    """Return the engine of that name, the engine itself, or with "auto" the fastest one that can run the problem.

    "auto" takes the native engine if it knows the problem's loss (and, for methods that subtract gradients at an
    anchor, how to do so), else JAX or PyTorch for a loss that they differentiate, else the reference engine.

    Parameters
    ----------
    engine
        "auto", "native", "jax", "torch", "reference", "ray", or an engine such as `engines.Native(threads=1)`.
    problem
        The problem to run, for "auto".
    anchored
        Whether the method subtracts gradients at an anchor, as LocalSvrg and VRProxSkip do, for "auto".

    Returns
    -------
    Engine
        The engine.

    Raises
    ------
    InvalidInput
        If `engine` is neither a name nor an engine.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.engines.choose_engine("auto", fs.problems.RidgeStream(n_clients=2, dim=3)).name
    'native-float64'
    >>> fs.engines.choose_engine("reference")
    Reference(secret_noise=False)
    """
    if isinstance(engine, str):
        if engine == "auto":
            native = _make("native")
            if problem is None or native.supports(problem, anchored=anchored):
                return native if _is_loaded() else _make("reference")
            return _make(problem.engine if isinstance(problem, HasBatchLoss) else "reference")
        if engine in CLASS_OF:
            return _make(engine)
        if engine == "numba":
            Numba()
    elif not isinstance(engine, type | os.PathLike) and isinstance(engine, Engine):  # a path has open and name too
        return engine
    names = ", ".join(map(repr, ("auto", *CLASS_OF)))
    raise InvalidInput(f"engine must be one of {names}, or an engine; got {given(engine)}")


def Numba(*_: Any, **__: Any) -> NoReturn:
    """Raise: the native engine has replaced this one."""
    raise InvalidInput("the numba engine was replaced by a compiled one; use engine='native' or engines.Native")


def _make(name: str) -> Any:
    """Return the engine of that name with its default settings."""
    return getattr(sys.modules[__name__], CLASS_OF[name])()


@cache
def _is_loaded() -> bool:
    """Return whether the compiled library can be loaded; warn, once, if it cannot."""
    from fedscaffold.engines.native import library

    try:
        library.load()
    except EngineFailed as error:
        warnings.warn(f"{error}; the slower reference engine is used instead", RuntimeWarning, stacklevel=4)
        return False
    return True


def __dir__() -> list[str]:
    return __all__

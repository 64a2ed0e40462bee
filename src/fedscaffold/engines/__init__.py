"""How clients' local steps run.

`reference` defines what is right, `numba` is fast and the default, `jax` differentiates any loss, `ray` has the
clients on many machines.
"""

from collections.abc import Callable

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Engine
from fedscaffold.engines.jax_.engine import Jax
from fedscaffold.engines.numba_.engine import Numba
from fedscaffold.engines.ray_.engine import Ray
from fedscaffold.engines.reference import Reference

__all__ = ["Jax", "Numba", "Ray", "Reference", "resolve"]

BY_NAME: dict[str, Callable[[], Engine]] = {
    "auto": Numba,
    "numba": Numba,
    "reference": Reference,
    "jax": Jax,
    "ray": Ray,
}


def resolve(engine: str | Engine) -> Engine:
    """The engine of that name, or the engine itself."""
    if isinstance(engine, str) and engine in BY_NAME:
        return BY_NAME[engine]()
    if isinstance(engine, str) or not hasattr(engine, "open"):
        raise InvalidInput(f"unknown engine {engine!r}; choose one of {', '.join(map(repr, BY_NAME))}")
    return engine

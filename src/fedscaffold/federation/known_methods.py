"""Methods by name: the classes that a run's configuration may use.

A configuration carries a class name and plain settings. A node never imports a module because a server names it;
it knows the library's methods, methods that installed distributions advertise under the entry point group
"fedscaffold.methods", and methods that its app passes.
"""

import dataclasses
import json
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from fedscaffold import methods as library
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.simulation.block import message_length

GROUP = "fedscaffold.methods"


class UnknownMethod(InvalidInput):
    """A method whose class is not known at this node."""


def find_method(name: str, passed: Sequence[type[Method]] = ()) -> type[Method]:
    """Return the class of that name: the library's, a passed one, or an installed distribution's."""
    own = {method.__name__: method for method in passed}
    builtin = getattr(library, name, None) if name in library.__all__ else None
    if builtin is not None:
        if own.get(name, builtin) is not builtin:
            raise InvalidInput(f"fedscaffold has a method called {name}; give your class another name")
        return builtin
    if name in own:
        return own[name]
    for found in entry_points(group=GROUP, name=name):
        try:
            return found.load()
        except (ImportError, AttributeError) as error:
            raise UnknownMethod(f"the method {name} is advertised as {found.value!r}, but: {error}") from error
    raise UnknownMethod(
        f"the method {name} is not known here: install the package that advertises it under the entry point group "
        f"{GROUP!r}, or pass its class to the client's app, client_app(..., methods=[{name}])"
    )


def check_method(method: Method) -> None:
    """Raise if clients could not build the method from its class name and its settings."""
    if not dataclasses.is_dataclass(method) or isinstance(method, type) or not hasattr(method, "update_clients"):
        raise InvalidInput(
            "method must be a dataclass with the interface of fedscaffold.core.protocols.Method, such as "
            f"Scaffold(step_size=0.05, local_steps=100); got {method!r}"
        )
    kind, description = type(method), describe_method(method)
    if message_length(method, 1) != 1:
        raise InvalidInput(
            f"{kind.__name__} cannot run on a federation, since its messages are longer than a model; use "
            "Scaffold, Scallion or ProxSkip"
        )
    find_method(kind.__name__, [kind])
    try:
        text = json.dumps(description, allow_nan=False, default=plain_number)
        rebuilt = build_method(json.loads(text), [kind])
        same = all(getattr(rebuilt, name) == value for name, value in description["settings"].items())
    except (TypeError, ValueError, AttributeError):
        same = False
    if not same:
        raise InvalidInput(
            f"{kind.__name__} cannot run on a federation, since clients cannot build it from JSON: its fields "
            "must be numbers, text, or sequences of them that it accepts as lists"
        )


def describe_method(method: Any) -> dict[str, Any]:
    """Return class name and settings of a method, from which `build_method` makes an equal one."""
    settings = {field.name: getattr(method, field.name) for field in dataclasses.fields(method) if field.init}
    return {"name": type(method).__name__, "settings": settings}


def build_method(description: dict[str, Any], passed: Sequence[type[Method]] = ()) -> Method:
    """Return the method that `describe_method` described; raise if its class is not known."""
    return find_method(description["name"], passed)(**description["settings"])


def plain_number(item: Any) -> Any:
    """Return a NumPy number as Python's, for JSON; raise TypeError for anything else."""
    if isinstance(item, np.generic):
        return item.item()
    raise TypeError(f"{item!r} is not a number or text")

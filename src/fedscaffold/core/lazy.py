"""Packages whose public names are loaded when they are first used.

A Flower client is a new process for every message, and most of what a message costs is importing: a package that
loads each name's module on demand lets such a process pay for what it uses.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def load_on_demand(package: str, module_of: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports the module of a public name and returns the name's value.

    Modules of the package are found as well, as if they had been imported: `fedscaffold.methods.compression`.

    Parameters
    ----------
    package
        Name of the package.
    module_of
        The module inside the package that defines each name. No module may be called like a name: once such a
        module is imported, Python finds it in place of the name.
    """

    def load(name: str) -> Any:
        if name in module_of:
            found = getattr(import_module(f"{package}.{module_of[name]}"), name)
        elif not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            found = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, found)  # the next use finds it there
        return found

    return load

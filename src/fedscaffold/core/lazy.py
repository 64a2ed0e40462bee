"""Packages whose public names are loaded when they are first used.

A Flower client is a new process for every message, and most of what a message costs is importing: a package that
loads each name's module on demand lets such a process pay for what it uses.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def load_on_demand(package: str, module_of: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`, which imports the module of a public name and returns the name's value.

    Parameters
    ----------
    package
        Name of the package.
    module_of
        The module inside the package that defines each name. No module may be called like a name: once such a
        module is imported, Python finds it in place of the name.
    """

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, found)  # the next use finds it there
        return found

    return load

"""Modules that are imported when they are needed: public names of a package, and optional packages."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedscaffold.core.errors import MissingDependency

EXTRAS = {
    "cryptography": ("secure sums and keys need cryptography", "secure"),
    "flwr": ("federations need Flower", "flower"),
    "pydantic": ("federations and studies need pydantic", "study"),
    "scipy": ("statistics of tables need SciPy", "data"),
    "starlette": ("the live page needs a web server", "dashboard"),
    "uvicorn": ("the live page needs a web server", "dashboard"),
}
"""Packages that modules import at their top: the feature that needs each, and the extra that installs it."""


def load_on_demand(package: str, module_of: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`, which imports the module of a public name and returns the name's value.

    Modules of the package are found as well, as if they had been imported: `fedscaffold.methods.compression`.

    Parameters
    ----------
    package
        Name of the package.
    module_of
        The module that defines each name, relative to the package: "app", or ".federation" for a module beside the
        package. No module may be called like a name: once such a module is imported, Python finds it in place of
        the name.
    """

    def load(name: str) -> Any:
        try:
            if name in module_of:
                found = getattr(import_module(f".{module_of[name]}", package), name)
            elif not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
                found = import_module(f"{package}.{name}")
            else:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
        except ModuleNotFoundError as error:
            raise missing_package(error) from error
        setattr(sys.modules[package], name, found)  # the next use finds it there
        return found

    return load


def missing_package(error: ImportError) -> ImportError:
    """Return the error with what to install if an optional package is missing, otherwise the same error."""
    needed = EXTRAS.get((error.name or "").split(".")[0])
    return error if needed is None else missing_extra(needed[0], extra=needed[1])


def missing_extra(needed_by: str, *, extra: str) -> MissingDependency:
    """Return the error for a missing package, from the feature that needs it: "figures need matplotlib"."""
    return MissingDependency(
        f"{needed_by}; pip install 'fedscaffold[{extra}]' (from a checkout: pip install -e '.[{extra}]')"
    )


def load_optional(module: str, needed_by: str, *, extra: str) -> Any:
    """Return a module of an optional package; raise `missing_extra` if the package is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise missing_extra(needed_by, extra=extra) from error

"""Modules that are imported when they are needed: public names of a package, and optional packages."""

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedscaffold.core.errors import MissingDependency


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


def missing_extra(needed_by: str, *, extra: str) -> MissingDependency:
    """Return the error for a missing package.

    Parameters
    ----------
    needed_by
        The feature that needs it, with a verb: "figures need matplotlib".
    extra
        The extra of fedscaffold that installs it.
    """
    return MissingDependency(
        f"{needed_by}; pip install 'fedscaffold[{extra}]' (from a checkout: pip install -e '.[{extra}]')"
    )


def load_optional(module: str, needed_by: str, *, extra: str) -> Any:
    """Import a module of an optional package.

    Parameters
    ----------
    module
        Name of the module, such as "matplotlib.pyplot".
    needed_by, extra
        The feature that needs it, and the extra that installs it; see `missing_extra`.

    Returns
    -------
    The module.

    Raises
    ------
    MissingDependency
        If the package is not installed.

    Examples
    --------
    >>> from fedscaffold.core.imports import load_optional
    >>> load_optional("json", "files need json", extra="data").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise missing_extra(needed_by, extra=extra) from error

"""Optional packages: imported where they are needed; where they are missing, a sentence says what to install."""

import importlib
from typing import Any

from fedscaffold.core.errors import MissingDependency


def load_optional(module: str, needed_by: str, *, extra: str) -> Any:
    """Import a module of an optional package.

    Parameters
    ----------
    module
        Name of the module, such as "matplotlib.pyplot".
    needed_by
        What needs it, with a verb: "figures need matplotlib".
    extra
        The extra of fedscaffold that installs it.

    Raises
    ------
    MissingDependency
        If the package is not installed.

    Examples
    --------
    >>> from fedscaffold.core.optional import load_optional
    >>> load_optional("json", "files need json", extra="data").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingDependency(f"{needed_by}; pip install 'fedscaffold[{extra}]'") from error

"""Optional packages, imported when they are needed; if one is missing, the error says how to install it."""

import importlib
from typing import Any

from fedscaffold.core.errors import MissingDependency


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
    >>> from fedscaffold.core.optional import load_optional
    >>> load_optional("json", "files need json", extra="data").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise missing_extra(needed_by, extra=extra) from error

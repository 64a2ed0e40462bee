"""Where a result came from."""

import dataclasses
import os
import platform
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("fedscaffold", "numpy", "scipy", "numba", "jax", "optax")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute; "not installed" where one is missing."""
    return {"python": platform.python_version(), **{package: _version(package) for package in PACKAGES}}


@cache
def _version(package: str) -> str:
    """Version of an installed package; reading its metadata takes milliseconds, so it is read once."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def machine() -> dict[str, Any]:
    """The kind of machine; nothing that names it."""
    return {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()}


def describe(item: Any) -> dict[str, Any]:
    """The type's name and the fields, of a dataclass or of a user's own class; the same of dataclasses in them.

    What a dataclass leaves out of its repr is left out here too.
    """
    if not _is_dataclass(item):
        return {"name": type(item).__name__, **vars(item)}
    shown = {field.name: getattr(item, field.name) for field in dataclasses.fields(item) if field.repr}
    return {
        "name": type(item).__name__,
        **{name: describe(value) if _is_dataclass(value) else value for name, value in shown.items()},
    }


def _is_dataclass(item: Any) -> bool:
    return dataclasses.is_dataclass(item) and not isinstance(item, type)


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def origin() -> dict[str, Any]:
    """Versions, machine and time, for files that say where they came from."""
    return {"versions": versions(), "machine": machine(), "finished": now()}

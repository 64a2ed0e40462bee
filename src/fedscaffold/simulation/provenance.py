"""Where a result came from."""

import dataclasses
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("fedscaffold", "numpy", "scipy", "numba", "jax", "optax")


def versions() -> dict[str, str]:
    """Versions of Python and of what computes."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


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

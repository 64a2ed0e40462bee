"""The origin of a result: versions, machine, settings and time."""

import dataclasses
import os
import platform
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("fedscaffold", "numpy", "scipy", "jax", "optax")


def versions() -> dict[str, str]:
    """Return versions of Python and of the packages that compute; "not installed" for missing ones."""
    return {"python": platform.python_version(), **{package: _version(package) for package in PACKAGES}}


@cache
def _version(package: str) -> str:
    """Return the version of a package, read once, since reading its metadata takes milliseconds."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def machine() -> dict[str, Any]:
    """Return the kind of machine, without its name."""
    return {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()}


def describe(item: Any) -> dict[str, Any]:
    """Return the name and the fields of an object that its repr shows, also of dataclasses in it."""
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
    """Return the time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def origin() -> dict[str, Any]:
    """Return versions, machine and time."""
    return {"versions": versions(), "machine": machine(), "finished": now()}

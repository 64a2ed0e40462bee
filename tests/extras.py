"""Optional packages of tests: skipped without them, except where CI=true, which installs them."""

import os
from importlib import import_module
from typing import Any

import pytest


def optional(name: str) -> Any:
    """Return a module; skip the tests of a file without it, or fail where CI=true, so that nobody misses them."""
    return import_module(name) if os.environ.get("CI") == "true" else pytest.importorskip(name)

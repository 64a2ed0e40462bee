"""A live page about a study that runs (extra `fedscaffold[dashboard]`, which Flower brings too)."""

from typing import TYPE_CHECKING

from fedscaffold.core.imports import load_on_demand

if TYPE_CHECKING:
    from fedscaffold.dashboard.server import serve_dashboard

__all__ = ["serve_dashboard"]
__getattr__ = load_on_demand(__name__, {"serve_dashboard": "server"})


def __dir__() -> list[str]:
    return __all__

"""A live page about a study that runs (extra `fedscaffold[dashboard]`, which Flower brings too)."""

from typing import TYPE_CHECKING, Any

from fedscaffold.core.imports import load_optional

if TYPE_CHECKING:
    from fedscaffold.dashboard.server import serve_dashboard

__all__ = ["serve_dashboard"]


def __getattr__(name: str) -> Any:
    """Load the server on first use; raise MissingDependency if its library is not installed."""
    if name != "serve_dashboard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in ("starlette", "uvicorn"):
        load_optional(module, "the live page needs a web server", extra="dashboard")
    from fedscaffold.dashboard.server import serve_dashboard

    globals()[name] = serve_dashboard
    return serve_dashboard


def __dir__() -> list[str]:
    return __all__

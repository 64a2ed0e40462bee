"""A live page about a study that runs (extra `fedscaffold[dashboard]`, which Flower brings too)."""

from typing import TYPE_CHECKING, Any

from fedscaffold.core.imports import missing_extra

if TYPE_CHECKING:
    from fedscaffold.dashboard.server import serve_dashboard

__all__ = ["serve_dashboard"]


def __getattr__(name: str) -> Any:
    """Load the server on first use; raise MissingDependency if its library is not installed."""
    if name != "serve_dashboard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from fedscaffold.dashboard.server import serve_dashboard
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise missing_extra("the live page needs a web server", extra="dashboard") from error
    globals()[name] = serve_dashboard
    return serve_dashboard


def __dir__() -> list[str]:
    return __all__

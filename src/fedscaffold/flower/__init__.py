"""The library's methods on real federations, with Flower (extra `fedscaffold[flower]`).

The server app makes a `Strategy`, the client app is made by `client_app`. This package only carries messages and
finds nodes; the protocol is in `fedscaffold.federation`, whose names that an app needs are here too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedscaffold.core.imports import missing_extra

if TYPE_CHECKING:
    from fedscaffold.federation import Agreement, LocalTask, ProblemTask, SitePolicy, TooFewClients
    from fedscaffold.flower.app import client_app, client_of
    from fedscaffold.flower.strategy import Strategy

__all__ = [
    "Agreement",
    "LocalTask",
    "ProblemTask",
    "SitePolicy",
    "Strategy",
    "TooFewClients",
    "client_app",
    "client_of",
]

_MODULE_OF = {
    "Agreement": "fedscaffold.federation",
    "ProblemTask": "fedscaffold.federation",
    "SitePolicy": "fedscaffold.federation",
    "Strategy": "fedscaffold.flower.strategy",
    "TooFewClients": "fedscaffold.federation",
    "LocalTask": "fedscaffold.federation",
    "client_app": "fedscaffold.flower.app",
    "client_of": "fedscaffold.flower.app",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, and say what to install where Flower is missing."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "flwr":
            raise
        raise missing_extra("federations need Flower", extra="flower") from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__

"""The library's methods on real federations, with Flower (extra `fedscaffold[flower]`).

The server app makes a `Strategy`, the client app is made by `client_app`. What happens between them is in modules
that know nothing of Flower: `ledger`, `server`, `accounts` on one side, `memory`, `client` on the other.
"""

from typing import TYPE_CHECKING, Any

from fedscaffold.core.errors import MissingDependency

if TYPE_CHECKING:
    from fedscaffold.federation.client import ProblemWork, Work
    from fedscaffold.federation.server import TooFewClients
    from fedscaffold.flower.app import client_app, client_of
    from fedscaffold.flower.strategy import Strategy

__all__ = ["ProblemWork", "Strategy", "TooFewClients", "Work", "client_app", "client_of"]

_PLACES = {
    "Strategy": "strategy",
    "client_app": "app",
    "client_of": "app",
    "ProblemWork": "client",
    "Work": "client",
    "TooFewClients": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "flwr":
            raise
        raise MissingDependency(
            "federations need Flower; install it with: pip install 'fedscaffold[flower]'"
        ) from error

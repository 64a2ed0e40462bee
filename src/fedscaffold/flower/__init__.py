"""The library's methods on real federations, with Flower (extra `fedscaffold[flower]`).

The server app makes a `Strategy`, the client app is made by `client_app`. This package only carries messages and
finds nodes; the protocol is in `fedscaffold.federation`, whose names that an app needs are here too.
"""

from typing import TYPE_CHECKING

from fedscaffold.core.imports import load_on_demand

if TYPE_CHECKING:
    from fedscaffold.federation import Agreement, LocalTask, ProblemTask, SitePolicy, TooFewClients
    from fedscaffold.flower.app import client_app, client_of
    from fedscaffold.flower.strategy import Strategy

MODULES = dict.fromkeys(("Agreement", "LocalTask", "ProblemTask", "SitePolicy", "TooFewClients"), ".federation")
MODULES |= {"Strategy": "strategy", "client_app": "app", "client_of": "app"}

__all__ = [
    "Agreement", "LocalTask", "ProblemTask", "SitePolicy", "Strategy", "TooFewClients", "client_app", "client_of",
]  # fmt: skip

__getattr__ = load_on_demand(__name__, MODULES)


def __dir__() -> list[str]:
    return __all__

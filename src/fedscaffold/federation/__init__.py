"""The protocol of real federations without any transport: what server and clients keep, send, check and repair.

A transport, such as Flower in `fedscaffold.flower`, carries a `TrainRequest` to each client and its reply back.

Server: `server` (one round), `round_rules`, `checks`, `ledger` (its state), `state_backup`, `server_checkpoint`.
Client: `client` (one request), `client_state` (its files), `agreement` (tables that clients encode alike).
Both: `messages`, `run_config`, `known_methods`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedscaffold.federation.agreement import Agreement
    from fedscaffold.federation.client import ProblemWork, Work, handle_request
    from fedscaffold.federation.ledger import Ledger, initial_ledger
    from fedscaffold.federation.messages import ClientFailed, ClientUpdate, StateLost, TrainRequest
    from fedscaffold.federation.round_rules import RoundRules, TooFewClients
    from fedscaffold.federation.run_config import RunConfig
    from fedscaffold.federation.server import RoundResult, run_round
    from fedscaffold.federation.state_backup import StateBackup

__all__ = [
    "Agreement",
    "ClientFailed",
    "ClientUpdate",
    "Ledger",
    "ProblemWork",
    "RoundResult",
    "RoundRules",
    "RunConfig",
    "StateBackup",
    "StateLost",
    "TooFewClients",
    "TrainRequest",
    "Work",
    "handle_request",
    "initial_ledger",
    "run_round",
]

_MODULE_OF = {
    "Agreement": "agreement",
    "ClientFailed": "messages",
    "ClientUpdate": "messages",
    "Ledger": "ledger",
    "ProblemWork": "client",
    "RoundResult": "server",
    "RoundRules": "round_rules",
    "RunConfig": "run_config",
    "StateBackup": "state_backup",
    "StateLost": "messages",
    "TooFewClients": "round_rules",
    "TrainRequest": "messages",
    "Work": "client",
    "handle_request": "client",
    "initial_ledger": "ledger",
    "run_round": "server",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: a Flower client is a new process for every message."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__

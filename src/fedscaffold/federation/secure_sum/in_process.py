"""A secure sum with all clients in this process: what it would give over a network."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import ArrayLike

from fedscaffold.core.types import Array
from fedscaffold.federation.secure_sum.client import SecureSumClient
from fedscaffold.federation.secure_sum.fixed_point import FixedPoint, Words
from fedscaffold.federation.secure_sum.keys import new_identity, public_identity
from fedscaffold.federation.secure_sum.messages import SumSettings
from fedscaffold.federation.secure_sum.server import conduct_sum


def secure_sum(vectors: Mapping[str, ArrayLike], *, limit: float, threshold: int | None = None) -> Array:
    """Σ_c v_c as clients and server compute it when the server may learn nothing else.

    Parameters
    ----------
    vectors
        A vector for each client's name.
    limit
        Largest size of a number; smaller limits give more digits.
    threshold
        As for `SumSettings`; two thirds of the clients unless given.

    Examples
    --------
    >>> from fedscaffold.federation.secure_sum import secure_sum
    >>> secure_sum({"bonn": [1.0, 2.0], "graz": [0.5, 0.5], "kiel": [0.0, -4.0]}, limit=10.0).tolist()
    [1.5, -1.5]
    """
    numbers = FixedPoint(limit=limit, n_clients=len(vectors))
    words = {name: numbers.encode(vector) for name, vector in vectors.items()}
    names = tuple(words)
    settings = SumSettings(
        sum_id="in process",
        clients=names,
        length=next(iter(words.values())).size if words else 0,
        threshold=max(2, -(-2 * len(names) // 3)) if threshold is None else threshold,
    )
    clients = new_clients(settings)

    def exchange(step: str, messages: Mapping[str, Any]) -> dict[str, Any]:
        return {name: take_step(clients[name], step, message, words[name]) for name, message in messages.items()}

    return numbers.decode(conduct_sum(settings, exchange)[0])


def new_clients(settings: SumSettings) -> dict[str, SecureSumClient]:
    """All clients of a sum, with new identities that know each other."""
    identities = {name: new_identity() for name in settings.clients}
    peers = {name: public_identity(key) for name, key in identities.items()}
    return {name: SecureSumClient(name, settings, identities[name], peers) for name in settings.clients}


def take_step(client: SecureSumClient, step: str, message: Any, words: Words) -> Any:
    """A client's reply to the message of a step."""
    replies: dict[str, Callable[[], Any]] = {
        "announce": client.announce,
        "share": lambda: client.share(message),
        "mask": lambda: client.mask(message, words),
        "agree": lambda: client.agree(message),
        "unmask": lambda: client.unmask(message),
    }
    return replies[step]()

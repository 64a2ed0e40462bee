"""Messages as plain values and arrays, for any transport; what arrives is validated by the messages' types."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fedscaffold.core.checks import in_words, shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.federation.messages import (
    NEVER,
    ClientHello,
    ClientRefused,
    ClientUpdate,
    Reply,
    StateLost,
    TrainRequest,
    named_arrays,
)  # fmt: skip
from fedscaffold.federation.run_config import RunConfig

VERSION = 4
LONGEST_CONFIG = 10**7
KINDS = {"train": TrainRequest, "update": ClientUpdate, "state-lost": StateLost, "refused": ClientRefused,
         "hello": ClientHello}  # fmt: skip


class Payload(NamedTuple):
    """A message: values that are numbers or text, and vectors by name, in the transport's form."""

    values: Mapping[str, Any]
    arrays: Mapping[str, Any] = {}


Decode = Callable[[Any, int], Array]


def plain_vector(value: Any, size: int) -> Array:
    """Return a vector that the transport carries as an array, or raise."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float64 or value.size != size:
        raise InvalidInput(f"an array of the message must hold {size} numbers in float64, got {shown(value)}")
    return value.reshape(-1)


def pack(message: TrainRequest | Reply | ClientHello) -> Payload:
    """Return a message as values and arrays, without fields that are None."""
    values: dict[str, Any] = {"version": VERSION}
    values["kind"] = next(name for name, kind in KINDS.items() if isinstance(message, kind))
    arrays: dict[str, Array] = {}
    for field in dataclasses.fields(message):
        name, value = field.name, getattr(message, field.name)
        if isinstance(value, RunConfig):
            values[name] = value.to_json()
        elif isinstance(value, np.ndarray):
            arrays[name] = value
        elif isinstance(value, tuple):
            arrays |= named_arrays(name, value)
        elif value is not None:
            values[name] = str(value) if isinstance(value, str) else value
    return Payload(values, arrays)


def unpack_request(
    payload: Payload, methods: Sequence[type[Method]] = (), decode: Decode = plain_vector
) -> TrainRequest:
    """Return the request in a payload; raise `InvalidInput` with the names of wrong fields.

    Parameters
    ----------
    payload
        The payload that arrived.
    methods
        Classes of methods that this node knows in addition to the library's and to installed packages'.
    decode
        decode(value, d) → a vector of d numbers, from the form in which the transport has it.
    """
    _, values = _values(payload, "the server", "train")
    text = values.get("config")
    if not isinstance(text, str) or len(text) > LONGEST_CONFIG:
        raise InvalidInput(f"the request has no configuration, got {shown(text)}")
    config = RunConfig.from_json(text, methods)
    arrays = _arrays(payload.arrays, config, decode)
    found: TrainRequest = _validated(TrainRequest, {**values, "config": config, **arrays})
    counted = found.last_counted
    if (
        found.client >= config.n_clients
        or counted >= found.round
        or (counted == NEVER) != (found.counted_history is None)
    ):
        raise InvalidInput("the request's client, round and last counted round do not fit the run")
    return found


def unpack_reply(payload: Payload, request: TrainRequest, decode: Decode = plain_vector) -> Reply:
    """Return the reply in a payload; raise `InvalidInput` with the names of wrong fields.

    `server.checks` compares it with the request, except for the length of the vector, which is checked before any
    number is read.
    """
    kind, values = _values(payload, "the client", "update", "state-lost", "refused")
    arrays = _arrays(payload.arrays, request.config, decode) if kind is ClientUpdate else {}
    return _validated(kind, values | arrays)


def unpack_hello(payload: Payload) -> ClientHello | ClientRefused:
    """Return the introduction in a payload; raise `InvalidInput` with the names of wrong fields."""
    kind, values = _values(payload, "the client", "hello", "refused")
    return _validated(kind, values)


def _values(payload: Payload, sender: str, *kinds: str) -> tuple[type, dict[str, Any]]:
    """Return the class and the values of a message; raise if the sender has another version of the messages."""
    values = dict(payload.values)
    version, kind = values.pop("version", None), values.pop("kind", None)
    if not isinstance(version, int) or version != VERSION:
        raise InvalidInput(
            f"{sender} has version {shown(version)} of the messages, this side version {VERSION}; install the "
            "same version of fedscaffold on both"
        )
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidInput(f"the message's kind must be one of {', '.join(kinds)}, got {shown(kind)}")
    return KINDS[kind], values


def _arrays(arrays: Mapping[str, Any], config: RunConfig, decode: Decode) -> dict[str, Any]:
    """Return the vectors and states of a message, each of `dim` numbers; states must be finite."""
    found: dict[str, Any] = {
        name: decode(arrays[name], config.dim) for name in ("vector", "mean_gradient") if name in arrays
    }
    states = {"server": config.server_kind, "server_after": config.server_kind, "client_state": config.client_kind}
    for prefix in states.keys() & {name.partition("/")[0] for name in arrays}:
        vectors = []
        for name in (f"{prefix}/{part}" for part in states[prefix]._fields):
            if name not in arrays:
                raise InvalidInput(f"the message has no array {name}")
            vectors.append(decode(arrays[name], config.dim))
            if not np.isfinite(vectors[-1]).all():
                raise InvalidInput(f"the message's {prefix} holds NaN or infinity")
        shape = (1, 1, -1) if prefix == "client_state" else (1, -1)
        found[prefix] = states[prefix](*(vector.reshape(shape) for vector in vectors))
    return found


@lru_cache(maxsize=len(KINDS))
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _validated(kind: type, values: Mapping[str, Any]) -> Any:
    """Return the message with these fields; raise `InvalidInput`, in one line, if their types do not allow it."""
    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        raise InvalidInput(" ".join(str(in_words(error, "the message")).split())) from None

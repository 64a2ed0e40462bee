"""Messages as plain values and arrays, for any transport; what arrives is validated field by field."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.federation.history import HISTORY_PATTERN, RUN_PATTERN
from fedscaffold.federation.messages import (
    NEVER,
    ClientHello,
    ClientRefused,
    ClientUpdate,
    Reply,
    StateLost,
    TrainRequest,
    place_of,
)  # fmt: skip
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.run_config import MOST_CLIENTS, MOST_DIM, RunConfig

VERSION = 3
MOST_ROWS, LONGEST_CONFIG = 2**53, 10**7
VECTOR, MEAN_GRADIENT = "vector", "mean-gradient"
SERVER, SERVER_AFTER, CLIENT_STATE = "server", "server-after", "client-state"  # prefixes of the names of arrays


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


def pack_request(request: TrainRequest) -> Payload:
    """Return a request as values and arrays."""
    values = {
        "version": VERSION,
        "config": request.config.to_json(),
        "run": request.run,
        "history": request.history,
        "client": request.client,
        "resets": request.resets,
        "round": request.round,
        "phase": request.phase,
        "last-counted": request.last_counted,
        "counted-history": request.counted_history or "",
        "counted-scale": request.counted_scale,
        "return-state": request.return_state,
    }
    arrays = _named(SERVER, request.server)
    if request.server_after is not None:
        arrays |= _named(SERVER_AFTER, request.server_after)
    if request.client_state is not None:
        arrays |= _named(CLIENT_STATE, request.client_state)
    if request.mean_gradient is not None:
        arrays[MEAN_GRADIENT] = request.mean_gradient
    return Payload(values, arrays)


def unpack_request(
    payload: Payload, methods: Sequence[type[Method]] = (), decode: Decode = plain_vector
) -> TrainRequest:
    """Return the request in a payload; raise `InvalidInput` with the name of the first wrong field.

    Parameters
    ----------
    payload
        The payload that arrived.
    methods
        Classes of methods that this node knows in addition to the library's and to installed packages'.
    decode
        decode(value, d) → a vector of d numbers, from the form in which the transport has it.
    """
    fields = _fields(payload, "the request", "the server")
    config = RunConfig.from_json(fields.text("config", longest=LONGEST_CONFIG), methods)
    round = fields.integer("round", least=0)
    counted = fields.integer("last-counted", least=NEVER, most=round - 1)
    arrays = _Arrays(payload.arrays, decode, config.dim)
    return TrainRequest(
        config=config,
        run=fields.text("run", pattern=RUN_PATTERN),
        history=fields.text("history", pattern=HISTORY_PATTERN),
        client=fields.integer("client", least=0, most=config.n_clients - 1),
        resets=fields.integer("resets", least=0),
        round=round,
        phase="train" if fields.choice("phase", "train", "gradient") == "train" else "gradient",
        last_counted=counted,
        counted_history=None if counted == NEVER else fields.text("counted-history", pattern=HISTORY_PATTERN),
        counted_scale=fields.number("counted-scale", least=0.0, most=1.0),
        server=arrays.state(SERVER, config.server_kind, (1, -1)),
        server_after=arrays.state(SERVER_AFTER, config.server_kind, (1, -1), optional=True),
        client_state=arrays.state(CLIENT_STATE, config.client_kind, (1, 1, -1), optional=True),
        mean_gradient=arrays.vector(MEAN_GRADIENT) if MEAN_GRADIENT in payload.arrays else None,
        return_state=fields.flag("return-state"),
    )


def pack_reply(reply: Reply) -> Payload:
    """Return a client's reply as values and arrays."""
    if isinstance(reply, ClientRefused):
        return Payload({"version": VERSION, "client": reply.client, "kind": "refused", "code": str(reply.code)})
    if isinstance(reply, StateLost):
        return Payload({"version": VERSION, **place_of(reply), "kind": "state-lost", "reason": reply.reason})
    if isinstance(reply, ClientUpdate):
        values = {"version": VERSION, **place_of(reply), "kind": "update", "phase": reply.phase}
        rows = {} if reply.n_rows is None else {"rows": reply.n_rows}
        state = {} if reply.client_state is None else _named(CLIENT_STATE, reply.client_state)
        return Payload(values | rows, {VECTOR: reply.vector, **state})
    raise TypeError(f"a client does not send {type(reply).__name__}")


def unpack_reply(payload: Payload, request: TrainRequest, decode: Decode = plain_vector) -> Reply:
    """Return the reply in a payload; raise `InvalidInput` with the name of the first wrong field.

    `server.checks` compares it with the request, except for the length of the vector, which is checked before any
    number is read.
    """
    fields = _fields(payload, "its reply", "the client")
    client = fields.integer("client", least=0, most=MOST_CLIENTS)
    kind = fields.choice("kind", "update", "state-lost", "refused")
    if kind == "refused":
        return ClientRefused(client=client, code=_refusal_code(fields))
    place: dict[str, Any] = {
        "client": client,
        "run": fields.text("run", pattern=RUN_PATTERN),
        "history": fields.text("history", pattern=HISTORY_PATTERN),
        "resets": fields.integer("resets", least=0),
        "round": fields.integer("round", least=0),
    }
    if kind == "state-lost":
        other = fields.choice("reason", "missing", "other-history") == "other-history"
        return StateLost(**place, reason="other-history" if other else "missing")
    arrays = _Arrays(payload.arrays, decode, request.config.dim)
    return ClientUpdate(
        **place,
        phase=fields.choice("phase", "train", "gradient"),
        vector=arrays.vector(VECTOR),
        n_rows=fields.integer("rows", least=1, most=MOST_ROWS) if "rows" in fields else None,
        client_state=arrays.state(CLIENT_STATE, request.config.client_kind, (1, 1, -1), optional=True),
    )


def pack_hello(hello: ClientHello | ClientRefused) -> Payload:
    """Return a client's introduction, or its refusal, as values."""
    if isinstance(hello, ClientRefused):
        return pack_reply(hello)
    values: dict[str, Any] = {"version": VERSION, "kind": "hello", "client": hello.client, "dim": hello.dim}
    return Payload(values if hello.n_rows is None else {**values, "rows": hello.n_rows})


def unpack_hello(payload: Payload) -> ClientHello | ClientRefused:
    """Return the introduction in a payload; raise `InvalidInput` with the name of the first wrong field."""
    fields = _fields(payload, "its introduction", "the client")
    client = fields.integer("client", least=0, most=MOST_CLIENTS)
    if fields.choice("kind", "hello", "refused") == "refused":
        return ClientRefused(client=client, code=_refusal_code(fields))
    return ClientHello(
        client=client,
        dim=fields.integer("dim", least=1, most=MOST_DIM),
        n_rows=fields.integer("rows", least=1, most=MOST_ROWS) if "rows" in fields else None,
    )


class _Arrays:
    """The arrays of a message, each of `dim` numbers; states must be finite, vectors are for `server.checks`."""

    def __init__(self, arrays: Mapping[str, Any], decode: Decode, dim: int) -> None:
        self.arrays, self.decode, self.dim = arrays, decode, dim

    def vector(self, name: str) -> Array:
        if name not in self.arrays:
            raise InvalidInput(f"the message has no array {name}")
        return self.decode(self.arrays[name], self.dim)

    def state(self, prefix: str, kind: Any, shape: tuple[int, ...], *, optional: bool = False) -> Any:
        if optional and not any(name.startswith(f"{prefix}/") for name in self.arrays):
            return None
        vectors = [self.vector(f"{prefix}/{name}") for name in kind._fields]
        for vector in vectors:
            if not np.isfinite(vector).all():
                raise InvalidInput(f"the message's {prefix} holds NaN or infinity")
        return kind(*(vector.reshape(shape) for vector in vectors))


def _refusal_code(fields: Fields) -> RefusalCode:
    """Return the code in a reply; a site of a later version may have codes that this one does not know."""
    text = fields.text("code", longest=64)
    return RefusalCode(text) if text in set(RefusalCode) else RefusalCode.INTERNAL


def _fields(payload: Payload, source: str, sender: str) -> Fields:
    """Return the values of a message; raise if the sender has another version of the messages."""
    fields = Fields(dict(payload.values), source)
    version = fields.value("version")
    if not isinstance(version, int) or version != VERSION:
        raise InvalidInput(
            f"{sender} has version {shown(version)} of the messages, this side version {VERSION}; install the "
            "same version of fedscaffold on both"
        )
    return fields


def _named(prefix: str, state: Any) -> dict[str, Array]:
    return {f"{prefix}/{name}": values for name, values in state._asdict().items()}

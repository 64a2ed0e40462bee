"""The messages between server and clients, which are all that travels, and their form as plain values and arrays.

Down go the server state, θ first, and the last round in which the client's update was counted, that is, entered
the server's mean. Up comes one vector. Client states, such as control variates, stay with their clients, with one
exception: a client that lost its own, or whose own was limited, receives the server's backup of it.

Any transport carries payloads; messages that arrive are validated by the types of their fields.

So that two runs, or two histories of one run, are never mixed up, a run gets a random identity before its first
round, and its history is a chain of SHA-256 digests: the first covers the identity, the configuration and the
initial model, every further one the digest before it and the server state that a round ended with. Requests,
replies, client states, checkpoints and backups carry both. A server or a client that was set back to an earlier
copy of its files, and went on differently, has another digest for the same round.
"""

import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field, InstanceOf, TypeAdapter, ValidationError

from fedscaffold.core.checks import in_words, shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import ClientLevel
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.run_config import MOST_CLIENTS, MOST_DIM, RunConfig
from fedscaffold.privacy.grid import CLIP

VERSION = 4
LONGEST_CONFIG = 10**7  # characters
RUN_PATTERN, HISTORY_PATTERN = "[0-9a-f]{32}", "[0-9a-f]{64}"
NEVER = -1  # in place of the number of a round
RESTATED = 0.0  # in place of a scale: another vector counted, and the server sends the client its new state
MOST_ROWS = 2**53  # beyond, weights in float64 would not be exact

Client = Annotated[int, Field(strict=True, ge=0, le=MOST_CLIENTS)]
Index = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Rows = Annotated[int, Field(strict=True, ge=1, le=MOST_ROWS)]
Digest = Annotated[str, Field(strict=True, pattern=f"^{HISTORY_PATTERN}$")]
Phase = Literal["train", "gradient"]
LossReason = Literal["missing", "other-history"]


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundPlace:
    """The fields that a reply repeats from its request.

    Parameters
    ----------
    client
        Index of the client that is asked, 0, ..., N − 1.
    run
        The run's random identity, 32 hexadecimal digits.
    history
        Digest of the run's history up to the beginning of this round, 64 hexadecimal digits.
    resets
        How often all client states of the run were reset so far.
    round
        Index of the round, 0, 1, ...
    """

    client: Client
    run: Annotated[str, Field(strict=True, pattern=f"^{RUN_PATTERN}$")]
    history: Digest
    resets: Index
    round: Index


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainRequest(RoundPlace):
    """A request of the server to one client in one round, with the fields of `RoundPlace`.

    Parameters
    ----------
    config
        The run's configuration.
    phase
        "train" for local steps, or "gradient" for a gradient at θ, which a method such as FedLin exchanges first.
    server
        The server state, a named tuple of arrays (1, dim), θ first.
    last_counted
        The last round since the last reset in which the client's update was counted, or NEVER.
    counted_history
        Digest of the history after round `last_counted`; None without such a round.
    counted_scale
        By how much the server shortened that update's distance from θ, in (0, 1]; 1 if it counted as it was sent,
        0 if another vector counted instead, and `client_state` is given.
    server_after
        The server state after round `last_counted`; None if `server` is that state, or without such a round.
    client_state
        For a client that lost its state, or whose state the server limited: the state it has after round
        `last_counted`, arrays (1, 1, dim).
    mean_gradient
        ḡ(θ), shape (dim,), in the "train" phase of a method that exchanges gradients.
    return_state
        Whether the client is asked for its client state before this round, of which the server's backup is
        damaged.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import RunConfig, initial_ledger, train_request
    >>> method = fs.Scaffold(step_size=0.1, local_steps=5)
    >>> config = RunConfig(name="demo", method=method, n_clients=4, dim=3)
    >>> request = train_request(config, initial_ledger(config, np.zeros(3)), client=2)
    >>> request.phase, request.round, len(request.run)
    ('train', 0, 32)
    """

    config: InstanceOf[RunConfig]
    phase: Phase = "train"
    server: Any
    last_counted: Annotated[int, Field(strict=True, ge=NEVER)] = NEVER
    counted_history: Digest | None = None
    counted_scale: Annotated[float, Field(strict=True, ge=0.0, le=1.0)] = 1.0
    server_after: Any = None
    client_state: Any = None
    mean_gradient: Any = None
    return_state: Annotated[bool, Field(strict=True)] = False


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientUpdate(RoundPlace):
    """A client's reply to a request: the method's message after local steps, or a gradient.

    Parameters
    ----------
    phase
        As in the request that it answers, and so are the fields of `RoundPlace`.
    vector
        The vector that the client sends, shape (dim,); see `message_of`.
    n_rows
        The number of rows that it was made from; None if the site does not send it.
    client_state
        The client state before the round, arrays (1, 1, dim), if the request asked for it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.federation import ClientUpdate
    >>> reply = ClientUpdate(
    ...     client=2, run="0" * 32, history="0" * 64, resets=0, round=0, phase="train", vector=np.zeros(3)
    ... )
    >>> reply.client
    2
    """

    phase: Phase
    vector: Any
    n_rows: Rows | None = None
    client_state: Any = None


@dataclass(frozen=True, kw_only=True)
class StateLost(RoundPlace):
    """A client's reply when it does not have the state that the request's `last_counted` implies.

    Parameters
    ----------
    reason
        "missing", or "other-history" for a state that does not fit the request's history.

    Examples
    --------
    >>> from fedscaffold.federation import StateLost
    >>> StateLost(client=2, run="0" * 32, history="0" * 64, resets=0, round=7).reason
    'missing'
    """

    reason: LossReason = "missing"


def _known_code(code: Any) -> Any:
    """Return a code; a site of a later version may have codes that this one does not know."""
    return code if code in list(RefusalCode) else RefusalCode.INTERNAL


@dataclass(frozen=True, kw_only=True)
class ClientRefused:
    """A client's reply to a request that it does not carry out.

    Parameters
    ----------
    client
        Index of the client.
    code
        Why; the text behind the code stays at the site.

    Examples
    --------
    >>> from fedscaffold.federation import ClientRefused, RefusalCode
    >>> ClientRefused(client=2, code=RefusalCode.DATA_CHANGED).code.value
    'data-changed'
    """

    client: Client
    code: Annotated[RefusalCode, BeforeValidator(_known_code)]


@dataclass(frozen=True, kw_only=True)
class ClientFailed:
    """A transport's report about a client whose reply is missing or unreadable.

    Parameters
    ----------
    client
        Index of the client.
    reason
        One sentence for the server's log.

    Examples
    --------
    >>> from fedscaffold.federation import ClientFailed
    >>> ClientFailed(client=2, reason="it is not online").reason
    'it is not online'
    """

    client: int
    reason: str


Reply = ClientUpdate | StateLost | ClientRefused | ClientFailed


@dataclass(frozen=True, kw_only=True)
class ClientHello:
    """A client's introduction: its index, its number of parameters and, if its policy allows, of rows n_c."""

    client: Client
    dim: Annotated[int, Field(strict=True, ge=1, le=MOST_DIM)]
    n_rows: Rows | None = None


def place_of(message: RoundPlace) -> dict[str, Any]:
    """Return the fields of a request that its reply repeats."""
    return {field.name: getattr(message, field.name) for field in dataclasses.fields(RoundPlace)}


def message_of(config: RunConfig, vector: Array, theta: Array) -> Array:
    """Return the method's message in a vector that was sent.

    To protect clients, the noisy change of θ is sent, in whole numbers of units clip / 2³⁰, and θ is added here.
    """
    if not isinstance(config.privacy, ClientLevel):
        return vector
    return theta + vector * (config.privacy.clip / CLIP)


def shorten(sent: Array, theta: Array, scale: float) -> Array:
    """Return θ + scale·(sent − θ), to the same bits on server and client; the update itself for a scale of 1."""
    return sent if scale == 1.0 else theta + scale * (sent - theta)


def named_arrays(prefix: str, state: Any) -> dict[str, Array]:
    """Return the arrays of a state by name, for a message or a file."""
    return {f"{prefix}/{name}": values for name, values in state._asdict().items()}


def new_run_id() -> str:
    """Return a random identity, 128 bits in hexadecimal."""
    return secrets.token_hex(16)


def initial_history(run: str, config: RunConfig, theta: Array) -> str:
    """Return the digest before the first round."""
    return _digest("run", run, config.digest, [theta])


def extend_history(history: str, round: int, server: Sequence[Array]) -> str:
    """Return the digest after a round, from the one before it and the server state that the round ended with."""
    return _digest("round", history, str(round), server)


def reset_history(history: str, resets: int) -> str:
    """Return the digest after all client states were reset for the `resets`-th time."""
    return _digest("reset", history, str(resets), [])


def _digest(event: str, before: str, text: str, arrays: Sequence[Array]) -> str:
    found = hashlib.sha256(f"{event}\n{before}\n{len(text)}\n{text}\n".encode())
    for array in arrays:
        found.update(np.ascontiguousarray(array, dtype="<f8").data)
    return found.hexdigest()


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

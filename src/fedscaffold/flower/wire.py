"""The protocol's messages as Flower carries them: records of arrays, numbers and text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.federation.messages import ClientHello, ClientUpdate, StateLost, TrainRequest
from fedscaffold.federation.run_config import RunConfig

VERSION = 2
# names of records
REQUEST, SERVER, SERVER_AFTER, CLIENT_STATE = "request", "server", "server-after", "client-state"
MEAN_GRADIENT, UPDATE, ABOUT = "mean-gradient", "update", "about"
PHASES = ("train", "gradient")


def pack_request(request: TrainRequest, shared: dict[int, ArrayRecord]) -> RecordDict:
    """A request as records; arrays that requests of a round have in common are packed once, in `shared`."""
    about: dict[str, Any] = {
        "version": VERSION,
        "config": request.config.to_json(),
        "client": request.client,
        "resets": request.resets,
        "round": request.round,
        "phase": request.phase,
        "last-counted": request.last_counted,
    }
    records: dict[str, Any] = {REQUEST: ConfigRecord(about), SERVER: _pack_once(request.server, shared)}
    if request.server_after is not None:
        records[SERVER_AFTER] = _pack_once(request.server_after, shared)
    if request.client_state is not None:
        records[CLIENT_STATE] = _pack_arrays(request.client_state)
    if request.mean_gradient is not None:
        records[MEAN_GRADIENT] = _pack_once((request.mean_gradient,), shared)
    return RecordDict(records)


def unpack_request(records: RecordDict, methods: Sequence[type[Method]] = ()) -> TrainRequest:
    """The request that was packed; `methods` are those that this node knows besides the library's."""
    try:
        about: Any = records.config_records[REQUEST]
        if about["version"] != VERSION:
            raise InvalidInput(
                f"the server has version {about['version']} of the messages, this client version {VERSION}; "
                "install the same version of fedscaffold on both"
            )
        config = RunConfig.from_json(about["config"], methods)
        server = type(config.method.init_server(np.zeros((1, config.dim))))
        client_state = type(config.initial_client_state)
        arrays = records.array_records
        row, block = (1, config.dim), (1, 1, config.dim)
        return TrainRequest(
            config=config,
            client=about["client"],
            resets=about["resets"],
            round=about["round"],
            phase=about["phase"],
            last_counted=about["last-counted"],
            server=server(*_unpack_arrays(arrays[SERVER], row)),
            server_after=server(*_unpack_arrays(arrays[SERVER_AFTER], row)) if SERVER_AFTER in arrays else None,
            client_state=(
                client_state(*_unpack_arrays(arrays[CLIENT_STATE], block)) if CLIENT_STATE in arrays else None
            ),
            mean_gradient=(
                _unpack_arrays(arrays[MEAN_GRADIENT], (config.dim,))[0] if MEAN_GRADIENT in arrays else None
            ),
        )
    except KeyError as error:
        raise InvalidInput(
            f"the message has no {error}; is the server's strategy fedscaffold.flower.Strategy?"
        ) from None


def pack_reply(reply: ClientUpdate | StateLost, *, n_rows: int) -> RecordDict:
    """A reply as one record of arrays and one of numbers, as the replies to Flower's own strategies are."""
    about: dict[str, Any] = {
        "client": reply.client,
        "resets": reply.resets,
        "round": reply.round,
        "state-lost": int(isinstance(reply, StateLost)),
        "num-examples": n_rows,
    }
    if isinstance(reply, StateLost):
        return RecordDict({ABOUT: MetricRecord(about)})
    about["phase"] = PHASES.index(reply.phase)
    return RecordDict({UPDATE: ArrayRecord({"vector": _pack_array(reply.vector)}), ABOUT: MetricRecord(about)})


def unpack_reply(records: RecordDict) -> ClientUpdate | StateLost:
    """The reply that was packed; InvalidInput for anything else that a client may send."""
    try:
        about: Any = records.metric_records[ABOUT]
        sender = {name: int(about[name]) for name in ("client", "resets", "round")}
        if about["state-lost"]:
            return StateLost(**sender)
        vector: Any = records.array_records[UPDATE]["vector"].numpy()
        if not isinstance(vector, np.ndarray):
            raise TypeError("not an array")
        return ClientUpdate(**sender, phase=PHASES[int(about["phase"])], vector=vector)
    except Exception as error:  # Flower and NumPy may raise anything on bytes that may be anything
        raise InvalidInput(f"its reply cannot be read: {error!r}") from None


def pack_hello(hello: ClientHello) -> RecordDict:
    """A client's introduction as a record of numbers."""
    about: dict[str, Any] = {"client": hello.client, "num-examples": hello.n_rows, "dim": hello.dim}
    return RecordDict({ABOUT: MetricRecord(about)})


def unpack_hello(records: RecordDict) -> ClientHello:
    """The introduction that was packed; InvalidInput for anything else."""
    try:
        about: Any = records.metric_records[ABOUT]
        return ClientHello(client=int(about["client"]), n_rows=int(about["num-examples"]), dim=int(about["dim"]))
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidInput(f"its introduction cannot be read: {error!r}") from None


def vector_of(arrays: ArrayRecord) -> Array:
    """All numbers of a record in one vector, array after array, as float64."""
    parts = [array.numpy() for array in arrays.values()]
    for name, part in zip(arrays, parts, strict=True):
        if part.dtype.kind not in "fiu":
            raise InvalidInput(f"array {name!r} of the model holds {part.dtype}, not numbers")
    return np.concatenate([np.zeros(0), *(part.astype(np.float64).reshape(-1) for part in parts)])


def arrays_like(vector: Array, like: ArrayRecord) -> ArrayRecord:
    """A vector as a record with the names, shapes and types of another."""
    found, begin = {}, 0
    for name, array in like.items():
        size = int(np.prod(array.shape, dtype=np.int64))
        part = vector[begin : begin + size].reshape(tuple(array.shape)).astype(array.dtype)
        found[name] = FlowerArray(part)
        begin += size
    return ArrayRecord(found)


def _pack_once(values: Sequence[Array], shared: dict[int, ArrayRecord]) -> ArrayRecord:
    if id(values[0]) not in shared:
        shared[id(values[0])] = _pack_arrays(values)
    return shared[id(values[0])]


def _pack_arrays(values: Sequence[Array]) -> ArrayRecord:
    return ArrayRecord({str(k): _pack_array(value.reshape(-1)) for k, value in enumerate(values)})


def _unpack_arrays(record: ArrayRecord, shape: tuple[int, ...]) -> list[Array]:
    return [record[str(k)].numpy().reshape(shape) for k in range(len(record))]


def _pack_array(vector: Array) -> FlowerArray:
    return FlowerArray(np.ascontiguousarray(vector))

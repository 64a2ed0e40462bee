"""Messages as Flower carries them: records of arrays, numbers and text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation.messages import Hello, Lost, Sent, TrainRequest
from fedscaffold.federation.run_config import RunConfig

VERSION = 1
ORDER, STATE, AFTER, MEMORY, MEAN, SENT, ABOUT = "order", "state", "after", "memory", "mean", "sent", "about"
PHASES = ("train", "gradient")


def packed(order: TrainRequest, shared: dict[int, ArrayRecord]) -> RecordDict:
    """An order as records; arrays that several orders of a round have in common are packed once."""
    terms = order.terms
    about: dict[str, Any] = {
        "version": VERSION,
        "terms": terms.to_json(),
        "client": order.client,
        "epoch": order.epoch,
        "round": order.round,
        "phase": order.phase,
        "local-steps": order.local_steps,
        "gradient-step": order.gradient_step,
        "counted": order.counted,
    }
    records: dict[str, Any] = {ORDER: ConfigRecord(about), STATE: _once(order.server, shared)}
    if order.after is not None:
        records[AFTER] = _once(order.after, shared)
    if order.memory is not None:
        records[MEMORY] = _record(order.memory)
    if order.mean_gradient is not None:
        records[MEAN] = _once((order.mean_gradient,), shared)
    return RecordDict(records)


def unpacked(records: RecordDict) -> TrainRequest:
    """The order that was packed."""
    try:
        about: Any = records.config_records[ORDER]
        if about["version"] != VERSION:
            raise InvalidInput(
                f"the server speaks version {about['version']} of the protocol, this client {VERSION}"
            )
        terms = RunConfig.from_json(about["terms"])
        server = type(terms.method.init_server(np.zeros((1, terms.dim))))
        memory = type(terms.first_memory())
        arrays = records.array_records
        row, block = (1, terms.dim), (1, 1, terms.dim)
        return TrainRequest(
            terms=terms,
            client=about["client"],
            epoch=about["epoch"],
            round=about["round"],
            phase=about["phase"],
            local_steps=about["local-steps"],
            gradient_step=about["gradient-step"],
            counted=about["counted"],
            server=server(*_arrays(arrays[STATE], row)),
            after=server(*_arrays(arrays[AFTER], row)) if AFTER in arrays else None,
            memory=memory(*_arrays(arrays[MEMORY], block)) if MEMORY in arrays else None,
            mean_gradient=_arrays(arrays[MEAN], (terms.dim,))[0] if MEAN in arrays else None,
        )
    except KeyError as error:
        raise InvalidInput(
            f"the message has no {error}; is the server's strategy fedscaffold.flower.Strategy?"
        ) from None


def packed_reply(reply: Sent | Lost, records: int) -> RecordDict:
    """A contribution as one record of arrays and one of numbers, as Flower's own strategies have them."""
    about: dict[str, Any] = {
        "client": reply.client,
        "epoch": reply.epoch,
        "round": reply.round,
        "lost": int(isinstance(reply, Lost)),
        "num-examples": records,
    }
    if isinstance(reply, Lost):
        return RecordDict({ABOUT: MetricRecord(about)})
    about["phase"] = PHASES.index(reply.phase)
    return RecordDict({SENT: ArrayRecord({"vector": _packed_array(reply.vector)}), ABOUT: MetricRecord(about)})


def unpacked_reply(records: RecordDict) -> Sent | Lost:
    """The reply that was packed; InvalidInput for anything else that a client may send."""
    try:
        about: Any = records.metric_records[ABOUT]
        who = {"client": int(about["client"]), "epoch": int(about["epoch"]), "round": int(about["round"])}
        if about["lost"]:
            return Lost(**who)
        vector: Any = records.array_records[SENT]["vector"].numpy()
        if not isinstance(vector, np.ndarray):
            raise TypeError("not an array")
        return Sent(**who, phase=PHASES[int(about["phase"])], vector=vector)
    except Exception as error:  # whatever Flower and NumPy trip over in bytes that may be anything
        raise InvalidInput(f"its reply cannot be read: {error!r}") from None


def packed_hello(hello: Hello) -> RecordDict:
    """Who a client is."""
    about: dict[str, Any] = {"client": hello.client, "num-examples": hello.records, "dim": hello.dim}
    return RecordDict({ABOUT: MetricRecord(about)})


def unpacked_hello(records: RecordDict) -> Hello:
    """Who a client says it is; InvalidInput for anything else."""
    try:
        about: Any = records.metric_records[ABOUT]
        return Hello(client=int(about["client"]), records=int(about["num-examples"]), dim=int(about["dim"]))
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidInput(f"its greeting cannot be read: {error!r}") from None


def vector_of(arrays: ArrayRecord) -> Array:
    """All numbers of a record in one vector, in its order."""
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


def _once(values: Sequence[Array], shared: dict[int, ArrayRecord]) -> ArrayRecord:
    if id(values[0]) not in shared:
        shared[id(values[0])] = _record(values)
    return shared[id(values[0])]


def _record(values: Sequence[Array]) -> ArrayRecord:
    return ArrayRecord({str(k): _packed_array(value.reshape(-1)) for k, value in enumerate(values)})


def _arrays(record: ArrayRecord, shape: tuple[int, ...]) -> list[Array]:
    return [record[str(k)].numpy().reshape(shape) for k in range(len(record))]


def _packed_array(vector: Array) -> FlowerArray:
    return FlowerArray(np.ascontiguousarray(vector))

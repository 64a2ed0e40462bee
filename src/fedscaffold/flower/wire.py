"""The protocol's messages as Flower carries them: one record of values, and vectors in numpy's own format."""

import ast
import io
import math
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation.messages import Payload

VALUES, ARRAYS = "values", "arrays"  # names of records
VECTOR, WORDS = "vector:", "words:"  # begin the names of vectors among values: of float64, and of uint64
LONGEST_HEADER = 1024  # bytes before the numbers in numpy's format


def to_records(payload: Payload, packed: dict[int, FlowerArray] | None = None) -> RecordDict:
    """Return a message as records; arrays that messages of a round share are packed once, in `packed`."""
    records: dict[str, Any] = {VALUES: ConfigRecord(dict(payload.values))}
    if payload.arrays:
        records[ARRAYS] = ArrayRecord({name: _pack(values, packed) for name, values in payload.arrays.items()})
    return RecordDict(records)


def from_records(records: RecordDict) -> Payload:
    """Return the message in untrusted records; raise InvalidInput if there is none. Arrays are not read yet."""
    try:
        values = dict(records.config_records[VALUES])
        arrays = dict(records.array_records[ARRAYS]) if ARRAYS in records.array_records else {}
    except KeyError:
        raise InvalidInput("the message is not one of fedscaffold's") from None
    return Payload(values, arrays)


def decode_vector(value: Any, size: int) -> Array:
    """Return the `size` numbers of an array, after a check of its length.

    They are read-only, the bytes of the message: a copy would be a second vector in memory.
    """
    data = getattr(value, "data", None)
    if not isinstance(data, bytes) or len(data) > size * 8 + LONGEST_HEADER:
        raise InvalidInput(f"an array of the message must hold {size} numbers in float64")
    try:
        length = int.from_bytes(data[8:10], "little")
        header = ast.literal_eval(data[10 : 10 + length].decode("latin-1"))
        if data[:7] != b"\x93NUMPY\x01" or header["descr"] != "<f8" or math.prod(header["shape"]) != size:
            raise ValueError
        return _as_numbers(np.frombuffer(data, dtype="<f8", count=size, offset=10 + length))
    except (ValueError, TypeError, KeyError, IndexError, SyntaxError, MemoryError, RecursionError, OverflowError):
        raise InvalidInput(f"an array of the message cannot be read as {size} numbers in float64") from None


def vector_of(arrays: ArrayRecord) -> Array:
    """Return all numbers of a record in one vector, array after array, as float64."""
    parts = [array.numpy() for array in arrays.values()]
    for name, part in zip(arrays, parts, strict=True):
        if part.dtype.kind not in "fiu":
            raise InvalidInput(f"array {name!r} of the model holds {part.dtype}, not numbers")
    return np.concatenate([np.zeros(0), *(part.astype(np.float64).reshape(-1) for part in parts)])


def arrays_like(vector: Array, like: ArrayRecord) -> ArrayRecord:
    """Return a vector as a record with the names, shapes and types of another."""
    found, begin = {}, 0
    for name, array in like.items():
        size = int(np.prod(array.shape, dtype=np.int64))
        part = vector[begin : begin + size].reshape(tuple(array.shape)).astype(array.dtype)
        found[name] = FlowerArray(part)
        begin += size
    return ArrayRecord(found)


def _pack(values: Array, packed: dict[int, FlowerArray] | None) -> FlowerArray:
    """Return a vector as an array of Flower, whose constructor would copy it once more."""
    known = {} if packed is None else packed
    if id(values) not in known:
        vector = np.ascontiguousarray(values, dtype="<f8").reshape(-1)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(vector))
        data = b"".join((header.getvalue(), vector.data))
        known[id(values)] = FlowerArray(str(vector.dtype), vector.shape, "numpy.ndarray", data)
    return known[id(values)]


def _as_numbers(vector: Any) -> Array:
    """Return a vector as float64 in this machine's byte order; a copy only if that differs."""
    return np.require(vector, np.float64, "A")


def to_one_record(payload: Payload) -> RecordDict:
    """Return a message as one record, vectors as bytes: Flower sends each array in a separate request."""
    values = dict(payload.values)
    for name, vector in payload.arrays.items():
        begin, dtype = (WORDS, "<u8") if vector.dtype == np.uint64 else (VECTOR, "<f8")
        values[f"{begin}{name}"] = np.ascontiguousarray(vector, dtype=dtype).tobytes()
    return RecordDict({VALUES: ConfigRecord(values)})


def from_one_record(records: RecordDict) -> Payload:
    """Return the message in an untrusted record; raise InvalidInput if there is none."""
    if VALUES not in records.config_records:
        raise InvalidInput("the message is not one of fedscaffold's")
    values, arrays = dict[str, Any](), dict[str, Any]()
    for name, value in records.config_records[VALUES].items():
        if not name.startswith((VECTOR, WORDS)):
            values[name] = value
        elif not isinstance(value, bytes) or len(value) % 8:
            raise InvalidInput("a vector of the message cannot be read")
        elif name.startswith(VECTOR):
            arrays[name.removeprefix(VECTOR)] = _as_numbers(np.frombuffer(value, dtype="<f8"))
        else:
            arrays[name.removeprefix(WORDS)] = np.frombuffer(value, dtype="<u8").astype(np.uint64)
    return Payload(values, arrays)

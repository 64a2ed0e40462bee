"""Trees of arrays that users hand over, checked: clients' records and a model's parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.arrays import offsets_of
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

Tree = Any
MEAN_TOLERANCE = 1e-5  # a loss may compute parts of itself in single precision
FEW = 4  # records that the loss is tried on


def joined(clients: Sequence[Tree]) -> tuple[Tree, NDArray[np.int64]]:
    """Every array with all clients' records one after another, and the clients' offsets."""
    try:
        each = list(clients)
    except TypeError:
        raise InvalidInput("clients must be a sequence with one tree of arrays per client") from None
    if not each:
        raise InvalidInput("there are no clients: clients is empty")
    first: list[Any]
    structure: Any
    first, structure = jax.tree.flatten(each[0])
    if not first:
        raise InvalidInput("client 0 holds no arrays")
    columns: list[list[NDArray[Any]]] = []
    for c, client in enumerate(each):
        leaves, own = jax.tree.flatten(client)
        if own != structure:
            raise InvalidInput(
                f"client {c} is {own}, client 0 is {structure}; every client needs the same arrays: clients is a "
                "sequence with one tree per client"
            )
        arrays = [_numbers(leaf, f"client {c}") for leaf in leaves]
        if any(array.ndim == 0 for array in arrays) or len({len(array) for array in arrays}) > 1:
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise InvalidInput(
                f"client {c}'s arrays have shapes {shapes}; the first axis is the records, the same for all"
            )
        if len(arrays[0]) == 0:
            raise InvalidInput(f"client {c} has no records; leave it out")
        for array, other in zip(arrays, columns[0] if columns else arrays, strict=True):
            if array.shape[1:] != other.shape[1:] or array.dtype.kind != other.dtype.kind:
                raise InvalidInput(
                    f"client {c}'s records have shape {array.shape[1:]} and type {array.dtype}, client 0's "
                    f"{other.shape[1:]} and {other.dtype}; all must agree"
                )
        columns.append(arrays)
    whole = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    for array in whole:
        array.flags.writeable = False
    return jax.tree.unflatten(structure, whole), offsets_of([len(arrays[0]) for arrays in columns])


def ravelled(params: Tree) -> tuple[Array, Any, tuple[tuple[int, ...], ...]]:
    """All parameters as one vector in the order of `jax.tree.leaves`, the tree's structure and shapes."""
    leaves, structure = jax.tree.flatten(params)
    arrays = [np.asarray(leaf) for leaf in leaves]
    for array in arrays:
        if array.dtype.kind != "f":
            raise InvalidInput(
                f"params must hold floating-point numbers only, got {array.dtype}; bind the rest into the loss"
            )
        if not np.isfinite(array).all():
            raise InvalidInput("params hold NaN or infinity")
    if sum(array.size for array in arrays) == 0:
        raise InvalidInput("params hold no numbers")
    vector = np.concatenate([np.asarray(array, dtype=np.float64).ravel() for array in arrays])
    return vector, structure, tuple(array.shape for array in arrays)


def check_loss(loss: Callable[[Tree, Tree], Any], params: Tree, batch: Tree) -> None:
    """Refuse a loss that is not one finite number, the mean over a batch's records of each one's own."""
    count = len(jax.tree.leaves(batch)[0])

    def record(i: int) -> Tree:
        return jax.tree.map(lambda array: array[i : i + 1], batch)

    whole, ones = _value(loss, params, batch), [_value(loss, params, record(i)) for i in range(count)]
    mean = float(np.mean(ones))
    if not np.isfinite([whole, *ones]).all():
        raise InvalidInput(f"loss(params, batch) is {whole} on the first records; start from other params")
    if abs(whole - mean) > MEAN_TOLERANCE * max(abs(whole), *np.abs(ones)):
        raise InvalidInput(
            f"loss(params, batch) must be the mean over the batch of each record's own loss, but on {count} "
            f"records it is {whole:.6g} and the mean of their losses {mean:.6g}; take jnp.mean, and nothing that "
            "mixes records such as batch normalisation"
        )


def _value(loss: Callable[[Tree, Tree], Any], params: Tree, batch: Tree) -> float:
    try:
        value = loss(params, batch)
    except Exception as error:
        raise InvalidInput(f"loss(params, batch) failed on the first records: {error}") from error
    leaves = jax.tree.leaves(value)
    if len(leaves) != 1 or leaves[0] is not value or np.ndim(value) or np.asarray(value).dtype.kind != "f":
        raise InvalidInput(
            "loss(params, batch) must return one floating-point number and nothing else, no buffers such as "
            "running means"
        )
    return float(value)


def _numbers(leaf: Any, whose: str) -> NDArray[Any]:
    """Floats as float64, whole numbers as int32, truth values as they are."""
    array = np.asarray(leaf)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{whose}'s records must be numbers, got type {array.dtype}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise InvalidInput(f"{whose}'s records hold NaN or infinity; drop or fill such records first")
        return np.asarray(array, dtype=np.float64)
    if array.dtype.kind == "b":
        return array
    if array.size and max(abs(int(array.min())), abs(int(array.max()))) >= 2**31:
        raise InvalidInput(f"{whose}'s whole numbers must be below 2**31; give larger ones as floating point")
    return array.astype(np.int32)

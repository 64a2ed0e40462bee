"""Arrays of any shape, such as images, as clients: split from memory, or read from what is on disk already."""

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.imports import load_optional

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}


class LoadedRecords(NamedTuple):
    """Records that were read: inputs, targets, and each record's client if the files have it.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> records = fs.data.LoadedRecords(np.zeros((4, 2)), np.zeros(4), np.array([0, 0, 1, 1]))
    >>> clients = fs.data.from_arrays(records.X, records.y, records.clients)
    >>> len(clients)
    2
    """

    X: NDArray[Any]  # (records, ...)
    y: NDArray[Any]  # (records,)
    clients: NDArray[Any] | None
    classes: tuple[str, ...] = ()  # the names of the classes 0, 1, ..., if the files have names


def from_arrays(X: ArrayLike, y: ArrayLike, clients: ArrayLike) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Split inputs and targets over clients, as `problems.Torch` takes them.

    Parameters
    ----------
    X, y
        Inputs and targets, of any shape; their first axis is the records.
    clients
        Each record's client, of any kind, for example from `fedscaffold.data.partition`.

    Returns
    -------
    list
        The pair (inputs, targets) of each client, in ascending order of `clients`.

    Raises
    ------
    InvalidInput
        If their lengths differ.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> [(x.tolist(), y.tolist()) for x, y in fs.data.from_arrays([1.0, 2.0, 3.0], [0, 1, 0], ["B", "A", "B"])]
    [([2.0], [1]), ([1.0, 3.0], [0, 0])]
    """
    inputs, targets, owners = np.asarray(X), np.asarray(y), np.asarray(clients)
    if owners.ndim != 1 or owners.size == 0 or not owners.size == len(inputs) == len(targets):
        raise InvalidInput(
            f"X, y and clients must have one entry per record, got shapes {inputs.shape}, {targets.shape} and "
            f"{owners.shape}"
        )
    order = np.argsort(owners, kind="stable")
    ends = np.flatnonzero(owners[order][1:] != owners[order][:-1]) + 1
    return [(inputs[rows], targets[rows]) for rows in np.split(order, ends)]


def load_records(
    path: str | os.PathLike[str], *, inputs: str = "X", target: str = "y", client: str | None = None
) -> LoadedRecords:
    """Read inputs and targets from what is on disk; nothing is downloaded.

    Parameters
    ----------
    path
        A file of arrays (.npz), a Parquet file, a folder that Hugging Face's `Dataset.save_to_disk` wrote, or a
        folder of images with a folder for each class.
    inputs, target
        Names of the arrays or columns. Images become float32 between 0 and 1, (records, channels, height, width).
    client
        Name of the array or column with each record's client; None if there is none.

    Returns
    -------
    LoadedRecords
        X, y, clients and, for images in folders, the names of the classes.

    Raises
    ------
    InvalidInput
        If nothing there can be read, or a name is missing.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/digits.npz", X=np.zeros((3, 8, 8)), y=np.arange(3), writer=[0, 0, 1])
    ...     fs.data.load_records(f"{folder}/digits.npz", client="writer").X.shape
    (3, 8, 8)
    """
    where = Path(path)
    if where.is_dir() and not list(where.glob("*.arrow")):
        if client is not None:
            raise InvalidInput(
                "folders of images do not say whose an image is; leave client out, and partition them"
            )
        return _images(where)
    if not where.exists():
        raise InvalidInput(f"{path} does not exist")
    wanted = [inputs, target, *([] if client is None else [client])]
    columns = _npz(where, wanted) if where.suffix == ".npz" else _arrow(where, wanted)
    if len({len(column) for column in columns}) > 1:
        raise InvalidInput(f"{path}: {', '.join(wanted)} have lengths {[len(column) for column in columns]}")
    return LoadedRecords(columns[0], columns[1], None if client is None else columns[2])


def _npz(path: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as found:
            _check_names(path, names, found.files)
            return [found[name] for name in names]
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read arrays from {path}: {error}") from None


def _arrow(path: Path, names: Sequence[str]) -> list[NDArray[Any]]:
    """Return columns of a Parquet file, or of a folder with Arrow files."""
    needed = {"needed_by": "Parquet and Arrow files need pyarrow", "extra": "data"}
    pyarrow = load_optional("pyarrow", **needed)
    try:
        if path.is_dir():
            ipc = load_optional("pyarrow.ipc", **needed)
            tables = []
            for file in sorted(path.glob("*.arrow")):
                with pyarrow.OSFile(str(file)) as source:
                    tables.append(ipc.open_stream(source).read_all())
            table = pyarrow.concat_tables(tables)
        else:
            table = load_optional("pyarrow.parquet", **needed).read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        why = str(error).split("\n")[0]
        raise InvalidInput(
            f"cannot read {path}: {why}; it must be .npz, Parquet, a Dataset that was saved, or a folder of images"
        ) from None
    _check_names(path, names, table.column_names)
    return [_column(path, name, table[name]) for name in names]


def _column(path: Path, name: str, column: Any) -> NDArray[Any]:
    """Return a column as one array: numbers, text, lists of equal shapes, or images."""
    values = column.to_pylist()
    if values and isinstance(values[0], dict) and "bytes" in values[0]:
        return _stacked([_pixels(io.BytesIO(value["bytes"])) for value in values], f"{path}'s column {name!r}")
    try:
        return np.array(values)
    except ValueError:
        raise InvalidInput(f"{path}'s column {name!r} holds lists of different lengths") from None


def _check_names(path: Path, names: Sequence[str], known: Sequence[str]) -> None:
    missing = [name for name in names if name not in known]
    if missing:
        raise InvalidInput(f"{path} has no {missing[0]!r}; it has {', '.join(map(repr, known))}")


def _images(folder: Path) -> LoadedRecords:
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    files = [
        (file, code)
        for code, name in enumerate(classes)
        for file in sorted((folder / name).iterdir())
        if file.suffix.lower() in IMAGES
    ]
    if not files:
        raise InvalidInput(f"{folder} holds no folders of images, one for each class")
    pixels = _stacked([_pixels(file) for file, _ in files], str(folder))
    return LoadedRecords(pixels, np.array([code for _, code in files]), None, tuple(classes))


def _pixels(file: Any) -> NDArray[np.float32]:
    """Return an image, (channels, height, width), between 0 and 1."""
    image = load_optional("PIL.Image", "images need Pillow", extra="reproduce").open(file)
    grey = image.mode in ("1", "L", "I;16")
    values = np.asarray(image.convert("L" if grey else "RGB"), dtype=np.float32) / 255.0
    return values[None] if grey else np.ascontiguousarray(values.transpose(2, 0, 1))


def _stacked(images: Sequence[NDArray[np.float32]], where: str) -> NDArray[np.float32]:
    shapes = sorted({image.shape for image in images})
    if len(shapes) > 1:
        raise InvalidInput(f"{where} has images of shapes {shapes[0]} and {shapes[1]}; make them all the same")
    return np.stack(images)

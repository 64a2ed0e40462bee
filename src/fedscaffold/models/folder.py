"""Folders of fits: checked before any work, with the encoded rows of tables that do not fit in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import check_writable, folder_at
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.on_disk import CacheMismatch, remove_cache
from fedscaffold.data.open import default_max_bytes_in_memory
from fedscaffold.models.fit import FILES, MODEL

CACHE = "cache"  # a folder for the encoded rows of tables that do not fit in memory


class OpenTable(Protocol):
    """A function that opens a table, with encoded rows in memory up to a number of bytes and in a folder above."""

    def __call__(self, *, cache_dir: Path, max_bytes_in_memory: int) -> EncodedProblem:
        """Return the problem of the table."""


def open_with_cache(
    open_table: OpenTable, out: Path, *, cache_dir: Path | None = None, overwrite: bool = False
) -> EncodedProblem:
    """Return the problem of a table for a fit in the folder `out`.

    Encoded rows go to the folder `cache_dir`. If that is None and they would take more than a quarter of the
    memory, they go to a folder of `out`; rows of another table there are replaced with `overwrite`.
    """
    folder = out / CACHE if cache_dir is None else cache_dir
    in_memory = default_max_bytes_in_memory() if cache_dir is None else 0
    try:
        return open_table(cache_dir=folder, max_bytes_in_memory=in_memory)
    except CacheMismatch:
        if not overwrite or cache_dir is not None:
            raise
        remove_cache(folder)
        return open_table(cache_dir=folder, max_bytes_in_memory=in_memory)


@contextmanager
def output_folder(out: Path, *, overwrite: bool) -> Iterator[None]:
    """Make a folder for a fit if it is missing; raise before any work if it holds a fit or cannot be written.

    Folders that were made here and are still empty when the block ends, as after an error, are removed.
    """
    if not overwrite and (out / MODEL).exists():
        raise InvalidInput(
            f"{out} holds a model already; choose another folder, or replace it with overwrite=True"
        )
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    folder_at(out)
    try:
        for name in FILES:
            check_writable(out / name)
        yield
    finally:
        for folder in made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

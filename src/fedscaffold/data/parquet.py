"""Problems from Parquet files, without holding the files in memory, nor even the problem's records."""

import os
from pathlib import Path
from typing import Unpack

from fedscaffold.core.checks import whole_number
from fedscaffold.core.docs import shared_parameters
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.build import problem_in_memory, table_layout
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.files import Paths, open_parquet, parquet_files
from fedscaffold.data.on_disk.cache import cache_exists, cache_identity, open_cache, remove_cache
from fedscaffold.data.on_disk.write import write_cache
from fedscaffold.data.options import TableKeywords, TableOptions


@shared_parameters(TableOptions)
def from_parquet(
    path: Paths,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    max_bytes_in_memory: int = 0,
    **options: Unpack[TableKeywords],
) -> EncodedProblem:
    """Σ_c w_c f_c, where client c holds the rows of Parquet files that name it in one column.

    Files are read twice, some rows at a time, and never held as a whole: the first pass counts, the second
    fills the problem's array of float64. So memory is that array, 8 bytes for each row and coordinate, and some
    tens of megabytes. Clients may be interleaved in any order. The result equals that of `from_frame` to the bit.

    With `cache_dir` that array is written to a folder, client after client, and memory-mapped instead of held in
    memory: then it may be larger than memory. The folder is written once; the same call opens it at once, whatever
    `l2` and `weights` it asks for. It takes as much disk as the array, and twice that while it is written.

    Parameters
    ----------
    path
        The file; or several, as a list, or as a folder whose .parquet files are taken in the order of their names.
        All must have the same columns.
    {TableOptions}
    cache_dir
        Folder for the encoded records: x.npy, y.npy, and records.json, which says of which table and options they
        are. Made where it is missing. A folder that holds the records of another table, of this one before it
        changed, or of other options is refused.
    max_bytes_in_memory
        Records of at most this many bytes are held in memory although `cache_dir` is given, unless the folder
        holds them already.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> visits = pd.DataFrame({"hospital": ["A", "A", "B", "B"], "age": [50, 61, 47, 70], "days": [2, 5, 4, 3]})
    >>> with TemporaryDirectory() as folder:
    ...     visits.to_parquet(Path(folder) / "visits.parquet")
    ...     fs.data.from_parquet(Path(folder) / "visits.parquet", target="days", client="hospital")
    EncodedRidge(n_clients=2, dim=1, n_records=4, l2=0.0)
    """
    choices = TableOptions(**options)
    whole_number("max_bytes_in_memory", max_bytes_in_memory, least=0)
    files = parquet_files(path)
    folder = None if cache_dir is None else Path(cache_dir)
    identity = cache_identity(files, choices)
    if folder is not None and cache_exists(folder):
        return open_cache(folder, identity, choices)
    with open_parquet(files) as source:
        layout = table_layout(source, choices)
        if folder is None or layout.nbytes <= max_bytes_in_memory:
            return problem_in_memory(layout, choices)
        write_cache(layout, folder, identity)
    if cache_identity(files, choices) != identity:
        remove_cache(folder)
        raise InvalidInput(f"{path} changed while it was being read; start again")
    return open_cache(folder, identity, choices)

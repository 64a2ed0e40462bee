"""From tables to problems: data frames, CSV and Parquet files, arrays and images, and splits over clients."""

from fedscaffold.data import partition
from fedscaffold.data.arrays import LoadedRecords, from_arrays, load_records
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.open import from_file, from_frame, from_table, open_problem

__all__ = [
    "Encoding",
    "LoadedRecords",
    "from_arrays",
    "from_file",
    "from_frame",
    "from_table",
    "load_records",
    "open_problem",
    "partition",
]


def __dir__() -> list[str]:
    return __all__

"""From tables to problems: data frames, CSV and Parquet files, and splits of one table over clients."""

from fedscaffold.data import partition
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.open import from_file, from_frame, from_table, open_problem

__all__ = ["Encoding", "from_file", "from_frame", "from_table", "open_problem", "partition"]


def __dir__() -> list[str]:
    return __all__

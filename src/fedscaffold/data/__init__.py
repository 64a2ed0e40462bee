"""From tables to problems: data frames, CSV, Parquet and svmlight files, and splits of one table over clients."""

from fedscaffold.data import partition
from fedscaffold.data.csv import from_csv, from_svmlight
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.frame import from_frame
from fedscaffold.data.open import open_problem
from fedscaffold.data.parquet import from_parquet

__all__ = ["Encoding", "from_csv", "from_frame", "from_parquet", "from_svmlight", "open_problem", "partition"]


def __dir__() -> list[str]:
    return __all__

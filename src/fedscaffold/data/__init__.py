"""From tables to problems: data frames, CSV, Parquet and svmlight files, and splits of one table over clients."""

from fedscaffold.data import partition
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.open import from_csv, from_frame, from_parquet, from_svmlight, open_problem

__all__ = ["Encoding", "from_csv", "from_frame", "from_parquet", "from_svmlight", "open_problem", "partition"]


def __dir__() -> list[str]:
    return __all__

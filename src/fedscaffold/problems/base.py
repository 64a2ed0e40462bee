"""What all problems have in common: θ* is computed once, arrays are read-only, and repr is one line."""

import hashlib
import html
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.storage.memmap import spans
from fedscaffold.core.types import Array, IntArray

ROWS_AT_ONCE = 65536


class ProblemBase(ABC):
    """f = Σ_c w_c f_c, immutable once it is made; see `core.protocols.Problem` for what runs ask of it."""

    kind: ClassVar[str]
    repr_fields: ClassVar[tuple[str, ...]] = ("n_clients", "dim")

    n_clients: int
    dim: int
    weights: Array
    sizes: IntArray
    _optimum: Array | None = None
    _fingerprint: str | None = None

    @abstractmethod
    def _solve_optimum(self) -> Array:
        """Compute θ*, shape (dim,)."""

    @abstractmethod
    def _compute_fingerprint(self) -> str:
        """Compute the digest that `fingerprint` returns."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the problem's kind, sizes and settings as plain values, for provenance."""

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of all that defines the problem, records included; computed once and kept."""
        if self._fingerprint is None:
            self._fingerprint = self._compute_fingerprint()
        return self._fingerprint

    def optimum(self) -> Array:
        """θ*, where the gradient of f vanishes, shape (dim,): computed by the first call, kept, and read-only."""
        if self._optimum is None:
            self._optimum = self._solve_optimum()
            freeze(self._optimum)
        return self._optimum

    @property
    def weighting(self) -> str:
        """The word "uniform" where all clients have the same weight, else "given"."""
        return "uniform" if bool(np.all(self.weights == self.weights[0])) else "given"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out θ* and the fingerprint, which differ in a copy with other records (`subset` makes one)."""
        return {name: value for name, value in vars(self).items() if name not in ("_optimum", "_fingerprint")}

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in self.repr_fields)
        return f"{type(self).__name__}({fields})"

    def _repr_html_(self) -> str:
        """A table of the problem's settings, for notebooks."""
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
            for name, value in self.describe().items()
        )
        return f"<table><caption>{html.escape(type(self).__name__)}</caption>{rows}</table>"


class RecordsProblem(ProblemBase):
    """A problem whose clients hold records, client after client: those of client c begin at offsets[c]."""

    repr_fields: ClassVar[tuple[str, ...]] = ("n_clients", "dim", "n_records")

    offsets: IntArray

    @property
    def n_records(self) -> int:
        """Number of records of all clients together."""
        return int(self.offsets[-1])

    def describe(self) -> dict[str, Any]:
        """The kind, numbers of clients, coordinates and records, and whether weights are uniform."""
        return {
            "kind": self.kind,
            "n_clients": int(self.n_clients),
            "dim": int(self.dim),
            "n_records": self.n_records,
            "smallest_client": int(self.sizes.min()),
            "largest_client": int(self.sizes.max()),
            "weights": self.weighting,
        }

    def _rows_of(self, clients: IntArray) -> IntArray:
        """Where the records of some clients lie, one client after another."""
        return np.concatenate([np.arange(self.offsets[c], self.offsets[c + 1]) for c in clients])


def freeze(*arrays: NDArray[Any]) -> None:
    """Make a problem's own arrays read-only, with those they are views of, so that it cannot change any more."""
    for array in arrays:
        base: Any = array
        while isinstance(base, np.ndarray):
            base.flags.writeable = False
            base = base.base


def row_bounds(rows: int) -> IntArray:
    """Bounds 0, ..., rows of consecutive pieces of some thousand rows, for passes that copy no more than one."""
    return np.append(np.arange(0, rows, ROWS_AT_ONCE, dtype=np.int64), rows)


def digest(words: str, *arrays: NDArray[Any]) -> str:
    """SHA-256 digest of words and of the bytes of arrays, which may lie in files."""
    found = hashlib.sha256(words.encode())
    for array in arrays:
        for begin, end in spans(row_bounds(len(array)), array):
            found.update(np.ascontiguousarray(array[begin:end]).view(np.uint8).reshape(-1).data)
    return found.hexdigest()

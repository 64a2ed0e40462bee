"""Fields of files and messages, which may hold anything: read with a type and a range, or an error names them."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedscaffold.core.errors import FedScaffoldError, InvalidInput


def shown(value: object, *, longest: int = 60) -> str:
    """Return a value as one short line of printable ASCII characters, for an error or a log."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"[:longest]
    if isinstance(value, int) and not -(10**longest) < value < 10**longest:
        return "a huge number"  # which Python may refuse to write out
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:  # a repr that fails, as that of a list with a huge number does
        return f"a {type(value).__name__}"
    text = ascii(text[: 2 * longest])[1:-1]
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


class Fields:
    """Named values from outside this process, such as a file's description or a message.

    Parameters
    ----------
    values
        A mapping with text as keys; anything else raises.
    source
        Origin of the values, which begins every error: "results/run.npz", "its reply".
    error
        Class of the errors.

    Examples
    --------
    >>> fields = Fields({"round": 3, "name": "pilot"}, "server.npz")
    >>> fields.integer("round", least=0), fields.text("name")
    (3, 'pilot')
    >>> fields.integer("round", least=5)
    Traceback (most recent call last):
    ...
    fedscaffold.core.errors.InvalidInput: server.npz: round must be a whole number of at least 5, got 3
    """

    def __init__(self, values: Any, source: str, *, error: type[FedScaffoldError] = InvalidInput) -> None:
        self.source, self.error = source, error
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise error(f"{source} must have named fields, got {shown(values)}")
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def names(self) -> list[str]:
        """Return the names of all fields, in their order."""
        return list(self._values)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as they are."""
        return dict(self._values)

    def only(self, *names: str) -> None:
        """Raise if there are fields with other names."""
        unknown = [shown(name) for name in self._values if name not in names]
        if unknown:
            raise self.error(f"{self.source} has unknown fields: {', '.join(unknown[:5])}")

    def value(self, name: str) -> Any:
        """Return a field as it is; raise if it is missing."""
        if name not in self._values:
            raise self.error(f"{self.source} has no {name}")
        return self._values[name]

    def integer(self, name: str, *, least: int, most: int = 2**63 - 1) -> int:
        """Return a whole number from `least` to `most`."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
            up_to = "" if most == 2**63 - 1 else f" and at most {most}"
            raise self._refused(name, f"a whole number of at least {least}{up_to}")
        return int(value)

    def number(self, name: str, *, least: float = -math.inf, most: float = math.inf) -> float:
        """Return a finite number from `least` to `most`."""
        value = self.value(name)
        numeric = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        try:
            found = float(value) if numeric else math.nan
        except OverflowError:
            found = math.inf
        if not math.isfinite(found) or not least <= found <= most:
            bounds = [f"at least {least:g}"] * (least > -math.inf) + [f"at most {most:g}"] * (most < math.inf)
            raise self._refused(
                name, " ".join(["a finite number", *(["of", " and ".join(bounds)] if bounds else [])])
            )
        return found

    def text(self, name: str, *, longest: int = 1000, pattern: str | None = None) -> str:
        """Return text of at most `longest` characters, all of which match the regular expression `pattern`."""
        value = self.value(name)
        if not isinstance(value, str) or len(value) > longest:
            raise self._refused(name, f"text of at most {longest} characters")
        if pattern is not None and not re.fullmatch(pattern, value):
            raise self._refused(name, f"text like {pattern}")
        return value

    def choice(self, name: str, *choices: str) -> str:
        """Return one of these words."""
        value = self.value(name)
        if not isinstance(value, str) or value not in choices:
            raise self._refused(name, "one of " + ", ".join(choices))
        return value

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise self._refused(name, "true or false")
        return value

    def integers(self, name: str, *, least: int, most: int = 2**63 - 1, count: int | None = None) -> list[int]:
        """Return a list of whole numbers, of `count` of them if that is given."""
        items = self.items(name, count=count)
        each = Fields({str(k): item for k, item in enumerate(items)}, f"{self.source}: {name}", error=self.error)
        return [each.integer(k, least=least, most=most) for k in each.names()]

    def items(self, name: str, *, count: int | None = None) -> Sequence[Any]:
        """Return a list, of `count` items if that is given."""
        value = self.value(name)
        if not isinstance(value, list | tuple) or (count is not None and len(value) != count):
            raise self._refused(name, "a list" if count is None else f"a list of {count}")
        return value

    def fields(self, name: str) -> "Fields":
        """Return a field that has fields itself."""
        return Fields(self.value(name), f"{self.source}: {name}", error=self.error)

    def array(
        self, name: str, shape: tuple[int | None, ...], *, dtype: DTypeLike = np.float64, finite: bool = True
    ) -> NDArray[Any]:
        """Return an array of this type and shape (None for any length); raise for NaN or infinity if `finite`."""
        value = self.value(name)
        fits = (
            isinstance(value, np.ndarray)
            and value.dtype == np.dtype(dtype)
            and value.ndim == len(shape)
            and all(wanted in (None, there) for wanted, there in zip(shape, value.shape, strict=True))
        )
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise self._refused(name, f"an array of {np.dtype(dtype)} with shape ({wanted})")
        if finite and value.dtype.kind == "f" and not np.isfinite(value).all():
            wrong = np.count_nonzero(~np.isfinite(value))
            raise self.error(f"{self.source}: {wrong} of the {value.size} numbers of {name} are NaN or infinite")
        return value

    def _refused(self, name: str, wanted: str) -> FedScaffoldError:
        return self.error(f"{self.source}: {name} must be {wanted}, got {shown(self._values[name])}")

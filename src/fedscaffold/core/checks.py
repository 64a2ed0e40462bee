"""Checks and conversions of arguments, so that wrong ones raise before any work.

Callers keep the returned values, plain ints, floats and float64 arrays: NumPy's integers would overflow.
"""

import functools
import inspect
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, TypeVar, cast

import numpy as np

from fedscaffold.core.errors import Collector, InvalidInput
from fedscaffold.core.types import Array, IntArray

T = TypeVar("T")
LARGEST = 2**63 - 1  # of the whole numbers that arrays and compiled code can hold


def whole_number(name: str, value: Any, *, least: int, most: int = LARGEST) -> int:
    """Return the value as an int; raise unless it is a whole number from `least` to `most`."""
    whole = not isinstance(value, bool) and isinstance(value, Integral)
    if not whole or value < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, got {given(value)}")
    if value > most:
        raise InvalidInput(f"{name} must be a whole number of at most {_power(most)}, got {given(value)}")
    return int(value)


def positive(name: str, value: Any) -> float:
    """Return the value as a float; raise unless it is finite and > 0."""
    if not 0 < _number(value) < math.inf:
        raise InvalidInput(f"{name} must be a positive number, got {given(value)}")
    return float(value)


def not_negative(name: str, value: Any) -> float:
    """Return the value as a float; raise unless it is finite and >= 0."""
    if not 0 <= _number(value) < math.inf:
        raise InvalidInput(f"{name} must be a number of at least 0, got {given(value)}")
    return float(value)


def seed_number(name: str, value: Any) -> int:
    """Return the value as an int; raise unless it is a whole number from 0 to 2⁶⁴ − 1."""
    if whole_number(name, value, least=0, most=max(LARGEST, 2**64)) >= 2**64:
        raise InvalidInput(f"{name} must be below 2**64, got {given(value)}")
    return int(value)


def choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return the value; raise unless it is one of these words (or None, True or False, if that is a choice)."""
    if not isinstance(value, str | bool | None) or value not in choices:
        words = ", ".join(repr(word) for word in choices)
        raise InvalidInput(f"{name} must be one of {words}, got {given(value)}")
    return value


def numbers(value: Any) -> Array:
    """Return anything array-like as float64, the same array if it is one already.

    Raise TypeError or ValueError for text, dates, complex or masked numbers, and whole numbers beyond float64,
    which NumPy would convert to something else, or drop.
    """
    array = np.asanyarray(value)
    if array.dtype.kind not in "biufO":
        raise TypeError(f"these are of type {array.dtype}")
    if _holds_masked(value):
        raise ValueError("some are masked; drop or fill them first")
    if array.dtype.kind == "O" and any(isinstance(item, str | bytes | complex) for item in array.flat):
        raise TypeError("some are text or complex")
    try:
        with np.errstate(over="ignore"):
            return np.asarray(array, dtype=np.float64)
    except OverflowError:
        raise ValueError("some are too large for a 64-bit float") from None


def vector(name: str, value: Any, wanted: str, length: int) -> Array:
    """Return a new array of `length` numbers; raise an error that says what is `wanted` for anything else."""
    try:
        found = numbers(value).copy()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be {wanted}: {error}") from None
    if found.shape != (length,):
        raise InvalidInput(f"{name} must be {wanted}, got shape {found.shape}")
    return found


def chosen_clients(clients: Any, n_clients: int) -> IntArray:
    """Return numbers of some clients as an array; raise unless they are whole numbers below `n_clients`.

    Negative ones count from the last client, as in NumPy.
    """
    try:
        found = np.asarray(clients)
    except ValueError:  # a list of lists of different lengths
        found = np.zeros(0)
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iu":
        raise InvalidInput(
            f"clients must be a list of whole numbers, one per client to take; got {given(clients)}"
        )
    if found.min() < -n_clients or found.max() >= n_clients:
        raise InvalidInput(f"clients must be numbers from 0 to {n_clients - 1}, got {given(clients)}")
    return np.asarray(found, dtype=np.int64) % n_clients


def set_fields(frozen: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass to their checked and converted values, in its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


def given(value: Any) -> str:
    """Return a value for the text of an error: short, and printable whatever it is."""
    return f"'{shown(value)}'" if isinstance(value, str) else shown(value)


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


def in_words(error: Any, what: str) -> InvalidInput:
    """Return a validation error of pydantic as one of this package, with all problems and the values given."""
    found = Collector(what)
    for each in error.errors():
        parts = (str(part) for part in each["loc"] if part not in ("float", "str", "int", "constrained-float"))
        name = shown(".".join(parts))  # a key may hold anything
        text = each["msg"].removeprefix("Value error, ")
        if each["type"] == "missing":
            found.add(f"{name} is required")
        elif each["type"] == "extra_forbidden":
            found.add(f"{name} is not a setting of {what}")
        elif not name:
            found.add(text)
        elif text.startswith("Input should be "):
            found.add(f"{name} must be {text.removeprefix('Input should be ')}, got {shown(each['input'])}")
        else:
            found.add(f"{name}: {text[0].lower() + text[1:]}, got {shown(each['input'])}")
    try:
        found.raise_any()
    except InvalidInput as collected:
        return collected
    raise AssertionError("a validation error has problems") from error


def check_problem_and_method(problem: Any, method: Any) -> None:
    """Raise unless the arguments are a problem and a method, in this order."""
    if hasattr(problem, "update_clients") and hasattr(method, "n_clients"):
        raise InvalidInput(
            f"the problem comes first and the method second; got {type(problem).__name__} and "
            f"{type(method).__name__} the other way round"
        )
    check_problem(problem)
    check_method(method)


def check_problem(problem: Any) -> None:
    """Raise unless the argument is a problem."""
    if not hasattr(problem, "n_clients") or not hasattr(problem, "fingerprint") or isinstance(problem, type):
        raise InvalidInput(
            f"problem must be a problem such as fedscaffold.problems.Ridge(X, y), got {given(problem)}"
        )


def check_method(method: Any) -> None:
    """Raise unless the argument is a method."""
    if not hasattr(method, "update_clients") or isinstance(method, type):
        raise InvalidInput(
            f"method must be a method such as Scaffold(step_size=0.05, local_steps=100), got {given(method)}"
        )


def _number(value: Any) -> float:
    """Return a real number as a float, infinite if it is too large; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _power(most: int) -> str:
    """Return a number as text, with 2**63 - 1 in place of its nineteen digits."""
    bits = most.bit_length()
    return f"2**{bits} - 1" if most == 2**bits - 1 and bits > 16 else str(most)


def _holds_masked(value: Any) -> bool:
    """Return whether some numbers of an array, or of arrays in a list, are masked: joining drops the masks."""
    if isinstance(value, list | tuple):
        return any(_holds_masked(item) for item in value if isinstance(item, list | tuple | np.ma.MaskedArray))
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


SYNONYMS = tuple(
    set(names.split())
    for names in (
        "step_size stepsize lr learning_rate eta eta0 gamma",
        "rounds n_rounds num_rounds max_rounds n_iter max_iter iterations T",
        "local_steps n_local_steps num_local_steps local_epochs epochs H K",
        "l2 alpha reg reg_lambda lambda_ penalty weight_decay C",
        "batch_size batch minibatch_size B",
        "repetitions n_repetitions repeats n_runs n_seeds",
        "seed random_state random_seed rng",
        "n_clients num_clients N",
        "dim n_features d",
        "target y label outcome",
        "client clients group site",
        "kind family model",
    )
)


def suggest_names(target: T) -> T:
    """Make a function, or a class when it is constructed, suggest a name for an unknown keyword argument.

    Functions are wrapped; the constructor of a class is replaced in place. Signatures stay as they are.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.Scaffold(lr=0.1, local_steps=10)
    Traceback (most recent call last):
        ...
    TypeError: Scaffold() got an unexpected keyword argument 'lr'; did you mean 'step_size'?
    """
    name = getattr(target, "__name__", "")
    function: Any = getattr(target, "__init__") if isinstance(target, type) else target  # noqa: B009 (as below)
    if getattr(function, "suggests_for", None) == name:
        return target
    signature = inspect.signature(function)
    known = signature.parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())

    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        if not takes_any and not keywords.keys() <= known.keys():
            wrong = next(word for word in keywords if word not in known)
            raise TypeError(f"{name}() got an unexpected keyword argument {wrong!r}{did_you_mean(wrong, known)}")
        return function(*args, **keywords)

    vars(checked)["suggests_for"] = name
    if isinstance(target, type):
        setattr(target, "__init__", checked)  # noqa: B010 (mypy rejects the assignment)
        return target
    return cast(T, checked)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'step_size'?" for a name that probably stands for a known one, "" for others."""
    meant = similar_name(name, known)
    return f"; did you mean {meant!r}?" if meant else ""


def similar_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is a synonym of another one, or else is spelt most like it; None without one."""
    import difflib  # here, since it is rarely needed and takes milliseconds to load

    listed = list(known)
    same = [other for names in SYNONYMS if name in names for other in listed if other in names]
    return next(iter(same or difflib.get_close_matches(name, listed, n=1)), None)

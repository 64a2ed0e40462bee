"""Values from outside are read with a type and a range, and everything else is refused by name."""

import math
from typing import Any

import numpy as np
import pytest

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import CheckpointMismatch, InvalidInput
from fedscaffold.core.files import Fields

WRONG: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "integer": ("integer", {"least": 0, "most": 9}, [True, -1, 10, 1.0, math.inf, "1", None, [1], 10**400]),
    "number": ("number", {"least": 0.0}, [True, -1e-9, math.inf, math.nan, "1", None, 10**400, 1j]),
    "text": ("text", {"longest": 3, "pattern": "[a-z]+"}, ["", "abcd", "A", "a\n", b"a", 1, None]),
    "choice": ("choice", {}, ["train", 1, None, ["a"]]),
    "flag": ("flag", {}, [0, 1, "true", None]),
    "integers": ("integers", {"least": 0, "count": 2}, [[1], [1, -1], [1, True], "12", {0: 1}, None]),
    "fields": ("fields", {}, [[], "a", None, {1: 2}]),
    "array": (
        "array",
        {"shape": (2, None)},
        [np.zeros((2,)), np.zeros((3, 1)), np.zeros((2, 1), np.float32), [[0.0], [0.0]], None,
         np.full((2, 1), np.nan), np.full((2, 1), np.inf), np.zeros((2, 1), complex)],
    ),
}  # fmt: skip
CASES = [(kind, options, wrong) for kind, options, values in WRONG.values() for wrong in values]


@pytest.mark.parametrize(("kind", "options", "wrong"), CASES, ids=lambda value: shown(value, longest=30))
def test_wrong_values_are_refused_by_name(kind: str, options: dict[str, Any], wrong: Any) -> None:
    with pytest.raises(CheckpointMismatch, match=r"file\.npz.*field") as caught:
        getattr(Fields({"field": wrong}, "file.npz", error=CheckpointMismatch), kind)("field", **options)
    assert len(str(caught.value)) < 200


def test_right_values_are_converted() -> None:
    fields = Fields({"n": np.int32(3), "x": 2, "a": np.zeros((2, 5)), "deep": {"flag": True}}, "a file")
    n, x = fields.integer("n", least=3, most=3), fields.number("x", least=2, most=2)
    assert (type(n), n, type(x), x) == (int, 3, float, 2.0)
    assert fields.array("a", (2, None)).shape == (2, 5)
    assert fields.fields("deep").flag("flag") is True


def test_missing_and_unknown_fields_are_refused() -> None:
    fields = Fields({"a": 1, "b\x1b": 2}, "a file")
    with pytest.raises(InvalidInput, match="a file has no c"):
        fields.integer("c", least=0)
    with pytest.raises(InvalidInput, match=r"unknown fields: b\\x1b"):
        fields.only("a")
    fields.only("a", "b\x1b")
    with pytest.raises(InvalidInput, match="a file must have named fields"):
        Fields([1], "a file")


UGLY = ["\x1b[2J\r\nroot logged in", "x" * 10**6, "é\u202e", 10**5000, [0] * 10**5, np.zeros(10**6), -(10**400)]


@pytest.mark.parametrize("value", UGLY, ids=map(str, range(len(UGLY))))
def test_shown_values_are_short_and_printable(value: object) -> None:
    text = shown(value)
    assert len(text) <= 60
    assert text.isascii()
    assert text.isprintable()

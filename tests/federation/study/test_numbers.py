"""Numbers as words: sums are those of exact arithmetic, whatever the order, and what is out of range is random."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscaffold.federation.study.numbers import (
    BeyondRange,
    WordBlock,
    add,
    counts,
    decode,
    encode,
    size_of,
    whole,
    wide,
    words_of,
)
from fedscaffold.federation.study.roster import Masks, Roster, new_key, public_line

BLOCKS = [WordBlock("a", 3), wide("b", 2), counts("c", 2)]
NUMBERS = st.floats(-1e20, 1e20, allow_subnormal=False)  # they are far below every unit


def exactly(value: float, unit: int) -> Fraction:
    return round(Fraction(value) / Fraction(2) ** unit) * Fraction(2) ** unit


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=6))
def test_sums_are_those_of_fractions(rows: list[tuple[float, float, float]]) -> None:
    messages = [encode({"a": row, "b": row[:2], "c": [1, 2]}, BLOCKS) for row in rows]
    found = decode(add(messages), BLOCKS)
    for name, unit, values in (
        ("a", -60, zip(*rows, strict=True)),
        ("b", -200, list(zip(*rows, strict=True))[:2]),
    ):
        expected = [float(sum(exactly(v, unit) for v in column)) for column in values]
        np.testing.assert_allclose(found[name], expected, rtol=4e-16, atol=0)
    assert found["c"].tolist() == [len(rows), 2 * len(rows)]
    np.testing.assert_array_equal(add(messages), add(messages[::-1]))


def test_a_message_and_its_negative_cancel() -> None:
    one = encode({"a": [1.5, -2.0, 1e-9], "b": [1e60, -1e-50], "c": [7, 0]}, BLOCKS)
    assert not add([one, words_of(-whole(one), one.size)]).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e53])
def test_numbers_out_of_range_make_the_message_random(bad: float) -> None:
    messages = [encode({"a": [bad, 1.0, 2.0], "b": [1.0, 2.0], "c": [3, 4]}, BLOCKS) for _ in range(2)]
    assert (messages[0] != messages[1]).all()
    assert messages[0].shape == (size_of(BLOCKS),)
    good = encode({"a": [0.0, 1.0, 2.0], "b": [1.0, 2.0], "c": [3, 4]}, BLOCKS)
    with pytest.raises(BeyondRange):
        decode(add([good, messages[0]]), BLOCKS)


def test_masks_cancel_over_the_roster_and_over_nothing_else() -> None:
    keys = {site: new_key() for site in ("bonn", "graz", "lyon", "oslo")}
    roster = Roster("plan", {site: public_line(key, site) for site, key in keys.items()})
    numbers = {site: {"a": [k, 0.5, -k], "b": [k, k], "c": [k, 1]} for k, site in enumerate(keys)}
    plain = {site: encode(values, BLOCKS) for site, values in numbers.items()}
    masked = {site: Masks(site, keys[site], roster).mask(plain[site], "chain") for site in keys}
    np.testing.assert_array_equal(add(list(masked.values())), add(list(plain.values())))
    for site in keys:
        assert (masked[site] != plain[site]).all()
        rest = add([masked[other] for other in keys if other != site])
        with pytest.raises(BeyondRange):
            decode(rest, BLOCKS)
    again = Masks("bonn", keys["bonn"], roster).mask(plain["bonn"], "chain")
    np.testing.assert_array_equal(again, masked["bonn"])
    for context, others in (("another chain", roster), ("chain", Roster("another plan", roster.keys))):
        other = Masks("bonn", keys["bonn"], others).mask(plain["bonn"], context)
        assert (other != masked["bonn"]).all()


def test_masked_words_look_uniform() -> None:
    """Every byte of the masked messages of two very different tables has the same, uniform law."""
    keys = {site: new_key() for site in ("bonn", "graz", "lyon")}
    roster = Roster("plan", {site: public_line(key, site) for site, key in keys.items()})
    masks, blocks = Masks("bonn", keys["bonn"], roster), [WordBlock("a", 2000)]
    for values in (np.zeros(2000), np.full(2000, 1e9)):
        words = np.concatenate([masks.mask(encode({"a": values}, blocks), str(k)) for k in range(5)])
        bytes_seen = np.bincount(np.frombuffer(words.tobytes(), np.uint8), minlength=256)
        expected = bytes_seen.sum() / 256
        chi = ((bytes_seen - expected) ** 2 / expected).sum()
        assert abs(chi - 255) < 5 * np.sqrt(2 * 255)

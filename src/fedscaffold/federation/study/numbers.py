"""Numbers as one whole number modulo a power of 2⁶⁴, so that their sums over sites are exact and can be masked.

A float becomes a whole number of units 2ᵉ, rounded once; of a number in four words with unit 2⁻⁶⁰ the largest is
about 10⁵² and the rounding below 10⁻¹⁸. A message is the sum of its numbers, each times the power of 2⁶⁴ at which
its words begin. The sum of all sites' messages is the message of the sum, in any order.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.inference.training import NotFinite

Words = NDArray[np.uint64]
SITES = 20  # bits for sums over up to a million sites


class BeyondRange(NotFinite):
    """A number that is not finite, or too large for its block."""


class WordBlock(NamedTuple):
    """Numbers of one kind in a message.

    Parameters
    ----------
    name
        Name of the numbers.
    length
        How many there are.
    unit
        e: numbers are rounded to multiples of 2ᵉ.
    words
        Words of 64 bits for each number.
    """

    name: str
    length: int
    unit: int = -60
    words: int = 4  # no model up to `rows.LARGEST`, at rows up to it, has sums beyond 2¹⁷⁵


def counts(name: str, length: int = 1) -> WordBlock:
    """Return a block of whole numbers, one word each."""
    return WordBlock(name, length, 0, 1)


def wide(name: str, length: int = 1) -> WordBlock:
    """Return a block of numbers of any size that tables hold: units 2⁻²⁰⁰, up to about 10⁷⁰."""
    return WordBlock(name, length, -200, 7)


def size_of(blocks: Sequence[WordBlock]) -> int:
    """Return the number of words of a message: all blocks, and one that is 0 if all numbers are in range."""
    return sum(block.length * block.words for block in blocks) + 1


def encode(values: Mapping[str, Any], blocks: Sequence[WordBlock]) -> Words:
    """Return numbers by block as the words of a message.

    A message with a number that is not finite, or beyond its block's range, is random: the sum over sites is then
    random too, and reveals neither which site it was nor the numbers of another one.

    Parameters
    ----------
    values
        Numbers of each block.
    blocks
        The blocks, in order.

    Returns
    -------
    Words
        The words, (size_of(blocks),).

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.federation.study.numbers import WordBlock, add, decode, encode
    >>> blocks = [WordBlock("loss", 1), WordBlock("gradient", 2)]
    >>> one = encode({"loss": [0.5], "gradient": [1.0, -3.0]}, blocks)
    >>> two = encode({"loss": [0.25], "gradient": [2.0, 1.0]}, blocks)
    >>> decode(add([one, two]), blocks)["gradient"].tolist()
    [3.0, -2.0]
    """
    try:
        parts = [_encode(np.ravel(np.asarray(values[b.name], np.float64)), b) for b in blocks]
    except BeyondRange:
        return np.frombuffer(secrets.token_bytes(8 * size_of(blocks)), np.uint64)
    above, below = (np.concatenate([part[k].ravel() for part in parts]) for k in (0, 1))
    return words_of(whole(above) - whole(below), size_of(blocks))


def whole(words: Words) -> int:
    """Return words as one whole number."""
    return int.from_bytes(words.astype("<u8").tobytes(), "little")


def words_of(number: int, size: int) -> Words:
    """Return a whole number modulo a power of 2⁶⁴ as words."""
    return np.frombuffer((number % (1 << 64 * size)).to_bytes(8 * size, "little"), "<u8").astype(np.uint64)


def add(messages: Sequence[Words]) -> Words:
    """Return the sum of messages of the same size."""
    return words_of(sum(map(whole, messages)), messages[0].size)


def decode(words: Words, blocks: Sequence[WordBlock]) -> dict[str, Array]:
    """Return the numbers of a sum of messages, by block.

    Raises
    ------
    BeyondRange
        If a number of some site was beyond its range.
    """
    if words.shape != (size_of(blocks),) or words.dtype != np.uint64:
        raise InvalidInput(f"{size_of(blocks):,} words are needed, got {words.size:,}")
    halves = [np.tile(np.array([0] * (b.words - 1) + [1 << 63], np.uint64), b.length) for b in blocks]
    lifted = words_of(whole(words) + whole(np.concatenate(halves)), words.size)  # no number is below 0 any more
    if lifted[-1]:
        raise BeyondRange("numbers of some site are not finite, or too large")
    found, begin = {}, 0
    for block in blocks:
        end = begin + block.length * block.words
        found[block.name] = _decode(lifted[begin:end].reshape(-1, block.words), block)
        begin = end
    return found


def _encode(values: Array, block: WordBlock) -> tuple[Words, Words]:
    """Return the sizes of the numbers above 0 and of those below it, each with 0 in place of the others."""
    if values.size != block.length:
        raise InvalidInput(f"{block.name} has {values.size} numbers, not {block.length}")
    largest = 64 * block.words - 1 - SITES + block.unit
    if not np.isfinite(values).all() or (values.size and np.abs(values).max() >= 2.0**largest):
        raise BeyondRange(f"{block.name} is beyond the range")
    mantissas, exponents = np.frexp(np.abs(values))
    digits = np.ldexp(mantissas, 53)
    shift = exponents.astype(np.int64) - 53 - block.unit
    small = shift < 0  # below 2⁵³ units: rounded to a unit
    digits = np.where(small, np.rint(np.ldexp(np.abs(values), -block.unit)), digits).astype(np.uint64)
    word, bits = np.divmod(np.where(small, 0, shift), 64)
    rows, out = np.arange(values.size), np.zeros((values.size, block.words), np.uint64)
    out[rows, word] = digits << bits.astype(np.uint64)
    over = (bits > 0) & (word + 1 < block.words)
    out[rows[over], word[over] + 1] = digits[over] >> (64 - bits[over]).astype(np.uint64)
    below = (values < 0.0)[:, None]
    return np.where(below, 0, out).astype(np.uint64), np.where(below, out, 0).astype(np.uint64)


def _decode(lifted: Words, block: WordBlock) -> Array:
    """Return the numbers that words say, which were lifted by half of what these hold."""
    words = lifted ^ np.array([0] * (block.words - 1) + [1 << 63], np.uint64)
    below = words[:, -1] >> np.uint64(63) == 1
    size = np.where(below[:, None], ~words, words)  # of a number below 0, a unit less than its size
    total = np.zeros(len(words))
    for k in reversed(range(block.words)):  # from the highest word down: rounded about once
        total += np.ldexp(size[:, k].astype(np.float64) + (below if k == 0 else 0.0), 64 * k + block.unit)
    return np.where(below, -total, total)

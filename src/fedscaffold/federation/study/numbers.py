"""Numbers as whole numbers modulo a power of 2⁶⁴, so that their sums over sites are exact and can be masked.

A float becomes a whole number of units 2ᵉ, rounded once; of a number in three words with unit 2⁻⁸⁰ the largest is
about 10²⁷ and the rounding below 10⁻²⁴. The sum of all sites' words is the word of the sum, in any order.
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
    unit: int = -80
    words: int = 3


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
    >>> decode(add([one, two], blocks), blocks)["gradient"].tolist()
    [3.0, -2.0]
    """
    try:
        parts = [_encode(np.ravel(np.asarray(values[b.name], np.float64)), b).ravel() for b in blocks]
        return np.concatenate([*parts, np.zeros(1, np.uint64)])
    except BeyondRange:
        return np.frombuffer(secrets.token_bytes(8 * size_of(blocks)), np.uint64)


def decode(words: Words, blocks: Sequence[WordBlock]) -> dict[str, Array]:
    """Return the numbers of a sum of messages, by block.

    Raises
    ------
    BeyondRange
        If a number of some site was beyond its range.
    """
    if words.shape != (size_of(blocks),) or words.dtype != np.uint64:
        raise InvalidInput(f"{size_of(blocks):,} words are needed, got {words.size:,}")
    if words[-1]:
        raise BeyondRange("numbers of some site are not finite, or too large")
    found, begin = {}, 0
    for block in blocks:
        end = begin + block.length * block.words
        found[block.name] = _decode(words[begin:end].reshape(-1, block.words), block)
        begin = end
    return found


def add(messages: Sequence[Words], blocks: Sequence[WordBlock]) -> Words:
    """Return the sum of messages, number by number."""
    total = messages[0].copy()
    for message in messages[1:]:
        begin = 0
        for block in [*blocks, counts("in range")]:
            end = begin + block.length * block.words
            part = total[begin:end].reshape(-1, block.words)
            _add_to(part, message[begin:end].reshape(-1, block.words))
            begin = end
    return total


def negative(words: Words, blocks: Sequence[WordBlock]) -> Words:
    """Return the message whose sum with another one is 0."""
    parts, begin = [], 0
    for block in [*blocks, counts("in range")]:
        end = begin + block.length * block.words
        parts.append(_negated(words[begin:end].reshape(-1, block.words)).ravel())
        begin = end
    return np.concatenate(parts)


def _encode(values: Array, block: WordBlock) -> Words:
    if values.size != block.length:
        raise InvalidInput(f"{block.name} has {values.size} numbers, not {block.length}")
    largest = 64 * block.words - 1 - SITES + block.unit
    if not np.isfinite(values).all() or (values.size and np.abs(values).max() >= 2.0**largest):
        raise BeyondRange(f"{block.name} is beyond the range")
    mantissas, exponents = np.frexp(np.abs(values))
    whole = np.ldexp(mantissas, 53)
    shift = exponents.astype(np.int64) - 53 - block.unit
    small = shift < 0  # below 2⁵³ units: rounded to a unit
    whole = np.where(small, np.rint(np.ldexp(np.abs(values), -block.unit)), whole).astype(np.uint64)
    shift = np.where(small, 0, shift)
    word, bits = np.divmod(shift, 64)
    rows, out = np.arange(values.size), np.zeros((values.size, block.words), np.uint64)
    out[rows, word] = whole << bits.astype(np.uint64)
    over = (bits > 0) & (word + 1 < block.words)
    out[rows[over], word[over] + 1] = whole[over] >> (64 - bits[over]).astype(np.uint64)
    negative = values < 0.0
    out[negative] = _negated(out[negative])
    return out


def _decode(words: Words, block: WordBlock) -> Array:
    below = words[:, -1] >> np.uint64(63) == 1
    size = np.where(below[:, None], _negated(words), words)
    total = np.zeros(len(words))
    for k in reversed(range(block.words)):  # from the highest word down: rounded about once
        total += np.ldexp(size[:, k].astype(np.float64), 64 * k + block.unit)
    return np.where(below, -total, total)


def _add_to(total: Words, other: Words) -> None:
    carry = np.zeros(len(total), np.uint64)
    for k in range(total.shape[1]):
        partial = total[:, k] + other[:, k]
        summed = partial + carry
        carry = (partial < other[:, k]).astype(np.uint64) | (summed < partial).astype(np.uint64)
        total[:, k] = summed


def _negated(words: Words) -> Words:
    """Return the two's complement."""
    found = ~words
    one = np.zeros_like(found)
    one[:, 0] = 1
    _add_to(found, one)
    return found

"""How the numbers of a secure sum follow each other: named blocks, each with a range or of exact words."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.federation.secure_sum.fixed_point import FixedPoint, Words

MOST_WORDS = 2**31


class SumBlock(NamedTuple):
    """Some numbers of a secure sum.

    Parameters
    ----------
    name
        What they are.
    length
        How many words they take.
    limit
        Largest size of a site's number in fixed point; None for words that are exact.
    """

    name: str
    length: int
    limit: float | None = None


def encode(values: Mapping[str, Any], blocks: Sequence[SumBlock], n_sites: int) -> Words:
    """A site's numbers as words; refused if they are others than asked for, or one is beyond its block's limit."""
    if list(values) != [block.name for block in blocks]:
        raise InvalidInput(f"the sum asks for other numbers than {', '.join(values)}")
    parts = []
    for name, length, limit in blocks:
        if (values[name].dtype == np.uint64) != (limit is None):  # of random words too
            raise InvalidInput(f"the sum asks for {name} as {'words' if limit is None else 'numbers'}")
        words = values[name] if limit is None else FixedPoint(limit=limit, n_clients=n_sites).encode(values[name])
        if words.shape != (length,) or words.dtype != np.uint64:
            raise InvalidInput(f"the sum asks for {length} words of {name}, here are {words.size}")
        parts.append(words)
    return np.concatenate(parts)


def decode(words: Words, blocks: Sequence[SumBlock], n_sites: int) -> dict[str, Any]:
    """The numbers of a sum over all sites, by block; exact ones as words."""
    found: dict[str, Any] = {}
    begin = 0
    for name, length, limit in blocks:
        part = words[begin : begin + length]
        found[name] = part if limit is None else FixedPoint(limit=limit, n_clients=n_sites).decode(part)
        begin += length
    return found


def total_length(blocks: Sequence[SumBlock]) -> int:
    """Number of words of all blocks, and of one that says whether all sites' numbers are within their range."""
    return sum(block.length for block in blocks) + 1


def in_range(words: Words) -> Words:
    """A site's words, followed by 0: its numbers are within their range."""
    return np.append(words, np.uint64(0))


def beyond_range(blocks: Sequence[SumBlock]) -> Words:
    """Random words in place of a site's, one of whose numbers is beyond its range.

    They make the whole sum random, so that it tells that some site's numbers are too large, but neither whose nor
    anything of the others', which would tell this site's by subtraction once the sum is repeated.
    """
    return np.frombuffer(secrets.token_bytes(8 * total_length(blocks)), dtype=np.uint64)


def within_range(total: Words) -> Words | None:
    """The words of a sum over all sites without the last; None if some site's numbers were beyond their range."""
    return total[:-1] if total[-1] == 0 else None


def wider(blocks: Sequence[SumBlock], factor: float) -> list[SumBlock]:
    """The blocks with limits that are so many times as large."""
    return [block if block.limit is None else block._replace(limit=factor * block.limit) for block in blocks]


def read_blocks(fields: Fields, name: str) -> list[SumBlock]:
    """Blocks that came from the coordinator, validated field by field."""
    found = []
    for item in fields.items(name):
        if not isinstance(item, list) or len(item) != 3:
            raise InvalidInput(f"{fields.source}: {name} must be lists of three")
        one = Fields(dict(zip(SumBlock._fields, item, strict=True)), f"{name} of a sum")
        limit = None if item[2] is None else one.number("limit", least=1e-300, most=1e300)
        found.append(
            SumBlock(one.text("name", longest=40), one.integer("length", least=1, most=MOST_WORDS), limit)
        )
    return found

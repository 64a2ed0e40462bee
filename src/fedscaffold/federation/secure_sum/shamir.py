"""Shamir's shares of a secret: any `threshold` of them give it back, fewer say nothing about it (Shamir 1979)."""

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**257 - 93  # above all secrets of 32 bytes
SECRET_BYTES, SHARE_BYTES = 32, 33


def split(secret: bytes, places: Sequence[int], threshold: int) -> dict[int, bytes]:
    """A share of the secret for each place, a number from 1 on.

    Values at the places of a random polynomial of degree threshold − 1 whose value at 0 is the secret.
    """
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return {place: _value(coefficients, place).to_bytes(SHARE_BYTES, "big") for place in places}


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret behind shares by place, of which at least as many as the threshold are needed.

    With fewer, or with wrong ones, it is some other 33 bytes at most: whoever combines must know how to check.
    """
    total = 0
    for place, share in shares.items():
        above = below = 1
        for other in shares:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        total += int.from_bytes(share, "big") * above * pow(below, -1, PRIME)
    return (total % PRIME).to_bytes(SHARE_BYTES, "big").removeprefix(b"\0")


def _value(coefficients: Sequence[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value

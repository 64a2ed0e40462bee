"""A clock that counts work, so that what is measured does not depend on how busy the machine is."""

import itertools

import pytest

from fedscaffold.planning import measured


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every look at the clock take a millisecond: ten seconds are 10,000 rounds of a plateau."""
    looks = itertools.count()
    monkeypatch.setattr(measured, "clock", lambda: 1e-3 * next(looks))

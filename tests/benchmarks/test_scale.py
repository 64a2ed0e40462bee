"""The benchmark of scale measures every part of a round, and its model adds them up."""

import pytest

from benchmarks import scale


@pytest.mark.slow
def test_every_part_is_timed() -> None:
    found = scale.measure(130, 1)
    assert len(found) == 8
    assert all(value > 0 for value in found.values())


def test_the_model() -> None:
    found = {"step": 100.0, "sum_over_clients": 20.0, "client_state_update": 70.0}
    seconds, size = scale.model(found, 10**6, "step")
    assert seconds == pytest.approx(1e-3 * (scale.LOCAL_STEPS * 100.0 + 90.0))
    assert size == 1e6 * (3 * 160 + 16)

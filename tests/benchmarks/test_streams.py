"""The benchmark of streamed clients runs, and compares like with like."""

import pytest

from benchmarks import streams


@pytest.mark.slow
def test_all_contenders_are_timed() -> None:
    found = streams.measure(1, stream_clients=300, table_clients=300, turns=1)
    assert min(found["stream_ns"], found["drawing_ns"], found["tables_ns"]) > 0.0


def test_the_run_is_a_run() -> None:
    found = streams.run_here(1, clients=300)
    assert found["last_mse"] < 0.2 * found["first_mse"]

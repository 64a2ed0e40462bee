"""The benchmark of secure sums adds up bytes and times."""

from benchmarks import secure_sum


def test_a_small_sum() -> None:
    found = secure_sum.measure(1000, 5, 1)
    assert found["client_seconds"] > 0.0
    assert 1.0 < found["bytes_over_plain"] < 1.3  # keys and shares of five clients beside 8,000 bytes

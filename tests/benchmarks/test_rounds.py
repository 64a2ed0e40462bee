"""The benchmark of what a round costs beside its local steps."""

from benchmarks import rounds
from benchmarks.contenders import workload
from fedscaffold.problems import Ridge


def test_a_round_is_the_kernel_and_the_rest() -> None:
    found = rounds.parts(workload(Ridge, 5, 3).problem, local_steps=2, rounds=3)
    assert min(found["kernel"], found["outside"]) > 0
    assert found["share"] == found["outside"] / (found["kernel"] + found["outside"])

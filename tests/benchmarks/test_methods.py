"""The benchmark of methods runs each of them, and counts the steps that were taken."""

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks import methods
from benchmarks.contenders import LOCAL_STEPS, workload
from fedscaffold.core.random.stream import Batches
from fedscaffold.simulation.run_method import costs


@pytest.mark.slow
def test_every_method_is_timed() -> None:
    work = workload(fs.problems.Ridge, 6, 20)
    found = methods.measure(work.problem, work.step_size, turns=2)
    assert list(found) == list(methods.contestants(work.step_size, 6))
    assert all(timing.steps > 0 for timing in found.values())
    exchanging = {name for name, timing in found.items() if timing.exchange > 0}
    assert exchanging == {"fedlin_minibatch", "fedlin_full", "local_svrg", "vr_proxskip"}


def test_random_numbers_of_steps_have_the_mean_of_the_others() -> None:
    method = methods.contestants(0.1, 6)["proxskip"]
    first = methods.first_round(100)
    mean = np.mean([methods.local_steps_of_round(method, 1, first + turn) for turn in range(100)])
    assert abs(mean / LOCAL_STEPS - 1.0) < 0.01


def test_steps_are_those_of_the_run() -> None:
    work = workload(fs.problems.Ridge, 6, 4)
    for method in methods.contestants(0.1, 6).values():
        if method.exchange is None:
            gradients, _ = costs(work.problem, method, Batches(10), seed=1, repetitions=1, rounds=5)
            counted = [methods.local_steps_of_round(method, 6, t) / 6 for t in range(5)]
            np.testing.assert_allclose(np.diff(gradients[0]), counted, rtol=1e-12)

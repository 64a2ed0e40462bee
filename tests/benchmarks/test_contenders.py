"""The benchmark's contenders compute what they are timed for."""

import numpy as np
import pytest

from benchmarks import contenders, local_steps
from fedscaffold.problems import Logistic, Ridge


@pytest.mark.parametrize("kind", [Ridge, Logistic])
@pytest.mark.skipif(not contenders.c_limit_runs_here(), reason="needs a C compiler and AVX-512")
def test_the_c_limit_gives_our_numbers(kind: type[Ridge] | type[Logistic]) -> None:
    work = local_steps.workload(kind, 7, 20)
    with contenders.ours(work, 1) as ours, contenders.c_limit(work) as limit:
        np.testing.assert_allclose(limit(), ours(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", [Ridge, Logistic])
def test_numpy_contenders_take_the_same_steps_on_average(kind: type[Ridge] | type[Logistic]) -> None:
    work = local_steps.workload(kind, 40, 5)
    opened = contenders.ours(work, 1), contenders.numpy_loop(work), contenders.numpy_across(work, chunk=15)
    with opened[0] as ours, opened[1] as loop, opened[2] as across:
        means = [one_round().mean(axis=0) for one_round in (ours, loop, across)]
    for other in means[1:]:  # noise of the mean over 40 clients is about 2 % of the norm
        assert np.linalg.norm(other - means[0]) < 0.15 * np.linalg.norm(means[0])

"""The benchmark's contenders compute what they are timed for."""

import numpy as np
import pytest

from benchmarks import c_limit, contenders
from fedscaffold.problems import Logistic, Multinomial, Ridge

FEATURES, CLIENTS = 20, 7


@pytest.mark.parametrize(
    ("kind", "dim", "batch"),
    [
        (Logistic, 20, 10),
        (Ridge, 9, 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((Ridge, 20, 10), (Multinomial, 5, 10), (Logistic, 40, 64), (Ridge, 20, None))
        ),
    ],
)
@pytest.mark.skipif(c_limit.compiler() is None, reason="needs a C compiler")
def test_every_form_of_the_c_limit_gives_our_numbers(
    kind: type[Ridge] | type[Logistic] | type[Multinomial], dim: int, batch: int | None
) -> None:
    work = contenders.workload(kind, CLIENTS, dim, batch)
    with contenders.ours(work, 1) as ours, c_limit.c_limit(work) as forms:
        expected = ours()
        for name, one_round in forms.items():
            np.testing.assert_allclose(one_round(), expected, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.slow
@pytest.mark.skipif(c_limit.compiler() is None, reason="needs a C compiler")
def test_the_portable_form_and_single_precision_give_our_numbers() -> None:
    work = contenders.workload(Logistic, CLIENTS, 20)
    with (
        contenders.ours(work, 1) as ours,
        c_limit.c_limit(work, flags=(), widths=(16,)) as forms,
    ):
        np.testing.assert_allclose(forms["16_bytes_1_together"](), ours(), rtol=1e-9, atol=1e-11)
    single = contenders.workload(Ridge, CLIENTS, 20, dtype="float32")
    double = contenders.workload(Ridge, CLIENTS, 20)
    with c_limit.c_limit(single) as forms, contenders.ours(double, 1) as exact:
        for name, one_round in forms.items():
            np.testing.assert_allclose(one_round(), exact(), rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("kind", [Ridge, Logistic])
def test_numpy_contenders_take_the_same_steps_on_average(kind: type[Ridge] | type[Logistic]) -> None:
    work = contenders.workload(kind, 40, 5)
    opened = (
        contenders.ours(work, 1),
        contenders.numpy_loop(work),
        contenders.numpy_across(work, chunk=15),
    )
    with opened[0] as ours, opened[1] as loop, opened[2] as across:
        means = [one_round().mean(axis=0) for one_round in (ours, loop, across)]
    for other in means[1:]:  # noise of the mean over 40 clients is about 2 % of the norm
        assert np.linalg.norm(other - means[0]) < 0.15 * np.linalg.norm(means[0])

"""A block of a problem's clients takes the steps that these clients take in the whole problem."""

import numpy as np
import pytest

from fedscaffold.core.protocols import Engine
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.engines import Jax, Native, Reference
from fedscaffold.problems import Ridge


@pytest.mark.parametrize(
    ("engine", "sampling"),
    [
        (Reference(), "with_replacement"),
        (Reference(), "without_replacement"),
        (Native(), "with_replacement"),
        (Native(), "without_replacement"),
        (Jax(), "without_replacement"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_block_draws_as_its_clients_do(engine: Engine, sampling: Sampling) -> None:
    rng = np.random.default_rng(3)
    sizes = [7, 5, 9, 6, 8]
    problem = Ridge([rng.standard_normal((n, 7)) for n in sizes], [rng.standard_normal(n) for n in sizes], l2=0.1)
    theta, xi = rng.standard_normal((2, 7)), rng.standard_normal((2, 5, 7))

    def models(of: Ridge, correction: np.ndarray, first_client: int) -> np.ndarray:
        with engine.open(of, Batches(3, sampling), seed=11, first_client=first_client) as local_sgd:
            return local_sgd(theta, correction, step_size=0.1, local_steps=6, round=4, first_step=1)

    whole = models(problem, xi, 0)
    block = models(problem.subset([2, 3, 4]), xi[:, 2:], 2)
    np.testing.assert_allclose(block, whole[:, 2:], rtol=1e-13)
    assert not np.allclose(models(problem.subset([2, 3, 4]), xi[:, 2:], 0), block)

"""The step size with which Scaffold is said not to diverge is the largest that Lemma 4.1 allows."""

from typing import Any

import pytest

from fedscaffold import Scaffold, theory
from tests.samples import make


@pytest.mark.parametrize("local_steps", [1, 2, 50])
def test_safe_step_size_is_that_of_lemma_4_1(local_steps: int) -> None:
    known = theory.constants(make("ridge"), batch_size=2)
    method = Scaffold(step_size=0.1, local_steps=local_steps)
    safe = method.safe_step_size(known.L, known.mu)

    def holds(step_size: float) -> bool:
        setting: dict[str, Any] = {"step_size": step_size, "local_steps": local_steps, "n_clients": 3}
        return theory.bounds.ScaffoldBounds(known, **setting).contraction().holds

    assert holds(0.999 * safe)
    assert not holds(1.001 * safe)

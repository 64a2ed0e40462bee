"""What predictions look like, and numbers of them that follow from the problem alone."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedscaffold import FedAvg, InvalidInput, Scaffold, theory
from tests.samples import make


def test_fedavgs_control_variates_are_missed_by_the_gradients_at_the_optimum() -> None:
    problem = make("logistic")
    found = theory.predict(problem, FedAvg(step_size=0.1, local_steps=3), batch_size=2)
    np.testing.assert_allclose(found.bias_xi, problem.client_gradients(problem.optimum()), rtol=1e-12)


def test_curves_start_at_zero_and_are_drawn() -> None:
    problem = make("ridge")
    found = theory.predict(problem, Scaffold(step_size=0.1, local_steps=3), batch_size=2, rounds=7)
    optimum = problem.optimum()
    assert found.curve is not None
    assert found.curve[0] == pytest.approx(optimum @ optimum)
    own = Figure().subplots()
    assert found.plot(own) is own
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in own.get_lines()}
    np.testing.assert_array_equal(lines["predicted"], found.curve)
    assert set(lines["predicted plateau"]) == {found.mse}


def test_summaries_are_short_and_comparisons_do_not_raise() -> None:
    problem, method = make("ridge"), Scaffold(step_size=0.1, local_steps=3)
    known = theory.constants(problem, batch_size=2)
    setting: dict[str, Any] = {"step_size": 0.01, "local_steps": 3, "n_clients": 3}
    results: list[Any] = [
        theory.predict(problem, method, batch_size=2),
        theory.expansion(problem, method, batch_size=2),
        known,
        theory.bounds.ScaffoldBounds(known, **setting).contraction(),
        theory.bounds.complexity(known, target=0.1, n_clients=3, squared_error=1.0),
    ]
    for one in results:
        assert max(map(len, repr(one).splitlines())) < 80
        assert "<td>" in one._repr_html_()
        assert one == one
        assert one != method
    first = results[0]
    assert f"mse: {first.mse:.4g}" in repr(first)
    with pytest.raises(InvalidInput, match="rounds=100"):
        first.plot()

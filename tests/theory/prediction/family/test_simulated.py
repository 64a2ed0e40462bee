"""Plateaus, curves and intervals of the family against simulation, and what is refused."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.methods.scaffold import Scaffold
from fedscaffold.problems import Logistic
from tests.samples import make

GAMMA, H, BATCH, N, D = 0.15, 8, 2, 5, 2
MOMENTUM = fs.ServerOptimizer(
    method=fs.Scaffold(step_size=GAMMA, local_steps=H), optimizer="sgd", learning_rate=0.6,
    options={"momentum": 0.4},
)  # fmt: skip
METHODS: dict[str, Any] = {
    "scaffold, cohorts": fs.Scaffold(step_size=GAMMA, local_steps=H, cohort=3),
    "scaffold, unequal steps": fs.Scaffold(step_size=GAMMA, local_steps=(2, 4, 8, 12, 14)),
    "fedavg, cohorts": fs.FedAvg(step_size=GAMMA, local_steps=H, cohort=2),
    "two-sided": fs.TwoSidedScaffold(step_size=GAMMA, local_steps=H, server_step_size=0.7, cohort=3),
    "proxskip": fs.ProxSkip(step_size=GAMMA, communication_probability=0.15),
    "fedlin": fs.FedLin(step_size=GAMMA, local_steps=H),
    "fedlin, minibatch": fs.FedLin(step_size=GAMMA, local_steps=H, correction_gradients="minibatch"),
    "momentum": MOMENTUM,
}
EVERY = [name if name == "proxskip" else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]


def problem_of() -> Logistic:
    return make("logistic", (12,) * N, D, l2=0.1)  # type: ignore[return-value]


@pytest.mark.parametrize("name", EVERY)
def test_logistic_plateaus_and_curves(name: str) -> None:
    """Within 6 % and 4 standard errors: false alarms of a right prediction are one in ten thousand."""
    problem, method = problem_of(), METHODS[name]
    found = fs.theory.predict(problem, method, batch_size=BATCH, rounds=10)
    trace = fs.run(problem, method, rounds=160, batch_size=BATCH, repetitions=400, seed=5, progress=False)
    tail = trace.mse[:, 60:].mean(axis=1)
    error = tail.std(ddof=1) / np.sqrt(len(tail))
    assert abs(found.mse - tail.mean()) <= 0.06 * found.mse + 4 * error
    assert error < 0.02 * found.mse
    assert found.curve is not None
    early = trace.mse[:, 1:11]
    errors = early.std(axis=0, ddof=1) / np.sqrt(len(early))
    assert (np.abs(found.curve[1:] - early.mean(axis=0)) <= 0.06 * found.curve[1:] + 4 * errors).all()
    last = trace.mse[:, -1]
    low, high = fs.theory.error_interval(found.bias, found.cov_theta, level=0.8)
    assert np.mean((last > low) & (last < high)) == pytest.approx(0.8, abs=0.1)


def test_the_general_way_agrees_with_scaffolds_own_predictor() -> None:
    """Two-sided with a server step of 1 and all clients is Scaffold, for which there is another predictor."""
    for kind, within in (("ridge", 1e-5), ("logistic", 0.02)):
        problem = make(kind, (12,) * N, D, l2=0.1)  # type: ignore[arg-type]
        own = fs.theory.predict(problem, fs.Scaffold(step_size=0.1, local_steps=H), batch_size=BATCH)
        same = fs.TwoSidedScaffold(step_size=0.1, local_steps=H, server_step_size=1.0)
        general = fs.theory.predict(problem, same, batch_size=BATCH)
        assert general.mse_variance_part == pytest.approx(own.mse_variance_part, rel=within)
        np.testing.assert_allclose(general.bias_xi, own.bias_xi, atol=within)


def test_the_curve_of_ridge_ends_on_the_plateau() -> None:
    problem = make("ridge", (12,) * N, D, l2=0.3)
    found = fs.theory.predict(problem, fs.FedLin(step_size=0.05, local_steps=H), batch_size=BATCH, rounds=300)
    assert found.curve is not None
    assert found.curve[0] == pytest.approx(float(problem.optimum() @ problem.optimum()))
    assert found.curve[-1] == pytest.approx(found.mse, rel=1e-6)


class Own(Scaffold):
    """A method of one's own: Scaffold whose control variates move half as far."""

    kind = "own"

    def update_clients(self, client_state: Any, sent: Any, before: Any, after: Any) -> Any:
        full = super().update_clients(client_state, sent, before, after)
        return type(full)(xi=0.5 * (client_state.xi + full.xi))


def test_a_method_of_ones_own_is_predicted() -> None:
    problem = make("ridge", (12,) * N, D, l2=0.3)
    method = Own(step_size=0.1, local_steps=4)
    found = fs.theory.predict(problem, method, batch_size=BATCH)
    trace = fs.run(problem, method, rounds=200, batch_size=BATCH, repetitions=300, progress=False)
    tail = trace.mse[:, 80:].mean(axis=1)
    assert abs(found.mse - tail.mean()) <= 0.03 * found.mse + 4 * tail.std() / np.sqrt(len(tail))


@pytest.mark.parametrize(
    ("method", "weights", "message"),
    [
        (
            fs.ServerOptimizer(
                method=fs.FedAvg(step_size=0.1, local_steps=2), optimizer="adam", learning_rate=0.1
            ),
            None,
            "combine models linearly",
        ),
        (fs.Scaffold(step_size=0.1, local_steps=2, cohort=2), (1.0, 2.0, 3.0, 4.0, 5.0), "unequal weight"),
        (fs.FedLin(step_size=5.0, local_steps=2), None, "does not contract"),
    ],
)
def test_refusals(method: Any, weights: Any, message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message):
        fs.theory.predict(make("ridge", (6,) * N, D, weights=weights), method, batch_size=1)


def test_too_many_clients_are_refused_before_any_work() -> None:
    problem = fs.problems.RidgeStream(n_clients=400, dim=3)
    with pytest.raises(fs.InvalidInput, match="up to 600 numbers"):
        fs.theory.predict(problem, fs.FedLin(step_size=0.1, local_steps=2), batch_size=1)


def test_intervals_refuse_what_is_no_probability() -> None:
    with pytest.raises(fs.InvalidInput, match="level"):
        fs.theory.error_interval(np.zeros(1), np.eye(1), level=1.0)
    low, high = fs.theory.error_interval(np.zeros(1), np.eye(1), level=0.9)
    assert low == pytest.approx(0.0039, rel=0.05)
    assert high == pytest.approx(3.84, rel=0.02)

"""Curves of linear methods against simulation, and methods that have no exact law."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.methods.scaffold import Scaffold
from fedscaffold.theory.exact import error_interval, exact_law, is_exact
from tests.samples import make, systems

GAMMA, H, BATCH, N, D, ROUNDS, RUNS = 0.1, 5, 2, 4, 2, 12, 4000


class Own(Scaffold):
    """Scaffold whose control variates move half as far."""

    kind = "own"

    def update_clients(self, client_state: Any, sent: Any, before: Any, after: Any) -> Any:
        full = super().update_clients(client_state, sent, before, after)
        return type(full)(xi=0.5 * (client_state.xi + full.xi))


PROBLEMS: dict[str, Any] = {
    "ridge": lambda: make("ridge", (9,) * N, D, l2=0.3),
    "stream": lambda: fs.problems.RidgeStream(n_clients=N, dim=D, l2=0.1),
    "linear": lambda: systems((9,) * N, D),
    "td": lambda: fs.problems.GarnetTD(n_clients=N, states=6, dim=D, discount=0.5),
}
METHODS: dict[str, Any] = {
    "scaffold": fs.Scaffold(step_size=GAMMA, local_steps=H),
    "cohorts": fs.Scaffold(step_size=GAMMA, local_steps=H, cohort=3),
    "proxskip": fs.ProxSkip(step_size=GAMMA, communication_probability=0.2),
    "pull": fs.FedProx(step_size=GAMMA, local_steps=H, proximal_weight=1.0),
    "pull and state": fs.FedSplit(step_size=GAMMA, local_steps=H, proximal_weight=2.0),
    "anchor": fs.LocalSvrg(step_size=GAMMA, local_steps=H),
    "anchor and state": fs.VRProxSkip(step_size=GAMMA, communication_probability=0.2),
    "own": Own(step_size=GAMMA, local_steps=H),
}
PAIRS = [*(("ridge", name) for name in METHODS), ("stream", "scaffold"), ("linear", "cohorts"), ("td", "scaffold")]


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_curves_are_the_mean_of_runs(kind: str, name: str) -> None:
    """Within 4.5 standard errors, which are a few percent: a wrong sign or a factor of two is far outside."""
    problem, method = PROBLEMS[kind](), METHODS[name]
    found = exact_law(problem, method, Batches(BATCH), rounds=ROUNDS).curve
    mse = fs.run(
        problem, method, rounds=ROUNDS, batch_size=BATCH, repetitions=RUNS, seed=5, progress=False, engine="native"
    ).mse
    error = mse.std(axis=0, ddof=1)[1:] / np.sqrt(RUNS)
    assert found is not None
    assert (error[:5] < 0.04 * found[1:6]).all()
    assert (np.abs(found - mse.mean(axis=0))[1:] <= 4.5 * error + 1e-12).all()
    assert found[0] == pytest.approx(float(problem.optimum() @ problem.optimum()))


def test_the_start_is_that_of_the_run() -> None:
    problem, method = PROBLEMS["ridge"](), METHODS["cohorts"]
    start = problem.optimum() + 3.0
    found = exact_law(problem, method, Batches(None), rounds=6, theta0=start).curve
    runs = fs.run(problem, method, rounds=6, repetitions=3000, theta0=start, seed=1, progress=False).mse
    error = runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
    assert found is not None
    assert (np.abs(found - runs.mean(axis=0)) <= 4.5 * error + 1e-9).all()
    assert found[0] == pytest.approx(9.0 * D)


def test_the_errors_of_single_runs_lie_in_the_interval() -> None:
    problem, method = PROBLEMS["ridge"](), METHODS["scaffold"]
    law = exact_law(problem, method, Batches(BATCH))
    last = fs.run(problem, method, rounds=60, batch_size=BATCH, repetitions=2000, progress=False).mse[:, -1]
    low, high = error_interval(law.bias, law.cov_theta, level=0.8)
    assert np.mean((last > low) & (last < high)) == pytest.approx(0.8, abs=0.03)
    low, high = error_interval(np.zeros(1), np.eye(1), level=0.9)
    assert (low, high) == pytest.approx((0.0039, 3.84), rel=0.05)
    with pytest.raises(fs.InvalidInput, match="level"):
        error_interval(np.zeros(1), np.eye(1), level=1.0)


ADAM = fs.ServerOptimizer(method=fs.FedAvg(step_size=0.1, local_steps=2), optimizer="adam", learning_rate=0.1)
NOT_EXACT: dict[str, tuple[Any, Any, Any, str]] = {
    "not quadratic": (make("logistic", (6,) * N, D), METHODS["scaffold"], None, "only quadratic losses"),
    "not linear": (PROBLEMS["ridge"](), ADAM, None, "do not combine models linearly"),
    "compressed": (
        PROBLEMS["ridge"](),
        fs.Tamuna(step_size=0.1, communication_probability=0.3, owners=2),
        None,
        "do not combine models linearly",
    ),
    "own start": (
        PROBLEMS["ridge"](),
        fs.RandProx(step_size=0.1, communication_probability=0.3, share=0.5),
        None,
        "do not combine models linearly",
    ),
    "unequal weights": (
        make("ridge", (6,) * N, D, weights=(1.0, 2.0, 3.0, 4.0)),
        METHODS["cohorts"],
        None,
        "the same weight",
    ),
    "clipped": (
        PROBLEMS["ridge"](),
        METHODS["scaffold"],
        fs.privacy.RecordLevel(clip=1e6, noise_multiplier=1e-6),
        "clipped gradients",
    ),
    "along a chain": (
        fs.problems.GarnetTD(n_clients=2, states=6, dim=2, sampling="markov"),
        METHODS["scaffold"],
        None,
        "Markov chain",
    ),
    "too many states": (
        fs.problems.RidgeStream(n_clients=400, dim=3),
        fs.ProxSkip(step_size=0.1, communication_probability=0.2),
        None,
        "too long",
    ),
}


@pytest.mark.parametrize("name", NOT_EXACT)
def test_what_is_not_exact_says_so_at_once(name: str) -> None:
    problem, method, privacy, message = NOT_EXACT[name]
    assert not is_exact(problem, method, Batches(1), privacy)
    with pytest.raises(fs.InvalidInput, match=message):
        exact_law(problem, method, Batches(1), privacy=privacy)


def test_clients_without_state_may_be_many() -> None:
    """FedLin's clients keep nothing, so that no number grows with the square of theirs."""
    problem, method = fs.problems.RidgeStream(n_clients=2000, dim=3), fs.FedLin(step_size=0.1, local_steps=4)
    law = exact_law(problem, method, Batches(4))
    few = exact_law(problem.subset(np.arange(200)), method, Batches(4))
    assert np.trace(few.cov_theta) / np.trace(law.cov_theta) == pytest.approx(10.0, rel=0.1)


def test_full_gradients_along_a_chain_are_exact() -> None:
    problem = fs.problems.GarnetTD(n_clients=2, states=6, dim=2, sampling="markov")
    found = exact_law(problem, METHODS["scaffold"], Batches(None), rounds=5).curve
    mse = fs.run(problem, METHODS["scaffold"], rounds=5, progress=False).mse[0]
    assert found is not None
    np.testing.assert_allclose(found, mse, rtol=1e-10)

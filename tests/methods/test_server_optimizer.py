"""An optimiser on the server: by hand, with every method and engine, and in checkpoints."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import fedscaffold as fs
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from tests.samples import make

SIZES, DIM, WEIGHTS = (12, 20, 9, 15), 3, (1.0, 4.0, 0.5, 2.0)
SCAFFOLD = fs.Scaffold(step_size=0.1, local_steps=5)
METHODS: dict[str, Method] = {
    "Scaffold": SCAFFOLD,
    "cohorts": fs.Scaffold(step_size=0.1, local_steps=5, cohort=2),
    "unequal steps": fs.Scaffold(step_size=0.1, local_steps=(3, 9, 1, 6)),
    "FedAvg": fs.FedAvg(step_size=0.1, local_steps=5, participation=0.5),
    "two-sided": fs.TwoSidedScaffold(step_size=0.1, local_steps=5, server_step_size=0.8, cohort=2),
    "ProxSkip": fs.ProxSkip(step_size=0.1, communication_probability=0.3),
    "FedLin": fs.FedLin(step_size=0.1, local_steps=5),
}
USUAL: dict[str, Any] = {"rounds": 7, "batch_size": 3, "seed": 4, "repetitions": 2, "progress": False}


def problem() -> Any:
    return make("logistic", SIZES, DIM, weights=WEIGHTS)


def wrapped(method: Method = SCAFFOLD, optimizer: Any = "adam", rate: float = 0.05, **options: Any) -> Any:
    return fs.ServerOptimizer(method=method, optimizer=optimizer, learning_rate=rate, options=options)


@pytest.mark.parametrize("name", METHODS)
def test_sgd_with_a_learning_rate_of_one_is_the_method_itself(name: str) -> None:
    plain, other = (fs.run(problem(), m, **USUAL) for m in (METHODS[name], wrapped(METHODS[name], "sgd", 1.0)))
    assert other.theta.tobytes() == plain.theta.tobytes()
    assert other.control_variates.tobytes() == plain.control_variates.tobytes()
    assert other.mse.tobytes() == plain.mse.tobytes()


def momentum(rate: float, decay: float) -> Callable[[Array], Array]:
    velocity: Array | float = 0.0

    def update(gradient: Array) -> Array:
        nonlocal velocity
        velocity = decay * velocity + gradient
        return -rate * velocity

    return update


def adam(rate: float, b1: float, b2: float, eps: float) -> Callable[[Array], Array]:
    first: Any = 0.0
    second: Any = 0.0
    t = 0

    def update(gradient: Array) -> Array:
        nonlocal first, second, t
        t += 1
        first, second = b1 * first + (1 - b1) * gradient, b2 * second + (1 - b2) * gradient**2
        return -rate * (first / (1 - b1**t)) / (np.sqrt(second / (1 - b2**t)) + eps)

    return update


BY_HAND: dict[str, tuple[Any, Callable[[], Callable[[Array], Array]]]] = {
    "sgd": (wrapped(SCAFFOLD, "sgd", 0.7), lambda: momentum(0.7, 0.0)),
    "momentum": (wrapped(SCAFFOLD, "sgd", 0.4, momentum=0.8), lambda: momentum(0.4, 0.8)),
    "adam": (
        wrapped(SCAFFOLD, "adam", 0.05, b1=0.8, b2=0.95, eps=1e-6),
        lambda: adam(0.05, 0.8, 0.95, 1e-6),
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_against_the_formulas_written_out(name: str) -> None:
    """Scaffold's round with θ⁺ from the update of θ − Σ w_c θ_c, and ξ_c from Σ w_c θ_c."""
    method, make_update = BY_HAND[name]
    task, gamma, H = problem(), SCAFFOLD.step_size, SCAFFOLD.uniform_local_steps
    found = fs.run(task, method, **USUAL)
    thetas, xis, updates = np.zeros((2, DIM)), np.zeros((2, 4, DIM)), [make_update(), make_update()]
    with fs.engines.Reference().open(task, Batches(3), seed=4) as local_sgd:
        for t in range(7):
            local = local_sgd(thetas, xis, step_size=gamma, local_steps=H, round=t)
            for r in range(2):
                mean = task.weights @ local[r]
                xis[r] += (local[r] - mean) / (gamma * H)
                thetas[r] = thetas[r] + updates[r](thetas[r] - mean)
    np.testing.assert_allclose(found.theta, thetas, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.control_variates, xis, rtol=0, atol=1e-11)


@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "amsgrad", "rmsprop", "sgd", "yogi"])
@pytest.mark.parametrize("name", ["cohorts", "unequal steps", "ProxSkip", "two-sided"])
def test_control_variates_sum_to_zero(name: str, optimizer: str) -> None:
    task = problem()
    xi = fs.run(task, wrapped(METHODS[name], optimizer, 0.3), **USUAL).control_variates
    assert np.abs(xi).max() > 1e-2
    assert np.abs(np.einsum("c,rcj->rj", task.weights, xi)).max() < 1e-12


@pytest.mark.parametrize("engine", [pytest.param("jax", marks=pytest.mark.slow), "reference"])
@pytest.mark.parametrize("name", ["cohorts", "FedLin"])
def test_engines_agree(name: str, engine: str) -> None:
    fast, other = (fs.run(problem(), wrapped(METHODS[name]), engine=each, **USUAL) for each in ("native", engine))
    np.testing.assert_allclose(other.theta, fast.theta, rtol=0, atol=1e-12)


def test_without_noise_momentum_reaches_the_optimum() -> None:
    ends = [
        fs.run(problem(), wrapped(m, "sgd", 0.5, momentum=0.5), rounds=300).mse[0, -1]
        for m in (SCAFFOLD, fs.FedAvg(step_size=0.1, local_steps=5))
    ]
    assert ends[0] < 1e-16
    assert ends[1] > 1e-4


def test_repetitions_have_states_of_their_own() -> None:
    few, many = (fs.run(problem(), wrapped(), **{**USUAL, "repetitions": r}) for r in (1, 4))
    np.testing.assert_array_equal(few.theta[0], many.theta[0])
    assert len(np.unique(many.theta[:, 0])) == 4


@pytest.mark.parametrize("name", ["cohorts", "two-sided"])
def test_checkpoints_resume_to_the_same_bits(name: str, tmp_path: Path) -> None:
    method, file = wrapped(METHODS[name]), tmp_path / "run.npz"
    whole = fs.run(problem(), method, **USUAL)
    fs.run(problem(), method, **{**USUAL, "rounds": 3}, checkpoint=file)
    rest = fs.run(problem(), method, **USUAL, checkpoint=file)
    assert rest.theta.tobytes() == whole.theta.tobytes()
    assert rest.control_variates.tobytes() == whole.control_variates.tobytes()


@pytest.mark.parametrize(
    "other",
    [
        wrapped(fs.FedAvg(step_size=0.1, local_steps=5)),
        wrapped(fs.Scaffold(step_size=0.2, local_steps=5)),
        wrapped(rate=0.06),
        wrapped(b1=0.8),
        wrapped(optimizer="yogi"),
        SCAFFOLD,
    ],
)
def test_checkpoints_of_another_optimizer_or_method_are_refused(other: Method, tmp_path: Path) -> None:
    fs.run(problem(), wrapped(), **USUAL, checkpoint=tmp_path / "run.npz")
    with pytest.raises(fs.CheckpointMismatch, match="method"):
        fs.run(problem(), other, **USUAL, checkpoint=tmp_path / "run.npz")


def test_provenance_and_costs() -> None:
    trace = fs.run(problem(), wrapped(b1=0.8), **USUAL)
    described = trace.provenance["method"]
    assert described["method"]["name"] == "Scaffold"
    assert (described["optimizer"], described["options"]) == ("adam", (("b1", 0.8),))
    assert hash(wrapped(b1=0.8, b2=0.9)) == hash(wrapped(b2=0.9, b1=0.8))
    wanted = {"Scaffold": 3, "ProxSkip": 3, "FedAvg": 2, "two-sided": 3, "FedLin": 4}
    assert {name: wrapped(METHODS[name]).vectors_per_round for name in wanted} == wanted


def test_theory_and_what_builds_on_it_reject_it_and_predictions_are_measured() -> None:
    task, method = problem(), wrapped()
    assert fs.theory.predict(task, method, batch_size=3, accuracy=0.2).how == "measured"
    with pytest.raises(fs.InvalidInput, match="not of scaffold with adam on the server"):
        fs.theory.expansion(task, method, batch_size=3)
    with pytest.raises(fs.InvalidInput, match="stages need a method with a step_size"):
        fs.staged(task, method, rounds=9, batch_size=3)
    with pytest.raises(fs.InvalidInput):
        fs.richardson_romberg(task, method, rounds=9, batch_size=3)


@pytest.mark.parametrize("method", [
    fs.FedProx(step_size=0.1, local_steps=5, proximal_weight=0.5),
    fs.FedSplit(step_size=0.1, local_steps=5, proximal_weight=0.5),
])  # fmt: skip
def test_predictions_that_theory_does_not_model_are_measured(method: Method) -> None:
    for each in (method, wrapped(method, "sgd", 0.5)):
        assert fs.theory.predict(problem(), each, batch_size=3, accuracy=0.2).how == "measured"
        with pytest.raises(fs.InvalidInput, match="leave how out"):
            fs.theory.predict(problem(), each, batch_size=3, how="exact")


def test_divergence_vouches_for_no_step_size() -> None:
    with pytest.raises(fs.Diverged, match=r"ServerOptimizer diverged .* No step size can be vouched for"):
        fs.run(problem(), wrapped(optimizer="sgd", rate=1e3), rounds=300)
    assert wrapped(optimizer="sgd", rate=0.5).safe_step_size(1.0, 0.1) == SCAFFOLD.safe_step_size(1.0, 0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "newton"}, "optimizer must be one of .*'adam'"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive number"),
        ({"options": {"momentun": 0.9}}, "optax.adam does not take these options.*momentun"),
        (
            {"optimizer": "sgd", "options": {"momentun": 0.9}},
            r"sgd takes the options momentum and .*\['momentun'\]",
        ),
        ({"options": 0.9}, "options must map names to numbers"),
        ({"options": {"b1": "0.9"}}, "options must map names to numbers"),
        ({"method": "scaffold"}, "method must be a method such as Scaffold"),
        ({"method": wrapped()}, "method must be a method such as Scaffold"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"method": SCAFFOLD, "optimizer": "adam", "learning_rate": 0.1}
    with pytest.raises(fs.InvalidInput, match=message):
        fs.ServerOptimizer(**(usual | arguments))


def test_without_optax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    monkeypatch.delitem(sys.modules, "fedscaffold.methods.optax_")
    with pytest.raises(fs.MissingDependency, match=r"pip install 'fedscaffold\[jax\]'"):
        wrapped()


def test_sgd_needs_neither_optax_nor_jax() -> None:
    """In an own process, since other tests have loaded both."""
    code = (
        "import sys; sys.modules['optax'] = sys.modules['jax'] = None; import fedscaffold as fs\n"
        "scaffold = fs.Scaffold(step_size=0.1, local_steps=2)\n"
        "method = fs.ServerOptimizer(\n"
        "    method=scaffold, optimizer='sgd', learning_rate=0.5, options={'momentum': 0.5})\n"
        "problem = fs.problems.paper('regression', n_clients=2)\n"
        "print(fs.run(problem, method, rounds=2, engine='reference').rounds)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "2\n", done.stderr


@pytest.mark.parametrize("options", [{}, {"momentum": 0.8}, {"momentum": 0.8, "nesterov": True}])
def test_sgd_is_that_of_optax(options: dict[str, Any]) -> None:
    rng, theta = np.random.default_rng(0), np.zeros((2, 3))
    rule, other = wrapped(SCAFFOLD, "sgd", 0.3, **options)._rule, optax.sgd(0.3, **options)
    with jax.enable_x64(True):
        ours, theirs = rule.begin(theta), other.init(theta)
        for _ in range(4):
            gradient = rng.normal(size=(2, 3))
            update, ours = rule.step(gradient, ours)
            wanted, theirs = other.update(gradient, theirs)
            np.testing.assert_allclose(update, wanted, rtol=1e-14)

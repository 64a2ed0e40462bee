"""PyTorch clients: the simulation's numbers in float64, and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.stream import Batches
from fedscaffold.federation import LocalTask
from tests.extras import optional
from tests.federation.federation import Federation
from tests.federation.test_protocol import METHODS
from tests.samples import make

torch = optional("torch")

from fedscaffold.flower.torch import CorrectedSGD, Training, TrainingTask, get_parameters, set_parameters  # noqa: E402

SIZES = (6, 9, 4, 7, 5)
ANCHORED = (fs.LocalSvrg, fs.VRProxSkip)


def training(problem: Any, client: int, dtype: Any = None) -> Training:
    """Logistic regression of one client, written as one would in PyTorch."""
    part = slice(problem.offsets[client], problem.offsets[client + 1])
    dtype = dtype or torch.float64
    x, y = torch.tensor(problem.x[part], dtype=dtype), torch.tensor(problem.y[part], dtype=dtype)

    def train(model: Any, optimizer: CorrectedSGD, task: TrainingTask) -> None:
        for rows in task.rows(len(y)):
            optimizer.zero_grad()
            margins = y[rows] * model(x[rows])[:, 0]
            penalty = 0.5 * problem.l2 * sum((p**2).sum() for p in model.parameters())
            (torch.nn.functional.softplus(-margins).mean() + penalty).backward()
            optimizer.step()

    model = torch.nn.Linear(problem.dim, 1, bias=False, dtype=dtype)
    return Training(model, train, n_rows=len(y))


class TorchFederation(Federation):
    def work_of(self, client: int) -> LocalTask:
        return training(self.problem, client)


@pytest.mark.parametrize("method", [each for each in METHODS if not isinstance(each, ANCHORED)], ids=repr)
def test_numbers_are_those_of_the_simulation(tmp_path: Path, method: Method) -> None:
    federation = TorchFederation(tmp_path, make("logistic", SIZES, 3), method)
    federation.run(5)
    simulated = federation.simulated(5)
    np.testing.assert_allclose(federation.ledger.server.theta, simulated.theta, rtol=0, atol=1e-11)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_federation_of_modules_is_the_simulation_and_its_own_training_loop(
    tmp_path: Path, method: Method
) -> None:
    """`problems.Torch` on each client, against the same on all of them, and against a loop in plain PyTorch."""
    table = make("logistic", SIZES, 3)
    layer = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(layer.weight)

    def loss(output: Any, target: Any) -> Any:
        return torch.nn.functional.softplus(-target * output[:, 0])

    clients = list(
        zip(np.split(table.x, table.offsets[1:-1]), np.split(table.y, table.offsets[1:-1]), strict=True)
    )
    problem: Any = fs.problems.Torch(layer, loss, clients, l2=table.l2)
    federation = Federation(tmp_path / "modules", problem, method)
    federation.run(4)
    theta = federation.ledger.server.theta
    np.testing.assert_allclose(theta, federation.simulated(4).theta, rtol=0, atol=1e-12)
    if not isinstance(method, ANCHORED):
        loops = TorchFederation(tmp_path / "loops", table, method)
        loops.run(4)
        np.testing.assert_allclose(theta, loops.ledger.server.theta, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [each for each in METHODS if isinstance(each, ANCHORED)], ids=repr)
def test_methods_with_an_anchor_are_refused(method: Method) -> None:
    problem = make("logistic", SIZES, 3)
    with training(problem, 0).open(Batches(), seed=0, client=0) as local_sgd:
        theta = np.zeros((1, 3))
        with pytest.raises(InvalidInput, match="without variance reduction"):
            local_sgd(
                theta, np.zeros((1, 1, 3)), step_size=0.1, local_steps=2, round=0,
                anchor=method.anchor(method.init_clients(1, np.ones(1), 3, None), method.init_server(theta)),
            )  # fmt: skip


def test_the_pull_is_that_of_the_reference_engine() -> None:
    """θ_c ← θ_c − γ(g_c(θ_c) + ξ_c + λ(θ_c − θ)), from the server's θ and from a model of the client's own."""
    problem = make("logistic", SIZES, 3)
    theta, xi = np.array([[0.3, -0.2, 0.5]]), np.array([[[0.1, 0.0, -0.4]]])
    options: dict[str, Any] = {"step_size": 0.2, "local_steps": 4, "round": 3, "pull": 0.7}
    with (
        training(problem, 0).open(Batches(), seed=5, client=0) as by_torch,
        fs.engines.Reference().open(problem.subset([0]), Batches(), seed=5) as by_reference,
    ):
        for begun in (theta, theta[:, None, :] + 0.1):
            found, right = by_torch(begun, xi, **options), by_reference(begun, xi, **options)
            np.testing.assert_allclose(found, right, rtol=0, atol=1e-13)
            without = by_reference(begun, xi, **{**options, "pull": 0.0})
            assert np.abs(right - without).max() > 0.01  # so that a pull left out would be seen


def test_single_precision_keeps_the_sum(tmp_path: Path) -> None:
    """Models compute in float32, client states are in float64: Σ w_c ξ_c = 0 to float64's precision."""

    class Single(Federation):
        def work_of(self, client: int) -> LocalTask:
            return training(self.problem, client, torch.float32)

    method = fs.Scaffold(step_size=0.1, local_steps=4)
    federation = Single(tmp_path, make("logistic", SIZES, 3), method)
    federation.run(30)
    assert federation.drift() < 1e-13
    assert np.abs(federation.ledger.server.theta - federation.simulated(30).theta).max() < 1e-5


def local_sgd(work: Training, **more: Any) -> Any:
    from fedscaffold.core.random.stream import Batches

    with work.open(Batches(2), seed=0, client=0) as run:
        return run(
            np.zeros((1, work.dim)), np.zeros((1, 1, work.dim)), step_size=0.1, local_steps=3, round=0, **more
        )


@pytest.mark.parametrize(("steps", "message"), [(2, "took 2"), (4, "takes one more")])
def test_the_number_of_steps_is_checked(steps: int, message: str) -> None:
    def train(model: Any, optimizer: CorrectedSGD, task: TrainingTask) -> None:
        for _ in range(steps):
            optimizer.step()

    with pytest.raises(FedScaffoldError, match=message):
        local_sgd(Training(torch.nn.Linear(2, 1), train, n_rows=1))


def test_another_learning_rate_is_refused() -> None:
    def train(model: Any, optimizer: CorrectedSGD, task: TrainingTask) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        optimizer.step()

    with pytest.raises(FedScaffoldError, match="learning rate was changed"):
        local_sgd(Training(torch.nn.Linear(2, 1), train, n_rows=1))


def test_models_that_do_not_fit_are_refused() -> None:
    def train(model: Any, optimizer: CorrectedSGD, task: TrainingTask) -> None:
        raise AssertionError("not called")

    with pytest.raises(InvalidInput, match="running_mean"):
        Training(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), train, n_rows=1)
    with pytest.raises(InvalidInput, match="no parameters"):
        Training(torch.nn.Linear(2, 2).requires_grad_(False), train, n_rows=1)
    with pytest.raises(InvalidInput, match="has 6 parameters, but θ has 5"):
        set_parameters(torch.nn.Linear(2, 2), np.zeros(5))


def test_vectors_and_models() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2, dtype=torch.float64))
    theta = np.arange(26.0)
    set_parameters(model, theta)
    np.testing.assert_array_equal(get_parameters(model), theta)
    assert float(model[0].bias[1].detach()) == 13.0

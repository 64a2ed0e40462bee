"""PyTorch modules as problems: losses, derivatives, parameters in and out, and one sentence for each bad input."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.problems import Differentiable
from tests.extras import optional
from tests.samples import make, tables

torch = optional("torch")
Module: Any = torch.nn.Module

SIZES = (6, 9, 4)
CROSS_ENTROPY = torch.nn.CrossEntropyLoss(reduction="none")


def half_squares(output: Any, target: Any) -> Any:
    return 0.5 * (output[:, 0] - target) ** 2


def logistic(output: Any, target: Any) -> Any:
    return torch.nn.functional.softplus(-target * output[:, 0])


def classes(sizes: Any = (12, 15, 20), seed: int = 0) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, 4)), rng.integers(0, 3, size=n)) for n in sizes]


def layers(*extra: Any) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), *extra, torch.nn.Linear(6, 3))


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_a_layer_has_the_derivatives_of_the_table(kind: Any) -> None:
    layer = torch.nn.Linear(3, 1, bias=False)
    clients = list(zip(*tables(kind, SIZES, 3), strict=True))
    loss = half_squares if kind == "ridge" else logistic
    own: Any = fs.problems.Torch(layer, loss, clients, l2=0.1, weights=(1, 2, 3))
    table: Any = make(kind, SIZES, 3, weights=(1, 2, 3))
    theta, v = np.array([0.3, -0.5, 0.2]), np.random.default_rng(1).normal(size=(3, 2))
    wanted: dict[str, Callable[[Any], Any]] = {
        "loss": lambda p: p.loss(theta),
        "gradient": lambda p: p.gradient(theta),
        "hessian": lambda p: p.hessian(theta),
        "optimum": lambda p: p.optimum(),
        "client_losses": lambda p: p.client_losses(theta),
        "client_gradients": lambda p: p.client_gradients(theta),
        "client_hessians": lambda p: p.client_hessians(theta),
        "noise": lambda p: p.client_noise_along(theta, v, batch_size=2),
        "batch": lambda p: p.batch_gradient(1, theta, np.array([0, 0, 5])),
        "clipped": lambda p: p.clipped_gradient(1, theta, np.array([0, 3, 5]), 0.2, 0.1),
        "subset": lambda p: p.subset([2, 0]).gradient(theta),
    }
    for name, of in wanted.items():
        np.testing.assert_allclose(of(own), of(table), rtol=0, atol=1e-10, err_msg=name)
    if kind == "ridge":  # whose curvature is the same everywhere
        assert own.smoothness(Batches(2)) == pytest.approx(table.smoothness(Batches(2)), rel=1e-6)


def test_a_network_has_the_derivatives_that_jax_gives() -> None:
    """Hessian, curvature and noise of a network with one hidden layer, in double precision."""
    jnp = optional("jax.numpy")
    clients = list(zip(*tables("ridge", SIZES, 3), strict=True))
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    own = fs.problems.Torch(module, half_squares, clients, l2=0.1)

    def loss(params: Any, batch: Any) -> Any:
        a, b, c, d = params
        found = jnp.tanh(batch[0] @ a.T + b) @ c.T + d
        return 0.5 * jnp.mean((found[:, 0] - batch[1]) ** 2)

    other = Differentiable(loss, [p.detach().numpy() for p in module.parameters()], clients, l2=0.1)
    theta = own.initial
    np.testing.assert_allclose(other.initial, theta)
    measures: list[Callable[[Any], Any]] = [
        lambda p: p.hessian(theta),
        lambda p: p.client_noise_covariances(theta, batch_size=2),
        lambda p: p.smoothness(Batches(2)),
        lambda p: p.smoothness(Batches()),
    ]
    for of in measures:
        np.testing.assert_allclose(of(own), of(other), rtol=1e-9, atol=1e-10)


def test_modules_and_state_dicts_go_in_and_come_out() -> None:
    module = layers()
    problem = fs.problems.Torch(module, CROSS_ENTROPY, classes())
    assert problem.dim == sum(p.numel() for p in module.parameters())
    before = {name: values.clone() for name, values in module.state_dict().items()}
    method = fs.Scaffold(step_size=0.3, local_steps=10)
    trace = fs.run(problem, method, rounds=30, batch_size=5, record=("loss", "accuracy"))
    assert trace.accuracy[0, -1] > trace.accuracy[0, 0] + 0.1
    trained = problem.module(trace.theta)
    x, y = (torch.as_tensor(np.concatenate(parts)) for parts in zip(*classes(), strict=True))
    right = (trained(x.float()).argmax(dim=1) == y).double().mean()
    assert float(right) == pytest.approx(trace.accuracy[0, -1])
    np.testing.assert_allclose(problem.predict(trace.theta, x), trained(x.float()).detach(), atol=1e-5)
    assert all(
        torch.equal(values, before[name]) for name, values in module.state_dict().items()
    )  # still as it was
    for start in (trained, problem.state_dict(trace.theta)):
        again = fs.run(problem, method, rounds=1, theta0=start, record=("loss",))
        assert again.loss[0, 0] == pytest.approx(trace.loss[0, -1], rel=1e-6)
    with pytest.raises(fs.InvalidInput, match="theta0 must"):
        fs.run(problem, method, rounds=1, theta0={"0.weight": np.zeros(3)}, record=("loss",))
    with pytest.raises(fs.InvalidInput, match="of several repetitions take one row"):
        problem.module(np.zeros((2, problem.dim)))


def test_frozen_parameters_and_tied_ones() -> None:
    module = layers()
    module[0].requires_grad_(False)
    problem = fs.problems.Torch(module, CROSS_ENTROPY, classes())
    assert problem.dim == 21
    trace = fs.run(problem, fs.Scaffold(step_size=0.3, local_steps=4), rounds=2, record=("loss",))
    assert torch.equal(problem.module(trace.theta)[0].weight, module[0].weight)
    assert trace.loss[0, -1] < trace.loss[0, 0]

    class Tied(Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Linear(4, 4, bias=False)
            self.two = torch.nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x: Any) -> Any:
            return self.two(torch.tanh(self.one(x)))

    tied = fs.problems.Torch(Tied(), CROSS_ENTROPY, classes())
    assert tied.dim == 16
    found = tied.module(tied.initial + 1.0)
    assert found.one.weight is found.two.weight


def test_datasets_and_several_inputs() -> None:
    x, y = (np.concatenate(parts) for parts in zip(*classes(), strict=True))
    owners = fs.data.partition.iid(y, n_clients=3, seed=0)
    data = torch.utils.data.TensorDataset(torch.as_tensor(x), torch.as_tensor(y))
    plain = fs.problems.Torch(layers(), CROSS_ENTROPY, [(x[owners == c], y[owners == c]) for c in range(3)])
    for problem in (
        fs.problems.Torch(layers(), CROSS_ENTROPY, data, partition=owners),
        fs.problems.Torch(
            layers(), CROSS_ENTROPY, [torch.utils.data.Subset(data, np.flatnonzero(owners == c)) for c in range(3)]
        ),
    ):
        assert problem.fingerprint() == plain.fingerprint()

    class Sum(Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x: Any, z: Any) -> Any:
            return self.layer(x) + self.layer(z)

    two = fs.problems.Torch(Sum(), CROSS_ENTROPY, [((a, a), b) for a, b in classes()])
    trace = fs.run(two, fs.Scaffold(step_size=0.1, local_steps=2), rounds=2, batch_size=3, record=("loss",))
    assert trace.loss[0, -1] < trace.loss[0, 0]


def test_the_fingerprint_sees_what_defines_a_run() -> None:
    def of(module: Any, **more: Any) -> str:
        clients = more.pop("clients", classes())
        return fs.problems.Torch(module, more.pop("loss", CROSS_ENTROPY), clients, **more).fingerprint()

    frozen, moved, narrow = layers(), layers(), layers(torch.nn.Dropout(0.1))
    frozen[0].requires_grad_(False)
    with torch.no_grad():
        moved[0].weight[0, 0] += 1e-3
    same = of(layers())
    others = [
        of(frozen),
        of(moved),
        of(narrow),
        of(layers().double()),
        of(layers(), l2=0.1),
        of(layers(), weights=(1, 2, 3)),
        of(layers(), clients=classes(seed=1)),
        of(layers(), loss=lambda output, target: CROSS_ENTROPY(output, target)),
    ]
    assert of(layers()) == same
    assert len({same, *others}) == len(others) + 1


def test_accuracies_of_one_output_and_of_none() -> None:
    clients = [(x, (y > 0).astype(np.int64)) for x, y in classes()]
    loss = torch.nn.BCEWithLogitsLoss(reduction="none")
    binary = fs.problems.Torch(torch.nn.Linear(4, 1), lambda out, t: loss(out[:, 0], t.to(out.dtype)), clients)
    x, y = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    theta = np.array([1.0, -1.0, 0.5, 0.0, 0.1])
    assert binary.accuracy(theta) == pytest.approx(np.mean((x @ theta[:4] + 0.1 > 0) == (y == 1)))
    regression = fs.problems.Torch(torch.nn.Linear(4, 1), half_squares, [(x, x[:, 0]) for x, _ in classes()])
    with pytest.raises(fs.InvalidInput, match="accuracy needs classes"):
        fs.run(regression, fs.FedAvg(step_size=0.1, local_steps=1), rounds=1, record=("accuracy",))


class Noisy(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.layer(x) + torch.randn(x.shape[0], 3)


def with_(c: int, x: Any = None, y: Any = None) -> list[tuple[Any, Any]]:
    """The clients with one of another kind."""
    found = classes()
    found[c] = (found[c][0] if x is None else x, found[c][1] if y is None else y)
    return found


BAD: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "module must be a torch.nn.Module, got 3": ((3, CROSS_ENTROPY, classes()), {}),
    "loss must be a function of": ((layers(), 3, classes()), {}),
    "has buffers that training changes, such as '2.running_mean'.*use group or layer normalisation": (
        (layers(torch.nn.BatchNorm1d(6)), CROSS_ENTROPY, classes()), {},
    ),
    "a record's loss depends on the other records": (
        (layers(torch.nn.BatchNorm1d(6, track_running_stats=False)), CROSS_ENTROPY, classes()), {},
    ),
    r"must return one number per record, shape \(4,\), but it returned shape \(\)": (
        (layers(), torch.nn.CrossEntropyLoss(), classes()), {},
    ),
    r"cannot be computed for the target 7 \(client 1, record 0\): Target 7 is out of bounds": (
        (layers(), CROSS_ENTROPY, with_(1, y=np.array([7] * 15))), {},
    ),
    "client 2's records hold NaN": ((layers(), CROSS_ENTROPY, with_(2, x=np.full((20, 4), np.nan))), {}),
    "client 1's arrays have shapes": ((layers(), CROSS_ENTROPY, with_(1, y=np.zeros(3, np.int64))), {}),
    "client 1's records have shape": ((layers(), CROSS_ENTROPY, with_(1, x=np.zeros((15, 5)))), {}),
    "there are no clients": ((layers(), CROSS_ENTROPY, []), {}),
    "each client must be a pair": ((layers(), CROSS_ENTROPY, [np.zeros((3, 4))]), {}),
    "fails on the first records, in double precision: .*shapes cannot": (
        (torch.nn.Linear(5, 3), CROSS_ENTROPY, classes()), {},
    ),
    "draws random numbers that no seed of a run decides": ((Noisy(), CROSS_ENTROPY, classes()), {}),
    "no parameters that require a gradient": ((layers().requires_grad_(False), CROSS_ENTROPY, classes()), {}),
    "buffers must be one of": ((layers(), CROSS_ENTROPY, classes()), {"buffers": "keep"}),
    "l2 would shrink averaged buffers": (
        (layers(torch.nn.BatchNorm1d(6)), CROSS_ENTROPY, classes()), {"buffers": "average", "l2": 0.1},
    ),
    "one Dataset of all records needs partition=": (
        (layers(), CROSS_ENTROPY, torch.utils.data.TensorDataset(torch.zeros(3, 4), torch.zeros(3))), {},
    ),
    "partition is each record's client": ((layers(), CROSS_ENTROPY, classes()), {"partition": [0, 1]}),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_rejected_in_one_sentence(message: str) -> None:
    arguments, more = BAD[message]
    with pytest.raises(fs.InvalidInput, match=message) as found:
        fs.problems.Torch(*arguments, **more)
    assert "\n" not in str(found.value)


def test_parameters_that_are_not_numbers() -> None:
    module = layers()
    with torch.no_grad():
        module[0].bias[1] = np.nan
    with pytest.raises(fs.InvalidInput, match=r"the module's '0\.bias' holds NaN"):
        fs.problems.Torch(module, CROSS_ENTROPY, classes())


def test_a_diverging_network_names_a_step_size() -> None:
    problem = fs.problems.Torch(layers(), CROSS_ENTROPY, classes())
    with pytest.raises(fs.Diverged, match="Going by its curvature where it started, step_size="):
        fs.run(problem, fs.Scaffold(step_size=1e9, local_steps=9), rounds=9, batch_size=3, record=("loss",))

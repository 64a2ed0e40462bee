"""The PyTorch engine gives the reference engine's numbers on problems of NumPy, and JAX's on a network."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.cli.options import engine_of
from fedscaffold.core.random.stream import Batches
from tests.extras import optional
from tests.federation.test_protocol import METHODS
from tests.samples import make, tables

torch = optional("torch")
Module: Any = torch.nn.Module

SIZES = (6, 9, 4, 7, 5)
MORE_METHODS = [
    *METHODS,
    fs.GradientScaffold(step_size=0.05, local_steps=4),
    fs.Tamuna(step_size=0.1, communication_probability=0.3, owners=2),
    fs.RandProx(step_size=0.1, communication_probability=0.3, share=0.5),
    fs.AmplifiedScaffold(step_size=0.1, local_steps=3, window=2),
    fs.ServerOptimizer(method=fs.Scaffold(step_size=0.1, local_steps=3), optimizer="adam", learning_rate=0.1),
]
DOUBLE = fs.engines.Torch(dtype="float64")


def half_squares(output: Any, target: Any) -> Any:
    return 0.5 * (output[:, 0] - target) ** 2


def logistic(output: Any, target: Any) -> Any:
    return torch.nn.functional.softplus(-target * output[:, 0])


def glm(kind: Any, sizes: Any = SIZES, dim: int = 3, **more: Any) -> tuple[fs.problems.Torch, Any]:
    """A generalised linear model as a module of one layer that starts at zero, and as a table."""
    layer = torch.nn.Linear(dim, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    clients = list(zip(*tables(kind, sizes, dim), strict=True))
    loss = half_squares if kind == "ridge" else logistic
    return fs.problems.Torch(layer, loss, clients, l2=0.1, **more), make(kind, sizes, dim, **more)


def network(*extra: Any, seed: int = 0, **more: Any) -> fs.problems.Torch:
    """Two layers with something between them, on three classes."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    clients = [(rng.normal(size=(n, 4)), rng.integers(0, 3, size=n)) for n in (12, 15, 20)]
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), *extra, torch.nn.ReLU(), torch.nn.Linear(6, 3))
    return fs.problems.Torch(module, torch.nn.CrossEntropyLoss(reduction="none"), clients, **more)


def close(found: fs.Trace, wanted: fs.Trace, tolerance: float) -> None:
    for name in ("theta", "control_variates", *wanted.metrics):
        right = getattr(wanted, name)
        np.testing.assert_allclose(getattr(found, name), right, rtol=0, atol=tolerance * np.abs(right).max())


@pytest.mark.parametrize("method", MORE_METHODS, ids=repr)
def test_every_method_agrees_with_the_table_in_plain_numpy(method: Any) -> None:
    module, table = glm("logistic", weights=range(1, 6))
    options: dict[str, Any] = {"rounds": 20, "batch_size": 3, "seed": 2**40 + 1}
    found, wanted = (
        fs.run(module, method, engine=DOUBLE, **options),
        fs.run(table, method, **options, engine="reference"),
    )
    close(found, wanted, 1e-10)


@pytest.mark.parametrize("options", [
    {"batch_size": 3, "repetitions": 3, "sampling": "without_replacement"},
    {"repetitions": 2},
    {"batch_size": 3, "privacy": fs.privacy.RecordLevel(clip=0.3, noise_multiplier=1.0), "repetitions": 2},
    {"privacy": fs.privacy.RecordLevel(clip=0.3, noise_multiplier=1.0)},
    {"batch_size": 2, "privacy": fs.privacy.ClientLevel(clip=0.3, noise_multiplier=1.0)},
    {"batch_size": 2, "availability": fs.simulation.Periodic(2)},
])  # fmt: skip
@pytest.mark.parametrize(
    "engine", [DOUBLE, fs.engines.Torch(dtype="float64", clients_at_once=2), "reference"], ids=repr
)
def test_draws_noise_and_cohorts_are_those_of_the_other_engines(options: dict[str, Any], engine: Any) -> None:
    """Batches of any kind, clients of unequal sizes side by side and in chunks; the module in plain loops too."""
    module, table = glm("ridge")
    method = fs.Scaffold(step_size=0.05, local_steps=5)
    close(
        fs.run(module, method, rounds=6, engine=engine, **options),
        fs.run(table, method, rounds=6, **options),
        1e-10,
    )


def test_later_steps_and_steps_of_their_own() -> None:
    module, table = glm("ridge")
    rng = np.random.default_rng(0)
    theta, correction = rng.normal(size=(3, 3)), rng.normal(size=(3, 2, 3))
    clients, steps = np.array([[0, 4], [2, 3], [1, 4]]), np.array([[3, 1], [30, 2], [0, 1]])
    for first_step in (0, 7):
        results = []
        for problem, engine in ((module, DOUBLE), (table, fs.engines.Reference())):
            with engine.open(problem, Batches(3), seed=3) as local_sgd:
                results.append(
                    local_sgd(
                        theta, correction, step_size=0.05, local_steps=steps, round=2, clients=clients,
                        first_step=first_step,
                    )
                )  # fmt: skip
        np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("extra", ["Dropout", "Dropout2d", "BatchNorm1d", "GroupNorm"])
@pytest.mark.parametrize("batch_size", [5, None])
def test_dropout_and_averaged_buffers_follow_the_run_s_seed(extra: str, batch_size: int | None) -> None:
    """The same numbers side by side, one by one and in the reference engine; another seed gives others."""
    layers: dict[str, Any] = {
        "Dropout": lambda: torch.nn.Dropout(0.4),
        "Dropout2d": lambda: torch.nn.Sequential(
            torch.nn.Unflatten(1, (3, 2, 1)), torch.nn.Dropout2d(0.4), torch.nn.Flatten()
        ),
        "BatchNorm1d": lambda: torch.nn.BatchNorm1d(6),
        "GroupNorm": lambda: torch.nn.GroupNorm(2, 6),
    }
    problem = network(layers[extra](), buffers="average")
    method = fs.Scaffold(step_size=0.1, local_steps=4)
    runs = [
        fs.run(problem, method, rounds=4, batch_size=batch_size, seed=seed, engine=engine, record=("loss",))
        for seed, engine in ((1, "reference"), (1, DOUBLE), (2, DOUBLE))
    ]
    close(runs[1], runs[0], 1e-11)
    drawn = batch_size is not None or extra.startswith("Dropout")
    assert (np.abs(runs[2].theta - runs[1].theta).max() > 1e-3) == drawn
    one_by_one = network(layers[extra](), buffers="average")
    one_by_one.batch_loss.side_by_side = False
    looped = fs.run(one_by_one, method, rounds=4, batch_size=batch_size, seed=1, engine=DOUBLE, record=("loss",))
    close(looped, runs[0], 1e-11)
    if extra == "BatchNorm1d":
        start, end = problem.module(problem.initial)[1], problem.module(runs[0].theta)[1]
        assert (end.running_mean - start.running_mean).abs().max() > 0.01


def test_dropped_records_can_be_clipped() -> None:
    problem, privacy = network(torch.nn.Dropout(0.4)), fs.privacy.RecordLevel(clip=0.3, noise_multiplier=1.0)
    method = fs.Scaffold(step_size=0.1, local_steps=4)
    for batch_size in (5, None):
        found, wanted = (
            fs.run(
                problem, method, rounds=3, batch_size=batch_size, privacy=privacy, engine=engine, record=("loss",)
            )
            for engine in (DOUBLE, "reference")
        )
        close(found, wanted, 1e-11)


@pytest.mark.parametrize("module", ["in-place", "branch", "lstm"])
def test_modules_that_vmap_cannot_run_run_one_by_one(module: str) -> None:
    class InPlace(Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            found = torch.zeros(x.shape[0], 3, dtype=x.dtype)
            found += self.layer(x)
            return found

    class Branch(InPlace):
        def forward(self, x: Any) -> Any:
            return self.layer(x) if float(self.layer.bias.sum()) > 100.0 else 2.0 * self.layer(x)

    class Recurrent(Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.LSTM(1, 3, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.layer(x[:, :, None])[0][:, -1]

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(n, 4)), rng.integers(0, 3, size=n)) for n in (12, 15)]
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    own = {"in-place": InPlace, "branch": Branch, "lstm": Recurrent}[module]()
    with pytest.warns(RuntimeWarning, match="so they run one by one, which is slower: ") as warned:
        problem = fs.problems.Torch(own, loss, clients)
    assert len(warned) == 1
    method = fs.Scaffold(step_size=0.1, local_steps=3)
    found, wanted = (
        fs.run(problem, method, rounds=3, batch_size=4, engine=engine, record=("loss",))
        for engine in (DOUBLE, "reference")
    )
    close(found, wanted, 1e-11)


def test_a_network_agrees_with_jax_in_single_precision() -> None:
    """A perceptron on scikit-learn's digits, over ten clients, 20 rounds of 10 steps."""
    jax = optional("jax")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    owners = fs.data.partition.dirichlet(labels, n_clients=10, alpha=0.5, seed=0)
    clients = [((pixels / 16.0).astype(np.float32)[owners == c], labels[owners == c]) for c in range(10)]
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
    by_torch = fs.problems.Torch(module, torch.nn.CrossEntropyLoss(reduction="none"), clients)

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        scores = (
            jax.numpy.tanh(x @ params["0.weight"].T + params["0.bias"]) @ params["2.weight"].T + params["2.bias"]
        )
        own = jax.numpy.take_along_axis(scores, y[:, None], axis=1)[:, 0]
        return (jax.nn.logsumexp(scores, axis=1) - own).mean()

    params = {name: values.detach().numpy() for name, values in module.state_dict().items()}
    by_jax = fs.problems.Differentiable(loss, params, clients)
    method = fs.Scaffold(step_size=0.2, local_steps=10)
    options: dict[str, Any] = {"rounds": 20, "batch_size": 10, "record": ("loss",)}
    found = fs.run(by_torch, method, **options)
    wanted = fs.run(by_jax, method, engine=fs.engines.Jax(dtype="float32"), **options)
    assert found.provenance["engine"] == "torch-cpu"
    names = sorted(params)
    state = by_torch.state_dict(found.theta)
    theta = np.concatenate([state[name].numpy().ravel() for name in names])
    np.testing.assert_allclose(theta, wanted.theta[0], rtol=0, atol=1e-5 * np.abs(wanted.theta).max())
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-5)
    assert found.loss[0, -1] < 0.5 * found.loss[0, 0]


def test_single_precision_to_its_own_accuracy() -> None:
    problem, method = network(), fs.Scaffold(step_size=0.1, local_steps=5)
    narrow, wide = (
        fs.run(problem, method, rounds=2, batch_size=3, record=("loss",), engine=e) for e in ("torch", DOUBLE)
    )
    gap = np.abs(narrow.theta - wide.theta).max() / np.abs(wide.theta).max()
    assert 0 < gap < 2e-6


def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path: Path) -> None:
    problem, file = network(torch.nn.Dropout(0.3)), tmp_path / "run.npz"
    method = fs.Scaffold(step_size=0.1, local_steps=5, cohort=2)
    options: dict[str, Any] = {"batch_size": 3, "record": ("loss", "accuracy")}
    whole = fs.run(problem, method, rounds=6, **options)
    fs.run(problem, method, rounds=3, checkpoint=file, **options)
    rest = fs.run(problem, method, rounds=6, checkpoint=file, client_state_dir=tmp_path / "clients", **options)
    assert rest.theta.tobytes() == whole.theta.tobytes()
    assert rest.accuracy.tobytes() == whole.accuracy.tobytes()
    with pytest.raises(fs.CheckpointMismatch):
        fs.run(problem, method, rounds=6, checkpoint=file, engine=DOUBLE, **options)
    other = network(torch.nn.Dropout(0.2))
    with pytest.raises(fs.CheckpointMismatch):
        fs.run(other, method, rounds=6, checkpoint=file, **options)


@pytest.mark.slow
def test_shards_of_ray_agree() -> None:
    problem = glm("logistic", sizes=(5,) * 130)[0]
    method = fs.Scaffold(step_size=0.1, local_steps=3)
    found, wanted = (
        fs.run(problem, method, rounds=3, batch_size=2, engine=engine)
        for engine in (fs.engines.Ray(shards=2, shard_engine=DOUBLE), DOUBLE)
    )
    close(found, wanted, 1e-12)


def test_what_it_cannot_do_is_rejected() -> None:
    problem, table = glm("ridge")
    method = fs.Scaffold(step_size=0.01, local_steps=2)
    with pytest.raises(fs.InvalidInput, match=r"the torch engine runs problems\.Torch, not 'ridge'"):
        fs.run(table, method, rounds=1, engine="torch")
    for engine in ("jax", "native"):
        with pytest.raises(fs.InvalidInput, match="use engine="):
            fs.run(problem, method, rounds=1, engine=engine)
    with pytest.raises(fs.InvalidInput, match="PyTorch has no device 'cuda:9' here"):
        fs.run(problem, method, rounds=1, engine=fs.engines.Torch(device="cuda:9"))
    with pytest.raises(fs.InvalidInput, match="clients_at_once must be a whole number"):
        fs.engines.Torch(clients_at_once=0)
    with pytest.raises(fs.InvalidInput, match="dtype must be one of"):
        fs.engines.Torch(dtype="float16")  # type: ignore[arg-type]
    with pytest.raises(fs.InvalidInput, match="mixes the records of a batch, so that no record's gradient"):
        fs.run(
            network(torch.nn.BatchNorm1d(6), buffers="average"), method, rounds=1,
            privacy=fs.privacy.RecordLevel(clip=1.0, noise_multiplier=1.0), record=("loss",),
        )  # fmt: skip
    assert engine_of("torch:dtype=float32") == fs.engines.Torch(dtype="float32")

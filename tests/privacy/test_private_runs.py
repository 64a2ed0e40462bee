"""Clipping and noise in runs: all engines against the pseudo-code, the noise's law, and what is refused."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.noise import step_noise
from fedscaffold.core.random.stream import Stream
from fedscaffold.privacy import ClientLevel, RecordLevel
from tests import naive
from tests.samples import make, tables, weighted

SIZES, DIM, SEED, GAMMA, H, T = (5, 9, 6), 3, 2**40 + 17, 0.15, 3, 3
RECORDS = RecordLevel(clip=0.4, noise_multiplier=1.5)
CLIENTS = ClientLevel(clip=0.2, noise_multiplier=0.5)
SETTINGS: list[tuple[int | None, Any]] = [
    (4, "without_replacement"),
    (4, "with_replacement"),
    (None, "without_replacement"),
]


@pytest.mark.parametrize("privacy", [RECORDS, CLIENTS], ids=["records", "clients"])
@pytest.mark.parametrize(("batch_size", "sampling"), SETTINGS)
@pytest.mark.parametrize("kind", ["ridge", "logistic", "multinomial"])
@pytest.mark.parametrize("name", ["Scaffold", "FedAvg"])
def test_a_private_run_is_the_pseudo_code(
    privacy: Any, batch_size: int | None, sampling: Any, kind: str, name: str
) -> None:
    X, y = tables("logistic" if kind == "logistic" else "ridge", SIZES, DIM, seed=3)
    classes = [np.random.default_rng(1).integers(0, 3, size=n) for n in SIZES]
    targets: list[Any] = classes if kind == "multinomial" else y
    problem: Any = {"ridge": fs.problems.Ridge, "logistic": fs.problems.Logistic}.get(
        kind, fs.problems.Multinomial
    )
    problem = problem(X, targets, l2=0.2, weights=(1.0, 2.0, 0.5))
    clients = naive.Clients(
        kind, [x.tolist() for x in X], [t.tolist() for t in targets], 0.2, problem.weights.tolist()
    )
    draw = naive.drawing(SEED, SIZES, batch_size, sampling)
    method = (fs.Scaffold if name == "Scaffold" else fs.FedAvg)(step_size=GAMMA, local_steps=H)
    start = np.linspace(-1.0, 1.0, problem.dim)
    trace = fs.run(
        problem, method, rounds=T, batch_size=batch_size, sampling=sampling, seed=SEED, repetitions=2,
        engine="reference", theta0=start, privacy=privacy, record=("loss",),
    )  # fmt: skip
    level = {"record" if privacy is RECORDS else "client": (privacy.clip, privacy.noise_multiplier)}
    for r in range(2):
        expected = naive.private_scaffold(
            clients, draw, gamma=GAMMA, H=H, T=T, theta=start.tolist(), seed=SEED, repetition=r,
            remember=name == "Scaffold", **level,
        )  # fmt: skip
        np.testing.assert_allclose(trace.theta[r], expected.theta, rtol=0, atol=1e-12)
        np.testing.assert_allclose(trace.control_variates[r], expected.control_variates, rtol=0, atol=1e-11)


SLOW = (
    ("jax", "ridge"),
    ("jax", "poisson"),
    ("native", "multinomial"),
    ("native", "poisson"),
)  # compile for seconds
PROBLEMS = {
    "ridge": make("ridge", SIZES, 41, n_unpenalised=1),
    "logistic": make("logistic", SIZES, DIM),
    "multinomial": weighted("multinomial", SIZES, DIM, n_unpenalised=1),
    "poisson": weighted("poisson", SIZES, DIM),
}


@pytest.mark.parametrize(("problem", "engine"), [
    pytest.param(
        PROBLEMS[name], engine, id=f"{name}-{engine}",
        marks=pytest.mark.slow if (engine, name) in SLOW else (),
    )
    for name in PROBLEMS
    for engine in ("native", "jax")
])  # fmt: skip
@pytest.mark.parametrize(("batch_size", "sampling"), SETTINGS[::2])
def test_engines_agree(engine: str, problem: Any, batch_size: int | None, sampling: Any) -> None:
    method = fs.Scaffold(step_size=0.05, local_steps=20)
    theta = [
        fs.run(
            problem, method, rounds=2, batch_size=batch_size, sampling=sampling, seed=5, repetitions=2,
            engine=which, privacy=RECORDS, record=("loss",),
        ).theta
        for which in ("reference", engine)
    ]  # fmt: skip
    np.testing.assert_allclose(theta[1], theta[0], rtol=0, atol=1e-10)


def test_any_differentiable_loss_is_clipped_record_by_record() -> None:
    import jax.numpy as jnp

    def loss(w: Any, batch: Any) -> Any:
        return jnp.mean((batch[0] @ w - batch[1]) ** 2) / 2

    X, y = tables("ridge", SIZES, DIM)
    own = fs.problems.Differentiable(loss, np.zeros(DIM), list(zip(X, y, strict=True)), l2=0.1)
    same = fs.problems.Ridge(X, y, l2=0.1)
    method = fs.Scaffold(step_size=0.05, local_steps=4)
    theta = [
        fs.run(problem, method, rounds=2, engine=engine, privacy=RECORDS, record=("loss",), batch_size=size).theta
        for problem, engine, size in ((same, "reference", 3), (own, "reference", 3), (own, "jax", 3))
    ]
    np.testing.assert_allclose(theta[1], theta[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(theta[2], theta[0], rtol=0, atol=1e-10)


def test_without_clipping_and_noise_nothing_changes() -> None:
    problem, method = make("logistic", SIZES, DIM), fs.Scaffold(step_size=0.1, local_steps=5)
    plain = fs.run(problem, method, rounds=3, batch_size=4, engine="reference")
    for privacy in (RecordLevel(clip=1e6, noise_multiplier=0.0), ClientLevel(clip=1e6, noise_multiplier=0.0)):
        same = fs.run(problem, method, rounds=3, batch_size=4, engine="reference", privacy=privacy)
        np.testing.assert_allclose(same.theta, plain.theta, rtol=0, atol=1e-13)


def test_noise_of_steps_is_normal_and_never_the_same() -> None:
    stream = Stream(3, 0, 0, 0)
    drawn = np.stack([step_noise(stream, h, 20) for h in range(2000)])
    assert abs(drawn.mean()) < 4.0 / np.sqrt(drawn.size)
    assert abs(drawn.var() - 1.0) < 4.0 * np.sqrt(2.0 / drawn.size)
    assert np.unique(drawn).size == drawn.size
    other = [step_noise(stream._replace(**change), 0, 20) for change in ({"client": 1}, {"round": 1}, {"seed": 4})]
    assert not any(np.isin(one, drawn).any() for one in other)


def test_parts_of_the_noise_add_up_to_that_of_the_sum() -> None:
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    privacy = ClientLevel(clip=2.0, noise_multiplier=3.0, summed=True)
    scales = privacy.noise_scales(weights, 0.4, 4)
    assert np.sqrt(np.sum((weights * scales) ** 2)) == pytest.approx(3.0 * 2.0 * 0.4)


def test_workers_give_the_same_private_messages(tmp_path: Any) -> None:
    problem = make("ridge", (4,) * 5, DIM)
    method = fs.Scaffold(step_size=0.1, local_steps=2, cohort=3)
    plain, stored = (
        fs.run(problem, method, rounds=4, engine="reference", privacy=CLIENTS, client_state_dir=folder)
        for folder in (None, tmp_path)
    )
    np.testing.assert_array_equal(plain.theta, stored.theta)


def test_privacy_is_part_of_a_runs_identity(tmp_path: Any) -> None:
    problem, method = make("ridge", SIZES, DIM), fs.Scaffold(step_size=0.1, local_steps=2)
    setting: dict[str, Any] = {"rounds": 2, "engine": "reference", "checkpoint": tmp_path / "run.npz"}
    trace = fs.run(problem, method, privacy=RECORDS, **setting)
    assert trace.provenance["privacy"] == {"name": "RecordLevel", "clip": 0.4, "noise_multiplier": 1.5}
    with pytest.raises(fs.CheckpointMismatch):
        fs.run(problem, method, **setting)


@pytest.mark.parametrize(
    ("problem", "method", "privacy", "words"),
    [
        (fs.problems.RidgeStream(n_clients=2, dim=2), fs.FedAvg, RECORDS, "no records to protect"),
        (make("ridge"), fs.FedLin, RECORDS, "nothing would protect"),
        (make("ridge"), fs.FedLin, CLIENTS, "nothing would protect"),
        (make("ridge"), fs.FedAvg, 1.0, "privacy must be privacy.RecordLevel"),
    ],
)
@pytest.mark.parametrize("engine", ["reference", "native"])
def test_what_cannot_be_protected_is_refused(
    problem: Any, method: Any, privacy: Any, words: str, engine: str
) -> None:
    with pytest.raises(fs.InvalidInput, match=words):
        fs.run(
            problem, method(step_size=0.1, local_steps=2), rounds=1, batch_size=2, privacy=privacy, engine=engine
        )


def test_linear_systems_have_no_clipped_records() -> None:
    from tests.samples import systems

    with pytest.raises(fs.InvalidInput, match="cannot be clipped"):
        fs.run(systems(), fs.FedAvg(step_size=0.1, local_steps=2), rounds=1, privacy=RECORDS)

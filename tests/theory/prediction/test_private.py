"""Predictions with privacy against simulation, and the clipped problem against finite differences."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import UnreliablePrediction
from fedscaffold.core.random.batches import Batches
from fedscaffold.privacy import ClientLevel, RecordLevel, noise_for
from fedscaffold.theory.client_blocks import list_blocks
from fedscaffold.theory.prediction.clouds.clipped import ClippedAverages
from fedscaffold.theory.prediction.clouds.kinked import ClippedSlopes, KinkedAverages
from fedscaffold.theory.prediction.moments.private import private_setting
from fedscaffold.theory.prediction.moments.state import beginning, start_of

N, D, RECORDS = 5, 4, 150


def sample(kind: str) -> Any:
    """Clients with models of their own."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, RECORDS, D)) + 0.3 * rng.normal(size=(N, 1, D))
    z = np.einsum("cij,cj->ci", X, 1.0 + 0.5 * rng.normal(size=(N, D))) + rng.normal(size=(N, RECORDS))
    if kind == "ridge":
        return fs.problems.Ridge(X, z, l2=0.05, weights=[1.0, 2.0, 1.0, 1.0, 3.0])
    return fs.problems.Logistic(X, np.sign(z), l2=0.05)


def measured(
    problem: Any, method: Any, privacy: Any, *, rounds: int, after: int, **more: Any
) -> tuple[float, float]:
    """Mean squared error on the plateau and its standard error."""
    trace = fs.run(
        problem, method, rounds=rounds, privacy=privacy, repetitions=more.pop("repetitions", 100), seed=1, **more
    )
    each = trace.mse[:, after:].mean(axis=1)
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(each.size))


def agree(problem: Any, method: Any, privacy: Any, within: float, *, rounds: int, after: int, **more: Any) -> None:
    """Within a share of the measured error, besides four standard errors: fails by chance once in 15,000 times."""
    repetitions = more.pop("repetitions", 100)
    found = fs.theory.predict(problem, method, privacy=privacy, **{"batch_size": None, **more})
    more["repetitions"] = repetitions
    mean, error = measured(problem, method, privacy, rounds=rounds, after=after, **more)
    assert found.reliability.reliable
    assert abs(found.mse - mean) < within * mean + 4.0 * error, (found.mse, mean, error)


@pytest.mark.slow
@pytest.mark.parametrize("clip", [1.0, 3.0])
@pytest.mark.parametrize("budget", [0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("batch_size", [None, 15])
@pytest.mark.parametrize("name", ["Scaffold", "FedAvg"])
@pytest.mark.parametrize(("kind", "within"), [("ridge", 0.05), ("logistic", 0.08)])
def test_the_plateau_of_private_steps(
    kind: str, within: float, name: str, batch_size: int | None, budget: float, clip: float
) -> None:
    method = getattr(fs, name)(step_size=0.1, local_steps=5)
    noise = noise_for(epsilon=budget, delta=1e-3, steps=200, records=RECORDS, batch_size=batch_size)
    privacy = RecordLevel(clip=clip, noise_multiplier=noise)
    agree(
        sample(kind), method, privacy, within, rounds=500, after=150, batch_size=batch_size,
        sampling="without_replacement",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_a_plateau_far_from_the_optimum(kind: str) -> None:
    """Clipping alone moves it by much more than noise: a factor or a sign that is wrong in either is seen."""
    problem, method = sample(kind), fs.Scaffold(step_size=0.2, local_steps=3)
    privacy = RecordLevel(clip=0.8, noise_multiplier=8.0)
    agree(problem, method, privacy, 0.05, rounds=120, after=60)
    plain = fs.theory.predict(problem, method, batch_size=None)
    assert fs.theory.predict(problem, method, batch_size=None, privacy=privacy).mse > 10.0 * plain.mse + 1e-3


@pytest.mark.parametrize(("name", "summed"), [("Scaffold", False), ("FedAvg", True), ("GradientScaffold", True)])
def test_the_plateau_of_private_messages(name: str, summed: bool) -> None:
    method = getattr(fs.methods, name)(step_size=0.1, local_steps=5)
    privacy = ClientLevel(clip=4.0, noise_multiplier=0.05, summed=summed)
    agree(sample("ridge"), method, privacy, 0.05, rounds=80, after=40, repetitions=30, batch_size=15)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize(("gamma", "H", "batch_size"), [(0.1, 5, 15), (0.2, 10, None), (0.05, 40, 15)])
@pytest.mark.parametrize(("name", "summed"), [("Scaffold", False), ("FedAvg", True), ("GradientScaffold", True)])
@pytest.mark.parametrize(("kind", "within"), [("ridge", 0.05), ("logistic", 0.08)])
def test_the_plateau_of_private_messages_over_budgets(
    kind: str, within: float, name: str, summed: bool, gamma: float, H: int, batch_size: int | None, budget: float
) -> None:
    """Budgets of ten rounds; messages are hardly ever clipped, and the noise is a hundredth of what they need.

    The prediction is of the linear effect of noise, which does not depend on how large it is for ridge; for
    logistic regression full noise on five clients would throw models to where the loss is flat.
    """
    method = getattr(fs.methods, name)(step_size=gamma, local_steps=H)
    noise = 0.01 * noise_for(epsilon=budget, delta=1e-2, steps=10)
    privacy = ClientLevel(clip=30.0 if kind == "ridge" else 10.0, noise_multiplier=noise, summed=summed)
    agree(sample(kind), method, privacy, within, rounds=200, after=80, repetitions=60, batch_size=batch_size)


def test_a_curve_of_sums_with_noise() -> None:
    """From the first round on, in which there is no noise yet in θ."""
    problem, method = sample("ridge"), fs.GradientScaffold(step_size=0.2, local_steps=10)
    privacy = ClientLevel(clip=30.0, noise_multiplier=0.1, summed=True)
    found = fs.theory.predict(problem, method, batch_size=None, privacy=privacy, rounds=6)
    assert found.curve is not None
    trace = fs.run(problem, method, rounds=6, privacy=privacy, repetitions=1000)
    mean, error = trace.mse.mean(axis=0), trace.mse.std(axis=0) / np.sqrt(1000)
    assert (np.abs(found.curve - mean) < 1e-9 + 4.0 * error).all(), found.curve / mean


def test_fresh_noise_is_in_the_model_and_with_the_other_sign_in_control_variates() -> None:
    """Cov (θ, ξ_c) for θ = Σ w_c η_c + p and ξ_c = (η_c − θ)/(γH), by the matrix of this map."""
    problem, method = sample("ridge"), fs.GradientScaffold(step_size=0.1, local_steps=5)
    privacy = ClientLevel(clip=30.0, noise_multiplier=0.1, summed=True)
    s, _ = private_setting(problem, method, Batches(), privacy)
    root = np.random.default_rng(0).normal(size=(N * D, N * D))
    found = start_of(s, replace(beginning(s, skew=False), cov=root @ root.T, fresh=0.7)).cov
    everything = np.block([[root @ root.T, np.zeros((N * D, D))], [np.zeros((D, N * D)), 0.7 * np.eye(D)]])
    theta = np.hstack([np.kron(problem.weights, np.eye(D)), np.eye(D)])
    for c in range(N):
        own = np.kron(np.eye(N + 1)[c], np.eye(D))
        map = np.vstack([theta, (own - theta) / 0.5])
        np.testing.assert_allclose(found[c], map @ everything @ map.T, atol=1e-10)


def test_sums_with_scaffold_are_refused() -> None:
    with pytest.raises(fs.InvalidInput, match="GradientScaffold"):
        fs.theory.predict(
            sample("ridge"), fs.Scaffold(step_size=0.1, local_steps=5), batch_size=15,
            privacy=ClientLevel(clip=1.0, noise_multiplier=1.0, summed=True),
        )  # fmt: skip


def test_messages_that_are_clipped_are_told() -> None:
    with pytest.warns(UnreliablePrediction, match="messages are clipped"):
        fs.theory.predict(
            sample("ridge"), fs.Scaffold(step_size=0.1, local_steps=5), batch_size=15,
            privacy=ClientLevel(clip=0.2, noise_multiplier=1.0),
        )  # fmt: skip


def test_the_curve_begins_and_ends_where_it_should() -> None:
    problem, method = sample("logistic"), fs.Scaffold(step_size=0.2, local_steps=3)
    privacy = RecordLevel(clip=1.0, noise_multiplier=20.0)
    found = fs.theory.predict(problem, method, batch_size=None, privacy=privacy, rounds=400)
    assert found.curve is not None
    assert found.curve[0] == pytest.approx(float(problem.optimum() @ problem.optimum()))
    assert found.curve[-1] == pytest.approx(found.mse, rel=1e-3)
    trace = fs.run(problem, method, rounds=8, privacy=privacy, repetitions=200)
    mean, error = trace.mse.mean(axis=0), trace.mse.std(axis=0) / np.sqrt(200)
    assert (np.abs(found.curve[:9] - mean) < 0.05 * mean + 4.0 * error).all()


def test_the_clipped_problem_is_what_runs_do() -> None:
    """At the moved optimum the mean clipped gradient vanishes, and curvature and noise are those of batches."""
    problem = sample("ridge")
    s, _ = private_setting(
        problem, fs.Scaffold(step_size=0.1, local_steps=2), Batches(1), RecordLevel(clip=1.5, noise_multiplier=2.0)
    )
    rows = np.arange(RECORDS)

    def mean(theta: Any) -> Any:
        return np.stack([problem.clipped_gradient(c, theta, rows, 1.5) for c in range(N)])

    gradients = mean(s.optimum)
    assert np.abs(problem.weights @ gradients).max() < 1e-9
    np.testing.assert_allclose(s.gradients, gradients, atol=1e-12)
    step = 1e-7 * np.eye(D)
    slopes = np.stack([(mean(s.optimum + e) - mean(s.optimum - e)) / 2e-7 for e in step], axis=2)
    hessians = (s.at_optimum.U * s.at_optimum.lam[:, None]) @ np.swapaxes(s.at_optimum.U, 1, 2)
    np.testing.assert_allclose(hessians, slopes, atol=1e-6)
    each = [problem.clipped_gradient(2, s.optimum, np.array([i]), 1.5) for i in rows]
    np.testing.assert_allclose(s.at_optimum.noise[2], np.cov(each, rowvar=False, bias=True) + 9.0 * np.eye(D))
    assert np.linalg.norm(s.optimum - problem.optimum()) > 0.05


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_clipped_gradients_at_many_points(kind: str) -> None:
    problem = sample(kind)
    averages = ClippedAverages(problem, False, 0.7, np.zeros(N))
    points = np.random.default_rng(2).normal(size=(N, 3, D))
    for block in list_blocks(problem):
        found = averages.gradients(block, points[block.clients])
        for c, own in zip(block.clients, found, strict=True):
            for point, gradient in zip(points[c], own, strict=True):
                expected = problem.clipped_gradient(int(c), point, np.arange(RECORDS), 0.7)
                np.testing.assert_allclose(gradient, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (fs.problems.RidgeStream(n_clients=2, dim=2), "on tables"),
        (fs.problems.Ridge(np.ones((301, 2, 2)), np.ones((301, 2)), l2=1.0), "up to 600 numbers"),
    ],
)
def test_what_is_not_predicted_is_refused(problem: Any, words: str) -> None:
    with pytest.raises(fs.InvalidInput, match=words):
        fs.theory.predict(
            problem, fs.Scaffold(step_size=0.1, local_steps=2), batch_size=1,
            privacy=RecordLevel(clip=1.0, noise_multiplier=1.0),
        )  # fmt: skip


class WithoutInverse(fs.problems.Logistic):
    """Logistic regression that does not say where its slope has a value: kinks are searched for."""

    margin_of_slope = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "spread"),
    [(fs.problems.Ridge, spread) for spread in (0.001, 0.1, 0.4, 1.0, 3.0, 10.0)]
    + [(fs.problems.Logistic, spread) for spread in (1e-6, 0.001, 0.1, 0.4, 1.0, 3.0, 10.0)]
    + [(WithoutInverse, spread) for spread in (1e-6, 3.0)]
    + [(fs.problems.Poisson, spread) for spread in (0.1, 0.6)],
)
def test_averages_of_bounded_slopes_are_those_of_a_fine_grid(kind: Any, spread: float) -> None:
    """Slopes that are smooth in a cloud, at a bound in all of it, or reach a bound within it, at either side."""
    rng = np.random.default_rng(3)
    n = 30
    signs = rng.choice([-1.0, 1.0], n)
    counts = rng.poisson(2.0, n).astype(float)
    targets = {fs.problems.Ridge: 2.0 * signs, fs.problems.Poisson: counts}.get(kind, signs)
    problem = kind([np.ones((n, 1))], [targets])
    bounds = np.exp(rng.normal(-1.0, 1.0, (2, 1, n)))
    share = np.clip(bounds, 0.0, 0.99)
    kinks = {fs.problems.Ridge: 2.0 * signs - signs * bounds, fs.problems.Poisson: np.log(counts + bounds)}.get(
        kind, signs * np.log((1.0 - share) / share)
    )
    z = np.stack([rng.normal(0.0, 2.0, (1, n)), kinks[1] + spread * rng.normal(size=(1, n))])
    spreads = spread * np.exp(0.3 * rng.normal(size=z.shape))
    averages = KinkedAverages(ClippedSlopes(problem, bounds), quadratic=False)
    own, square, slope = averages._over_margins(z, spreads, targets)
    step = 18.0 / 20_000  # in the middles of cells
    u = -9.0 + step * (np.arange(20_000) + 0.5)
    weights = step * np.exp(-0.5 * u * u) / np.sqrt(2.0 * np.pi)
    margins = z[..., None] + u * spreads[..., None]
    clipped = ClippedSlopes(problem, bounds[..., None])
    first, second = clipped.d1(margins, targets[:, None]), clipped.d2(margins, targets[:, None])
    if spread < 1.0:
        assert 0.0 in slope.round(6)  # at a bound wherever the cloud reaches
    assert ((slope > 1e-3 * second.max()) & (slope < 0.9 * second.max())).any()  # across a kink
    np.testing.assert_allclose(own, first @ weights, atol=3e-6)
    np.testing.assert_allclose(square, np.square(first) @ weights, atol=3e-6)
    np.testing.assert_allclose(
        slope, second @ weights, atol=3e-4 * max(1.0, second.max())
    )  # kinks lie between the grid's points


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_clients_of_different_sizes(kind: str) -> None:
    """Filling beside the records of a smaller client counts for nothing."""
    whole = sample(kind)
    sizes = [150, 90, 120, 60, 150]
    rows = [np.arange(c * RECORDS, c * RECORDS + size) for c, size in enumerate(sizes)]
    problem = type(whole)([whole.x[r] for r in rows], [whole.y[r] for r in rows], l2=0.05)
    method, privacy = fs.Scaffold(step_size=0.2, local_steps=3), RecordLevel(clip=1.0, noise_multiplier=10.0)
    found = fs.theory.predict(problem, method, batch_size=None, privacy=privacy, rounds=5)
    assert found.curve is not None
    trace = fs.run(problem, method, rounds=5, privacy=privacy, repetitions=200)
    mean, error = trace.mse.mean(axis=0), trace.mse.std(axis=0) / np.sqrt(200)
    assert (np.abs(found.curve - mean) < 0.05 * mean + 4.0 * error).all()

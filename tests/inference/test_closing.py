"""Closing sums, Newton steps, what is refused, and what the summary says."""

from itertools import islice
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks.coverage import coverage
from fedscaffold.core.errors import InvalidInput
from fedscaffold.inference import (
    Certificate,
    ClosingSums,
    Coordinates,
    client_sums,
    closing_sums,
    newton_step,
    summarise,
)
from fedscaffold.inference.sums import ProblemSums
from fedscaffold.inference.training import Descent, newton_path
from fedscaffold.problems import Logistic, Multinomial, Poisson, Ridge
from tests.samples import WEIGHTED_KINDS, weighted

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.normal(size=(4, 60, 2)), np.ones((4, 60, 1))], axis=2)
UNKNOWN: Any = "HC3"
LABELS = (RNG.random((4, 60)) < 1 / (1 + np.exp(-X @ [1.0, -0.5, 0.3]))).astype(np.float64)


def as_vector(sums: ClosingSums) -> Any:
    return np.concatenate(list(sums.blocks().values()))


@pytest.mark.parametrize("kind", WEIGHTED_KINDS)
def test_sums_are_those_of_the_records(kind: str) -> None:
    """Gradient, Hessian and loss are the problem's own; score products are those of single records."""
    sizes = (5, 9, 12)
    problem = weighted(kind, sizes, 3, l2=0.0, weights=sizes)
    theta = np.random.default_rng(1).normal(size=problem.dim) / 2
    sums, n = closing_sums(problem, theta), problem.n_records
    np.testing.assert_allclose(sums.gradient, n * problem.gradient(theta), rtol=1e-11)
    np.testing.assert_allclose(sums.hessian, n * problem.hessian(theta), rtol=1e-10, atol=1e-13)
    assert sums.loss == pytest.approx(n * problem.loss(theta), rel=1e-12)
    each = [problem.batch_gradient(c, theta, np.array([i])) for c, size in enumerate(sizes) for i in range(size)]
    np.testing.assert_allclose(sums.score_products, np.transpose(each) @ each, rtol=1e-10, atol=1e-13)
    own = np.asarray(sizes)[:, None] * problem.client_gradients(theta)
    np.testing.assert_allclose(sums.cluster_products, own.T @ own, rtol=1e-10)
    assert (sums.rows, sums.clients) == (n, 3)


def test_uniform_weights_make_rows_of_small_clients_count_more() -> None:
    problem = weighted("logistic", (5, 20), 3, l2=0.0)
    theta = np.zeros(3)
    np.testing.assert_allclose(closing_sums(problem, theta).gradient, 25 * problem.gradient(theta), rtol=1e-12)


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = weighted("gamma", (50, 70), 4, l2=0.0)
    whole = as_vector(closing_sums(problem, np.zeros(4)))
    monkeypatch.setattr("fedscaffold.inference.sums.NUMBERS_AT_ONCE", 28)
    np.testing.assert_allclose(as_vector(closing_sums(problem, np.zeros(4))), whole, rtol=1e-12)


@pytest.mark.parametrize("kind", WEIGHTED_KINDS)
def test_the_sums_of_blocks_are_the_blocks_of_the_sum(kind: str) -> None:
    problem = weighted(kind, (5, 9, 12), 3, l2=0.0, weights=(5, 9, 12))
    theta = np.full(problem.dim, 0.1)
    parts = [client_sums(problem, c, theta) for c in range(3)]
    added: dict[str, Any] = {name: sum(part.blocks()[name] for part in parts) for name in parts[0].blocks()}
    total = ClosingSums.of_blocks(problem.kind, theta, added)
    wanted = closing_sums(problem, theta)
    # one pass over all rows adds up in another order than client by client; terms are of order 1 and may cancel
    np.testing.assert_allclose(as_vector(total), as_vector(wanted), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(total.hessian, wanted.hessian, rtol=1e-12, atol=1e-15)
    assert (total.information is None) == (kind != "gamma")
    d = problem.dim
    assert as_vector(parts[0]).size <= 3 * d * (d + 1) // 2 + 3 * d + 20 + (
        d * (d + 1) // 2 if kind == "gamma" else 0
    )
    for name in ("hessian", "gradient", "loss"):
        without = {other: block for other, block in added.items() if other != name}
        with pytest.raises(InvalidInput, match="not the blocks of closing sums"):
            ClosingSums.of_blocks(problem.kind, theta, without)
        with pytest.raises(InvalidInput, match="not the blocks of closing sums"):
            ClosingSums.of_blocks(problem.kind, theta, {**added, name: np.zeros(2)})
    with pytest.raises(InvalidInput, match="same θ"):
        _ = parts[0] + client_sums(problem, 1, theta + 1)


def descend(problem: Any, start: Any, steps: int) -> list[Certificate]:
    """The start, and the models after each of some Newton steps, or of fewer if these arrive."""
    source: Any = ProblemSums(problem)
    at = Descent(source)
    return list(islice(newton_path(at, at.certificate(start)), steps + 1))


def test_two_steps_close_a_fit_and_none_leave_it() -> None:
    problem = Logistic(X, LABELS, l2=0.01)
    start = problem.optimum() + 0.01
    closed, left = summarise(problem, start), summarise(problem, start, max_steps=0)
    np.testing.assert_allclose(closed.coef, problem.optimum(), rtol=0, atol=1e-8)
    np.testing.assert_array_equal(left.coef, start)
    once, path = summarise(problem, start, max_steps=1), descend(problem, start, 2)
    np.testing.assert_array_equal(once.coef, path[1].theta)
    np.testing.assert_array_equal(closed.coef, path[2].theta)
    assert path[2].distance < 1e-6 < 0.05 < path[0].distance
    np.testing.assert_array_equal(summarise(problem, problem.optimum()).coef, problem.optimum())


def test_a_step_that_would_lead_away_is_halved() -> None:
    """From far away two steps come nearer, and as many as it takes arrive."""
    problem = Logistic(X, LABELS, l2=0.0)
    start = np.array([30.0, -30.0, 5.0]) / 4
    path = descend(problem, start, 20)
    assert problem.loss(path[2].theta) < problem.loss(start)
    np.testing.assert_allclose(summarise(problem, start, max_steps=20).coef, problem.optimum(), rtol=1e-9)
    counts = Poisson(X, 3.0 * LABELS, l2=0.0)  # where a full step would overflow
    found = summarise(counts, np.array([-8.0, 8.0, -9.0]), max_steps=60)
    np.testing.assert_allclose(found.coef, counts.optimum(), rtol=1e-8)


def test_the_distance_bounds_every_combination() -> None:
    problem = Ridge(X, RNG.normal(size=(4, 60)))
    theta = problem.optimum() + np.array([0.01, -0.02, 0.03])
    summary, distance = summarise(problem, theta, max_steps=0), descend(problem, theta, 0)[0].distance
    np.testing.assert_allclose(summary.optimisation_error, [0.01, 0.02, 0.03], rtol=1e-9)
    assert (summary.optimisation_error / summary.se).max() <= distance
    assert any("up to" in note for note in summary.notes)
    np.testing.assert_allclose(summary.error**2, summary.se**2 + summary.optimisation_error**2)
    quiet = summarise(problem, theta)
    assert not any("up to" in note for note in quiet.notes)
    assert quiet.optimisation_error.max() < 1e-14


def collinear() -> Any:
    table = np.concatenate([X, X[:, :, :1] + 2 * X[:, :, 1:2]], axis=2)
    return Ridge(table, LABELS), ("a", "b", "one", "c"), "'c', 'b' and 'a' depend on each other"


def constant() -> Any:
    table = np.concatenate([X, np.full((4, 60, 1), 7.0)], axis=2)
    return Ridge(table, LABELS), ("a", "b", "one", "c"), "'one' and 'c' depend on each other|'c' and 'one' depend"


def zero() -> Any:
    return (
        Ridge(np.concatenate([X, np.zeros((4, 60, 1))], axis=2), LABELS),
        ("a", "b", "one", "c"),
        "'c' is 0 in all",
    )


def few_rows() -> Any:
    return Ridge(X[:1, :2], LABELS[:1, :2]), ("a", "b", "one"), "2 rows for 3 coefficients"


def separated() -> Any:
    table = np.concatenate([X, LABELS[:, :, None] * (np.arange(60) < 5)[None, :, None]], axis=2)
    return Logistic(table, LABELS), ("a", "b", "one", "rare"), "'rare' separates the classes"


@pytest.mark.parametrize("make", [collinear, constant, zero, few_rows, separated])
def test_what_data_do_not_determine_is_named(make: Any) -> None:
    problem, names, message = make()
    theta = np.zeros(problem.dim)
    if make is separated:
        theta[-1] = 40.0  # where a fit without penalty drifts to
    with pytest.raises(InvalidInput, match=message):
        newton_step(closing_sums(problem, theta), np.zeros(problem.dim), names)
    newton_step(closing_sums(problem, theta), np.full(problem.dim, 0.1), names)


def test_with_client_intercepts_what_is_constant_within_clients_is_named() -> None:
    table = np.concatenate([X[:, :, :2], np.repeat(np.arange(4.0), 60).reshape(4, 60, 1)], axis=2)
    with pytest.raises(InvalidInput, match="'c' is the same in all rows of each client"):
        summarise(Logistic(table, LABELS), np.zeros(3), names=("a", "b", "c"), client_intercepts=True)


def test_clients_with_one_class_say_nothing_about_slopes() -> None:
    """As with an indicator that separates: the fit without them is the same."""
    labels = LABELS.copy()
    labels[2] = 1.0
    slopes = X[:, :, :2]
    found = summarise(Logistic(slopes, labels), np.zeros(2), client_intercepts=True)
    others = [0, 1, 3]
    wanted = summarise(Logistic(slopes[others], labels[others]), np.zeros(2), client_intercepts=True)
    np.testing.assert_allclose(found.coef, wanted.coef, rtol=1e-9)
    np.testing.assert_allclose(found.se, wanted.se, rtol=1e-9)
    assert found.facts["client intercepts"] == "3"


def test_a_penalty_shrinks_and_the_notes_say_so() -> None:
    plain, shrunk = (summarise(Logistic(X, LABELS, l2=l2, n_unpenalised=1)) for l2 in (0.0, 0.1))
    assert (np.abs(shrunk.coef[:2]) < np.abs(plain.coef[:2])).all()
    assert any("shrunk towards zero" in note for note in shrunk.notes)
    assert not any("shrunk" in note for note in plain.notes)


@pytest.mark.parametrize(("cov", "most"), [("HC0", 1.15), ("nonrobust", 1.35)])
def test_penalised_standard_errors_are_the_spread_over_samples(cov: Any, most: float) -> None:
    """Of the estimate in 400 samples; the spread's own standard error is 3.5 %.

    "nonrobust" believes the shrunken probabilities, which are nearer to one half, and so claims more.
    """
    rng = np.random.default_rng(1)
    found, claimed = [], []
    for _ in range(400):
        x = rng.normal(size=(2, 60, 2))
        problem = Logistic(x, rng.random((2, 60)) < 1 / (1 + np.exp(-x @ [1.0, -1.0])), l2=0.1)
        summary = summarise(problem, cov=cov)
        found.append(summary.coef)
        claimed.append(summary.se)
    ratio = np.mean(claimed, axis=0) / np.std(found, axis=0)
    assert (ratio > 0.85).all()
    assert (ratio < most).all()


def test_multinomial_with_a_penalty_reports_differences_to_the_first_class() -> None:
    classes = RNG.integers(0, 3, size=(4, 60))
    summary = summarise(Multinomial(X, classes, l2=0.1, n_unpenalised=1), names=("a", "b", "one"))
    assert summary.names == ("1: a", "1: b", "1: one", "2: a", "2: b", "2: one")
    free = summarise(Multinomial(X, classes, l2=1e-9), names=("a", "b", "one"))
    exact = summarise(Multinomial(X, classes), names=("a", "b", "one"))
    np.testing.assert_allclose(free.se, exact.se, rtol=1e-5)


def test_text_frame_html_and_ratios() -> None:
    summary = summarise(Logistic(X, LABELS), names=("dose<", "age", "intercept"), n_intercepts=1)
    text, markup = str(summary), summary._repr_html_()
    assert repr(summary) == text
    assert all(len(line) <= 79 for line in text.splitlines())
    for word in ("dose<", "age", "intercept", "P>|z|", "[0.025", "Binomial", "log-likelihood", "240"):
        assert word in text
    assert "dose&lt;" in markup
    assert "<table>" in markup
    frame = summary.to_frame()
    assert list(frame.columns) == ["coef", "se", "z", "p", "low", "high", "optimisation_error"]
    assert list(frame.index) == ["dose<", "age", "intercept"]
    np.testing.assert_allclose(summary.ratios()["odds ratio"], np.exp(frame["coef"]))
    with pytest.raises(InvalidInput, match="no meaning for a Gaussian"):
        summarise(Ridge(X, LABELS)).ratios()
    assert "t" in str(summarise(Ridge(X, LABELS)))


def test_levels_widen_intervals() -> None:
    narrow, wide = (summarise(Logistic(X, LABELS), level=level) for level in (0.9, 0.99))
    assert (wide.high - wide.low > 1.5 * (narrow.high - narrow.low)).all()
    assert "[0.005" in str(wide)


def test_a_column_that_varies_at_one_client_alone_is_noted() -> None:
    table = X.copy()
    table[1:, :, 1] = 0.0
    summary = summarise(Logistic(table, LABELS), cov="cluster", names=("a", "b", "one"))
    assert any("Only one client has different values of b" in note for note in summary.notes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: summarise(Ridge(X, LABELS), cov=UNKNOWN), "cov must be one of"),
        (lambda: summarise(Ridge(X, LABELS), level=1.5), "level must be below 1"),
        (lambda: summarise(Ridge(X, LABELS), names=("a",)), "3 features, but 1 names"),
        (lambda: summarise(Ridge(X[:1], LABELS[:1]), cov="cluster"), "compares clients, and there is one only"),
        (lambda: summarise(Ridge(X[:1, :3], LABELS[:1, :3])), "nothing is left to estimate"),
        (
            lambda: summarise(Poisson(X, LABELS), dispersion="deviance"),
            "dispersion must be a positive number or 'pearson'",
        ),
        (lambda: summarise(Poisson(X, LABELS), dispersion=-1.0), "dispersion must be a positive number, got"),
        (lambda: summarise(Logistic(X, LABELS)).wald_test(["age"]), "no coefficient 'age'"),
        (lambda: summarise(Logistic(X, LABELS)).wald_test([[1.0, 2.0]]), "must have 3 columns"),
        (lambda: summarise(Logistic(X, LABELS)).wald_test([[1, 0, 0], [2, 0, 0]]), "depend on each other"),
        (lambda: closing_sums(fs.problems.RidgeStream(n_clients=2, dim=3), np.zeros(3)), "not for 'ridge_stream'"),
        (lambda: closing_sums(Ridge(np.ones((1, 2, 1001)), np.ones((1, 2))), np.zeros(1001)), "at most 1,000"),
    ],
)
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


def test_coordinates_change_units() -> None:
    """A column in other units, and a target too: the same z, other coefficients."""
    y = X @ [2.0, -1.0, 5.0] + RNG.normal(size=(4, 60))
    problem = Ridge(X, y / 10)
    sums = closing_sums(problem, problem.optimum())
    coordinates = Coordinates.of_features(
        ("a", "b", "one"), n_intercepts=1, scale=[1.0, 2.0, 1.0], target_shift=3.0, target_scale=10.0
    )
    found = fs.inference.summarise_sums(sums, np.zeros(3), coordinates, target_scale=10.0)
    table = X * [1.0, 2.0, 1.0]
    wanted = summarise(Ridge(table, y + 3.0))
    np.testing.assert_allclose(found.coef, wanted.coef, rtol=1e-10)
    np.testing.assert_allclose(found.se, wanted.se, rtol=1e-10)
    assert found.statistics.log_likelihood == pytest.approx(wanted.statistics.log_likelihood, rel=1e-10)
    assert found.statistics.dispersion == pytest.approx(wanted.statistics.dispersion, rel=1e-10)


def test_intervals_cover() -> None:
    """150 federations: 95 % ± 5.4 % are three standard deviations, for twelve intervals of four kinds."""
    for shares in coverage(5, 150).values():
        assert (np.abs(shares - 0.95) < 0.054).all()


@pytest.mark.slow
@pytest.mark.parametrize("clients", [5, 100])
def test_intervals_cover_in_many_federations(clients: int) -> None:
    """At the optimum and 20 % of a standard error off it, with both kinds of standard errors."""
    for shares in coverage(clients, 2000).values():
        assert (shares > 0.93).all()
        assert (shares < 0.97).all()


def test_sums_are_a_frozen_dataclass_of_numbers() -> None:
    sums = closing_sums(Ridge(X, LABELS), np.zeros(3))
    assert isinstance(sums, ClosingSums)
    with pytest.raises(AttributeError):
        sums.rows = 3  # type: ignore[misc]


def test_a_feature_of_no_row_is_no_coefficient() -> None:
    """As a category that sites agreed on and that turns out to be that of no row."""
    rng = np.random.default_rng(3)
    x = np.stack([rng.normal(size=(3, 40)), np.zeros((3, 40)), np.ones((3, 40))], axis=2)
    names = ("age", "ward=(other)", "intercept")
    y = rng.random((3, 40)) < 0.5
    wide = summarise(Logistic(x, y, l2=0.01, n_unpenalised=1), names=names)
    plain = summarise(Logistic(x[:, :, [0, 2]], y, l2=0.01, n_unpenalised=1), names=("age", "intercept"))
    assert wide.names == ("age", "intercept")
    np.testing.assert_allclose(wide.to_frame(), plain.to_frame(), rtol=1e-9, atol=1e-12)
    assert wide.statistics == plain.statistics
    assert "No row has ward=(other), so that there is no coefficient." in wide.notes
    three = summarise(Multinomial(x, rng.integers(0, 3, (3, 40)), l2=0.01, n_unpenalised=1), names=names)
    assert three.names == ("1: age", "1: intercept", "2: age", "2: intercept")

"""A1 to A6: the constants of a problem against its derivatives and its noise at random points."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.paper.verify.rows import Measured, Relation, StatementRow, bounded, over_groups
from fedscaffold.paper.verify.settings import BATCH, KINDS, MODERATE, RECORDS, Budget, make
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation.observers import squared_distance
from fedscaffold.theory import Constants, constants
from fedscaffold.theory.bounds import Bound, noise_pair

REACH = 2.0  # standard deviation of random points around θ*: far into the tails of the logistic loss
STEP = 1e-4  # of central differences, whose errors of 1e-8 are far below the tolerance of 1e-5

Part = tuple[str, str, Relation, float, float]  # statement, claim, relation, predicted, measured


def rows(budget: Budget) -> list[StatementRow]:
    """Return rows on the six assumptions, for ridge and logistic regression."""
    found = []
    for kind in KINDS:
        problem = make(kind, 4, 3, MODERATE[kind])
        known = constants(problem, batch_size=BATCH)
        rng = np.random.default_rng(1)
        points = problem.optimum() + REACH * rng.normal(size=(budget.samples, problem.dim))
        setting = f"{kind}, B = {BATCH}, N = {problem.n_clients}"
        parts = [_curvature(problem, known, points), *_smoothness(problem, known, points)]
        parts += _higher(problem, known, points) if kind == "logistic" else []
        parts += _heterogeneity(problem, known)
        names = ("statement", "claim", "relation", "predicted", "measured")
        each: list[dict[str, Any]] = [dict(zip(names, part, strict=True)) for part in parts]
        found += [StatementRow(**one, setting=setting, tolerance=1e-5 * budget.loosen) for one in each]
        found.append(_noise(problem, known, rng, setting))
    return found


def _curvature(problem: Ridge | Logistic, known: Constants, points: Array) -> Part:
    least = min(float(np.linalg.eigvalsh(problem.client_hessians(point))[:, 0].min()) for point in points)
    return "A1", "strong convexity: least eigenvalue of ∇²f_c(θ) ≥ μ", "≥", known.mu, least


def _smoothness(problem: Ridge | Logistic, known: Constants, points: Array) -> list[Part]:
    """Compute second moments of a batch's mean exactly: ‖mean‖² + variance of one record × noise factor."""
    x, y = _clients(problem)
    share = Batches(BATCH).noise_factor(RECORDS)
    expected, record = 0.0, 0.0
    for a, b in pairwise(points):
        step = a - b
        each = (problem.d1(x @ a, y) - problem.d1(x @ b, y))[..., None] * x + problem.l2 * step
        mean = each.mean(axis=1)
        square = np.square(mean).sum(axis=1)
        second = share * (np.square(each).sum(axis=2).mean(axis=1) - square) + square
        expected = max(expected, float((second / (mean @ step)).max()))
        curvature = problem.d2(x @ a, y) * np.square(x).sum(axis=2) + problem.l2
        record = max(record, float(curvature.max()))
    claim = "smoothness as proofs use it: E‖g(θ)−g(θ')‖² ≤ L⟨∇f_c(θ)−∇f_c(θ'), θ−θ'⟩"
    written = "smoothness as written: every record's Hessian ≤ L_record"
    return [("A2", claim, "≤", known.L, expected), ("A2", written, "≤", known.L_record, record)]


def _higher(problem: Ridge | Logistic, known: Constants, points: Array) -> list[Part]:
    """Take random points and directions; the fourth derivative by differences of the third."""
    rng = np.random.default_rng(2)
    third, fourth = 0.0, 0.0
    for point in (*points, *(problem.optimum() + 0.1 * (points - problem.optimum()))):
        u = rng.normal(size=(problem.dim,))
        u = u / np.linalg.norm(u)
        outer = np.outer(u, u)
        third = max(third, _largest(problem.client_third_derivatives(point, outer)))
        fourth = max(fourth, _largest(_difference(problem.client_third_derivatives, point, STEP * u, outer)))
    return [
        ("A3", "third derivative: ‖∇³f_c(θ) u⊗u‖ ≤ Q‖u‖²", "≤", known.Q, third),
        ("A6", "fourth derivative: ‖∇⁴f_c(θ) u⊗u⊗u‖ ≤ G‖u‖³", "≤", known.G, fourth),
    ]


def _heterogeneity(problem: Ridge | Logistic, known: Constants) -> list[Part]:
    """Compute gradients and Hessians anew, by differences of losses and of gradients."""
    optimum, steps = problem.optimum(), STEP * np.eye(problem.dim)
    gradients = np.stack([_difference(problem.client_losses, optimum, step) for step in steps], axis=1)
    hessians = np.stack([_difference(problem.client_gradients, optimum, step) for step in steps], axis=2)
    spread = hessians - hessians.mean(axis=0)
    zeta1 = float(np.sqrt(np.square(gradients - gradients.mean(axis=0)).sum(axis=1).mean()))
    zeta2 = float(np.sqrt(np.mean(np.linalg.norm(spread, 2, axis=(1, 2)) ** 2)))
    return [
        ("A4", "heterogeneity: ζ₁² = mean ‖∇f_c(θ*)‖²", "≈", known.zeta1, zeta1),
        ("A4", "heterogeneity: ζ₂² = mean ‖∇²f_c − ∇²f‖²", "≈", known.zeta2, zeta2),
    ]


def _noise(problem: Ridge | Logistic, known: Constants, rng: np.random.Generator, setting: str) -> StatementRow:
    """Draw 20,000 batches at each of 8 points; the largest share of the bound over p, clients and points."""
    x, y = _clients(problem)
    optimum = problem.optimum()
    away = rng.normal(size=(8, problem.dim)) * np.linspace(0.0, REACH, 8)[:, None]
    pairs = [*map(known.noise_bound, (0.1, 1.0, 10.0)), noise_pair(known, 3.0 * known.noise_lipschitz2)]
    ratios: list[Measured] = []
    for point in optimum + away:
        far = float(squared_distance(point, optimum))
        limit = min(sigma2 + beta * far for sigma2, beta in pairs)
        each = problem.d1(x @ point, y)[..., None] * x
        each = each - each.mean(axis=1, keepdims=True)
        drawn = each[:, rng.integers(RECORDS, size=(20_000, BATCH))].mean(axis=2)
        square = np.square(drawn).sum(axis=2).T
        for p in (1, 2, 3):
            mean, spread = over_groups(square**p)
            root = mean ** (1.0 / p)
            ratios.append(Measured(root / limit, root * spread / (p * mean) / limit))
    every = Measured(np.stack([r.value for r in ratios]), np.stack([r.error for r in ratios]))
    claim = "noise: E^{1/p}‖ε_c(θ)‖^{2p} / (σ*² + β‖θ−θ*‖²) ≤ 1 for p = 1, 2, 3"
    return bounded(claim, setting, every, [Bound(1.0, (), "A5")])


def _clients(problem: Ridge | Logistic) -> tuple[Array, Array]:
    shape = (problem.n_clients, RECORDS)
    return problem.x.reshape(*shape, problem.dim), problem.y.reshape(shape)


def _difference(function: Callable[..., Array], point: Array, step: Array, *rest: Array) -> Array:
    """Return the derivative along a step of length STEP, by a central difference."""
    return (function(point + step, *rest) - function(point - step, *rest)) / (2 * STEP)


def _largest(vectors: Array) -> float:
    return float(np.linalg.norm(vectors, axis=1).max())

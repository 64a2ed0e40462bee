"""A1 to A6: the constants of a problem against its derivatives and its noise at random points."""

from itertools import pairwise

import numpy as np

from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.paper.verify.rows import Measured, StatementRow, over_groups, worst
from fedscaffold.paper.verify.settings import BATCH, KINDS, MODERATE, RECORDS, Budget, make
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation.observers import squared_distance
from fedscaffold.theory import Constants, constants
from fedscaffold.theory.bounds.conditions import noise_pair

USES = (constants,)
REACH = 2.0  # standard deviation of random points around θ*
STEP = 1e-4  # of finite differences
POINTS, DRAWS = 8, 20_000  # for A5
SLACKS = (0.1, 1.0, 10.0)  # of some pairs (σ*², β); the smallest bound is taken


def rows(budget: Budget) -> list[StatementRow]:
    """Six assumptions, for ridge and logistic regression."""
    found = []
    for kind in KINDS:
        problem = make(kind, 4, 3, MODERATE[kind])
        known = constants(problem, batch_size=BATCH)
        rng = np.random.default_rng(1)
        points = problem.optimum() + REACH * rng.normal(size=(budget.samples, problem.dim))
        setting = f"{kind}, B = {BATCH}, N = {problem.n_clients}"
        found += _curvature(problem, known, points, setting)
        found += _smoothness(problem, known, points, setting)
        if kind == "logistic":
            found += _higher(problem, known, points, setting)
        found += _heterogeneity(problem, known, setting, budget)
        found += _noise(problem, known, rng, setting)
    return found


def _curvature(problem: Ridge | Logistic, known: Constants, points: Array, setting: str) -> list[StatementRow]:
    least = min(float(np.linalg.eigvalsh(problem.client_hessians(point))[:, 0].min()) for point in points)
    claim = "strong convexity: least eigenvalue of ∇²f_c(θ) ≥ μ"
    return [
        StatementRow(
            statement="A1", claim=claim, setting=setting, relation="≥", predicted=known.mu,
            measured=least, uses=USES,
        )
    ]  # fmt: skip


def _smoothness(problem: Ridge | Logistic, known: Constants, points: Array, setting: str) -> list[StatementRow]:
    """Second moments of a batch's mean are exact: ‖mean‖² + variance of one record × noise factor."""
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
    return [
        StatementRow(
            statement="A2", claim=claim, setting=setting, relation="≤", predicted=known.L, measured=expected,
            uses=USES,
        ),
        StatementRow(
            statement="A2", claim=written, setting=setting, relation="≤", predicted=known.L_record,
            measured=record, uses=USES,
        ),
    ]  # fmt: skip


def _higher(problem: Ridge | Logistic, known: Constants, points: Array, setting: str) -> list[StatementRow]:
    """Random points and directions; the fourth derivative by differences of the third."""
    rng = np.random.default_rng(2)
    third, fourth = 0.0, 0.0
    for point in (*points, *(problem.optimum() + 0.1 * (points - problem.optimum()))):
        u = rng.normal(size=(problem.dim,))
        u = u / np.linalg.norm(u)
        outer = np.outer(u, u)
        third = max(third, _largest(problem.client_third_derivatives(point, outer)))
        ahead, behind = (problem.client_third_derivatives(point + s * STEP * u, outer) for s in (1, -1))
        fourth = max(fourth, _largest(ahead - behind) / (2 * STEP))
    return [
        StatementRow(
            statement="A3", claim="third derivative: ‖∇³f_c(θ) u⊗u‖ ≤ Q‖u‖²", setting=setting, relation="≤",
            predicted=known.Q, measured=third, uses=USES,
        ),
        StatementRow(
            statement="A6", claim="fourth derivative: ‖∇⁴f_c(θ) u⊗u⊗u‖ ≤ G‖u‖³", setting=setting, relation="≤",
            predicted=known.G, measured=fourth, uses=USES,
        ),
    ]  # fmt: skip


def _heterogeneity(
    problem: Ridge | Logistic, known: Constants, setting: str, budget: Budget
) -> list[StatementRow]:
    """Gradients and Hessians anew, by differences of losses and of gradients."""
    optimum, eye = problem.optimum(), STEP * np.eye(problem.dim)
    gradients = np.stack(
        [(problem.client_losses(optimum + e) - problem.client_losses(optimum - e)) / (2 * STEP) for e in eye],
        axis=1,
    )
    hessians = np.stack(
        [
            (problem.client_gradients(optimum + e) - problem.client_gradients(optimum - e)) / (2 * STEP)
            for e in eye
        ],
        axis=2,
    )
    spread = hessians - hessians.mean(axis=0)
    zeta1 = float(np.sqrt(np.square(gradients - gradients.mean(axis=0)).sum(axis=1).mean()))
    zeta2 = float(np.sqrt(np.mean(np.linalg.norm(spread, 2, axis=(1, 2)) ** 2)))
    pairs = (("ζ₁² = mean ‖∇f_c(θ*)‖²", known.zeta1, zeta1), ("ζ₂² = mean ‖∇²f_c − ∇²f‖²", known.zeta2, zeta2))
    return [
        StatementRow(
            statement="A4", claim=f"heterogeneity: {what}", setting=setting, relation="≈", predicted=predicted,
            measured=measured, tolerance=1e-5 * budget.loosen, uses=USES,
        )
        for what, predicted, measured in pairs
    ]  # fmt: skip


def _noise(
    problem: Ridge | Logistic, known: Constants, rng: np.random.Generator, setting: str
) -> list[StatementRow]:
    """Sixth moments of batches that are drawn; the largest share of the bound over p, clients and points."""
    x, y = _clients(problem)
    optimum = problem.optimum()
    away = rng.normal(size=(POINTS, problem.dim)) * np.linspace(0.0, REACH, POINTS)[:, None]
    pairs = [*map(known.noise_bound, SLACKS), noise_pair(known, 3.0 * known.noise_lipschitz2)]
    ratios: list[Measured] = []
    for point in optimum + away:
        far = float(squared_distance(point, optimum))
        limit = min(sigma2 + beta * far for sigma2, beta in pairs)
        each = problem.d1(x @ point, y)[..., None] * x
        each = each - each.mean(axis=1, keepdims=True)
        drawn = each[:, rng.integers(RECORDS, size=(DRAWS, BATCH))].mean(axis=2)
        square = np.square(drawn).sum(axis=2).T
        for p in (1, 2, 3):
            mean, spread = over_groups(square**p)
            root = mean ** (1.0 / p)
            ratios.append(Measured(root / limit, root * spread / (p * mean) / limit))
    every = Measured(np.stack([r.value for r in ratios]), np.stack([r.error for r in ratios]))
    _, bound, value, error = worst(every, 1.0)
    claim = "noise: E^{1/p}‖ε_c(θ)‖^{2p} / (σ*² + β‖θ−θ*‖²) ≤ 1 for p = 1, 2, 3"
    return [
        StatementRow(
            statement="A5", claim=claim, setting=setting, relation="≤", predicted=bound, measured=value,
            standard_error=error, uses=(*USES, Constants.noise_bound, noise_pair),
        )
    ]  # fmt: skip


def _clients(problem: Ridge | Logistic) -> tuple[Array, Array]:
    shape = (problem.n_clients, RECORDS)
    return problem.x.reshape(*shape, problem.dim), problem.y.reshape(shape)


def _largest(vectors: Array) -> float:
    return float(np.linalg.norm(vectors, axis=1).max())

"""Small neural networks on handwritten digits: Scaffold against FedAvg where labels are split unevenly or evenly.

`python -m benchmarks.digits` in the source tree trains the networks, measures the tables of the docs and draws
test accuracy by round.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.checks import given
from fedscaffold.core.display.figures import plain_grid
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.optional import load_optional
from fedscaffold.core.types import Array
from fedscaffold.data import partition
from fedscaffold.engines import Jax
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.paper.method_figures.networks import NETWORKS
from fedscaffold.problems import Differentiable
from fedscaffold.reports.layout import COLOURS, saved_panels
from fedscaffold.simulation.run_method import run

TEST_RECORDS = 360
LOCAL_STEPS, BATCH_SIZE, CLIENTS = 50, 10, 50
STEP_SIZES = {"perceptron": 0.2, "convolutional": 0.1}
ROUNDS = {"perceptron": 100, "convolutional": 40}
METHODS: dict[str, type[Scaffold] | type[FedAvg]] = {"Scaffold": Scaffold, "FedAvg": FedAvg}
Accuracy = Callable[[Array], float]  # of a model θ on the test records
Curves = dict[tuple[float, str], Array]  # accuracies (seeds, rounds + 1) by skew and method


def digits(alpha: float, seed: int, network: str = "perceptron") -> tuple[Differentiable, Accuracy]:
    """Build scikit-learn's 1,797 digits over 50 clients, by Dirichlet(α) label skew, and a test of 360 of them.

    Returns the problem, and the share of test records whose class a model names, as a function of θ.
    """
    if network not in NETWORKS:
        raise InvalidInput(f"network must be one of {', '.join(NETWORKS)}, got {given(network)}")
    chosen = NETWORKS[network]
    datasets = load_optional("sklearn.datasets", "the digits need scikit-learn", extra="reproduce")
    X, y = datasets.load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(y.size)
    test, train = order[:TEST_RECORDS], order[TEST_RECORDS:]
    ids = partition.dirichlet(y[train], n_clients=CLIENTS, alpha=alpha, seed=seed)
    rows = [train[ids == c] for c in range(CLIENTS)]
    clients = [(X[own] / 16.0, y[own]) for own in rows]
    problem = Differentiable(chosen.loss, chosen.initial(rng), clients, weights=[own.size for own in rows])
    scores = load_optional("jax", "networks need JAX", extra="jax").jit(chosen.scores)

    def accuracy(theta: Array) -> float:
        named = np.asarray(scores(problem.unravel(theta), X[test] / 16.0)).argmax(axis=1)
        return float((named == y[test]).mean())

    return problem, accuracy


def simulate(
    *,
    network: str = "perceptron",
    alphas: Sequence[float] = (0.1, 100.0),
    seeds: int = 5,
    rounds: int | None = None,
    local_steps: int = LOCAL_STEPS,
) -> Curves:
    """Both methods from the same network, for every skew and seed of split, network and batches."""
    curves: dict[tuple[float, str], list[Array]] = {}
    for alpha in alphas:
        for seed in range(seeds):
            problem, accuracy = digits(alpha, seed, network)
            for name, kind in METHODS.items():
                method = kind(step_size=STEP_SIZES[network], local_steps=local_steps)
                trace = run(
                    problem, method, rounds=rounds or ROUNDS[network], batch_size=BATCH_SIZE, seed=seed,
                    engine=Jax(dtype="float32"), record=(accuracy,), progress=False,
                )  # fmt: skip
                curves.setdefault((alpha, name), []).append(trace.accuracy[0])
    return {key: np.stack(rows) for key, rows in curves.items()}


def rounds_to(curves: Array, accuracy: float) -> list[int | None]:
    """The first round in which each run is that accurate; None if it never is."""
    reached = curves >= accuracy
    return [int(row.argmax()) if row.any() else None for row in reached]


def draw(curves: Curves, file: Path) -> None:
    """Mean, least and greatest accuracy by round, a panel for each skew."""
    alphas = list(dict.fromkeys(alpha for alpha, _ in curves))
    width = 4.2 * len(alphas)
    with saved_panels([file], 1, len(alphas), width=width, height=3.4, sharey=True) as (_, grid):
        axes = grid[0]
        for axis, alpha in zip(axes, alphas, strict=True):
            for name in METHODS:
                rows, colour = curves[alpha, name], COLOURS[name]
                rounds = np.arange(rows.shape[1])
                axis.plot(rounds, rows.mean(axis=0), color=colour, label=name)
                axis.fill_between(rounds, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.2, linewidth=0)
            axis.set(title=f"label skew, Dirichlet({alpha:g})", xlabel="round", ylim=(0.7, 1.0))
            plain_grid(axis)
        axes[0].set_ylabel("test accuracy")
        axes[0].legend(loc="lower right", frameon=False)


def figures(curves: Curves) -> dict[str, Any]:
    """Rounds to 90 and 95 % of every run and the mean accuracy at the end, by label skew and method."""
    found: dict[str, Any] = {}
    for (alpha, name), rows in curves.items():
        skew = found.setdefault(f"dirichlet_{alpha:g}".replace(".", "_"), {})
        skew[name.lower()] = {
            **{f"rounds_to_{level:.0%}".rstrip("%"): _listed(rounds_to(rows, level)) for level in (0.90, 0.95)},
            "percent_at_end": 100.0 * float(rows[:, -1].mean()),
        }
    return found


def _listed(rounds: Sequence[int | None]) -> str:
    return ", ".join("never" if each is None else str(each) for each in rounds)

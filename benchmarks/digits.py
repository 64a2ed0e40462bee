"""Small neural networks on handwritten digits: Scaffold against FedAvg, labels split unevenly or evenly.

`python -m benchmarks.digits [--quick]` measures the tables and draws the figures of docs/how-to/jax.md in some
minutes. It needs JAX and scikit-learn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from benchmarks import measured
from fedscaffold.core.display import plain_grid
from fedscaffold.core.types import Array
from fedscaffold.data import partition
from fedscaffold.engines import Jax
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.problems import Differentiable
from fedscaffold.reports.figures import COLOURS, saved_panels
from fedscaffold.simulation.run_method import run

TEST_RECORDS, CLIENTS = 360, 50
METHODS: dict[str, type[Scaffold] | type[FedAvg]] = {"Scaffold": Scaffold, "FedAvg": FedAvg}
Accuracy = Callable[[Array], float]  # of a model θ on the test records
Curves = dict[tuple[float, str], Array]  # accuracies (seeds, rounds + 1) by skew and method


@dataclass(frozen=True)
class Network:
    """A network for images of 8 × 8 pixels: random initial parameters, and scores (n, 10) of images (n, 64)."""

    initial: Callable[[np.random.Generator], dict[str, Array]]
    scores: Callable[[Any, Any], Any]
    step_size: float
    rounds: int
    image: str

    def loss(self, params: Any, batch: Any) -> Any:
        """Return the mean cross-entropy, the mean of log Σ exp(z) − z_label, of a batch (images, labels)."""
        images, labels = batch
        scores = self.scores(params, images)
        own = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(scores, axis=1) - own)


def perceptron_scores(params: Any, x: Any) -> Any:
    """Return the scores of a network with one hidden layer."""
    return jnp.tanh(x @ params["in"] + params["in_bias"]) @ params["out"] + params["out_bias"]


def perceptron_initial(rng: np.random.Generator) -> dict[str, Array]:
    """Return 2,410 numbers: weights of variance 1/(inputs), biases 0."""
    return {
        "in": rng.normal(size=(64, 32)) / 8,
        "in_bias": np.zeros(32),
        "out": rng.normal(size=(32, 10)) / np.sqrt(32),
        "out_bias": np.zeros(10),
    }


def convolutional_scores(params: Any, x: Any) -> Any:
    """Return the scores of two layers of 3 × 3 convolutions, each of which halves the sides, and a dense one."""
    image = x.reshape(-1, 8, 8, 1)
    for layer in ("first", "second"):
        image = jax.lax.conv_general_dilated(
            image, params[layer], window_strides=(2, 2), padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        image = jax.nn.relu(image + params[f"{layer}_bias"])
    return image.reshape(len(x), -1) @ params["out"] + params["out_bias"]


def convolutional_initial(rng: np.random.Generator) -> dict[str, Array]:
    """Return 1,898 numbers: weights of variance 1/(inputs), biases 0."""
    return {
        "first": rng.normal(size=(3, 3, 1, 8)) / 3.0,
        "first_bias": np.zeros(8),
        "second": rng.normal(size=(3, 3, 8, 16)) / np.sqrt(9 * 8),
        "second_bias": np.zeros(16),
        "out": rng.normal(size=(64, 10)) / 8.0,
        "out_bias": np.zeros(10),
    }


NETWORKS = {
    "perceptron": Network(perceptron_initial, perceptron_scores, 0.2, 100, "digits.png"),
    "convolutional": Network(convolutional_initial, convolutional_scores, 0.1, 40, "digits-convolutional.png"),
}


def digits(alpha: float, seed: int, network: str = "perceptron") -> tuple[Differentiable, Accuracy]:
    """Build scikit-learn's 1,797 digits over 50 clients, by Dirichlet(α) label skew, and a test of 360 of them.

    Returns the problem, and the share of test records whose class a model names, as a function of θ.
    """
    chosen = NETWORKS[network]
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(y.size)
    test, train = order[:TEST_RECORDS], order[TEST_RECORDS:]
    ids = partition.dirichlet(y[train], n_clients=CLIENTS, alpha=alpha, seed=seed)
    rows = [train[ids == c] for c in range(CLIENTS)]
    clients = [(X[own] / 16.0, y[own]) for own in rows]
    problem = Differentiable(chosen.loss, chosen.initial(rng), clients, weights=[own.size for own in rows])
    scores = jax.jit(chosen.scores)

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
    local_steps: int = 50,
) -> Curves:
    """Run both methods from the same network, for every skew and seed of split, network and batches."""
    chosen = NETWORKS[network]
    curves: dict[tuple[float, str], list[Array]] = {}
    for alpha in alphas:
        for seed in range(seeds):
            problem, accuracy = digits(alpha, seed, network)
            for name, kind in METHODS.items():
                method = kind(step_size=chosen.step_size, local_steps=local_steps)
                trace = run(
                    problem, method, rounds=rounds or chosen.rounds, batch_size=10, seed=seed,
                    engine=Jax(dtype="float32"), record=(accuracy,), progress=False,
                )  # fmt: skip
                curves.setdefault((alpha, name), []).append(trace.accuracy[0])
    return {key: np.stack(rows) for key, rows in curves.items()}


def rounds_to(curves: Array, accuracy: float) -> list[int | None]:
    """Return the first round in which each run is that accurate; None if it never is."""
    reached = curves >= accuracy
    return [int(row.argmax()) if row.any() else None for row in reached]


def draw(curves: Curves, file: Path) -> None:
    """Draw mean, least and greatest accuracy by round, a panel for each skew."""
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
    """Return rounds to 90 and 95 % of every run and the mean accuracy at the end, by label skew and method."""
    found: dict[str, Any] = {}
    for (alpha, name), rows in curves.items():
        skew = found.setdefault(f"dirichlet_{alpha:g}".replace(".", "_"), {})
        skew[name.lower()] = {"percent_at_end": 100.0 * float(rows[:, -1].mean())}
        for percent in (90, 95):
            reached = rounds_to(rows, percent / 100)
            listed = ", ".join("never" if each is None else str(each) for each in reached)
            skew[name.lower()][f"rounds_to_{percent}"] = listed
    return found


def main() -> None:
    """Train, print, draw and save."""
    options = measured.parser(__doc__).parse_args()
    less: dict[str, Any] = {"seeds": 1, "rounds": 2} if options.quick else {}
    numbers = {}
    for name, network in NETWORKS.items():
        curves = simulate(network=name, **less)
        short = simulate(network=name, alphas=(0.1,), local_steps=2, **less)
        numbers[name] = {"steps_50": figures(curves), "steps_2": figures(short)}
        for setting, row in numbers[name].items():
            print(name, setting, row)
        if not options.quick:
            draw(curves, measured.ROOT / "docs" / "images" / network.image)
    note = "Rounds of five seeds, each with its own split, first network and batches."
    measured.save("digits", numbers, options, note=note)


if __name__ == "__main__":
    main()

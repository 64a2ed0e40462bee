"""Random problems at the edges of what theory predicts, each from one seed.

Heavy tails, curvatures that differ by up to 1e10, one to twelve clients, one to five features and, for logistic
regression, 20 or 60, one client of weight 0.9, two to five records, single records and all of them without
replacement, tiny penalties, step sizes up to 0.95 of the largest that has a plateau, one to 2,000 local steps, and
logistic clients whose records can be separated.
"""

from dataclasses import dataclass

import numpy as np

import fedscaffold as fs
from benchmarks.ridge_moments import ExactRidge
from fedscaffold.core.random.stream import Batches
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.problems import Logistic, Ridge

MANY_FEATURES = [0.22, 0.22, 0.22, 0.22, 0.08, 0.04]  # probabilities of 1, 2, 3, 5, 20 and 60 features
LARGEST_EXACT = 10  # clients × features: what the exact recursion for ridge manages


@dataclass(frozen=True, eq=False)
class Case:
    """A problem, a method and batches."""

    seed: int
    problem: Ridge | Logistic
    method: Scaffold | FedAvg
    batches: Batches
    traits: tuple[str, ...]

    def exact(self) -> ExactRidge:
        """The exact moments, of a ridge problem."""
        assert isinstance(self.problem, Ridge)
        scaffold = isinstance(self.method, Scaffold)
        return ExactRidge(
            self.problem, self.method.step_size, int(np.max(self.method.local_steps)), self.batches, scaffold
        )

    def predict(self, rounds: int | None = None) -> fs.theory.Prediction:
        """What theory says."""
        return fs.theory.predict(
            self.problem,
            self.method,
            batch_size=self.batches.size,
            sampling=self.batches.sampling,
            rounds=rounds,
        )


def random_case(kind: str, seed: int) -> Case:
    """The case of a seed, "ridge" or "logistic"."""
    rng = np.random.default_rng([seed, kind == "ridge"])
    N, d = int(rng.choice([1, 2, 3, 5, 12])), int(rng.choice([1, 2, 3, 5, 20, 60], p=MANY_FEATURES))
    if kind == "ridge":
        d = min(d, 5)
        while N * d > LARGEST_EXACT:
            N, d = int(rng.choice([1, 2, 3, 5])), int(rng.choice([1, 2, 3, 5]))
    traits = []
    few = rng.random() < 0.4
    sizes = rng.integers(2, 6, size=N) if few else rng.integers(10, 60, size=N)
    heavy = rng.random() < 0.3
    spread = 10.0 ** (-rng.choice([0.0, 0.0, 1.0, 2.5]) * np.linspace(0.0, 1.0, d))
    if kind == "ridge" and rng.random() < 0.15:
        spread = 10.0 ** (-5.0 * np.linspace(0.0, 1.0, d))  # curvatures from 1 to 1e-10
        traits.append("ill_conditioned")
    X, y = [], []
    own = rng.normal(size=d)
    separable = kind == "logistic" and rng.random() < 0.25
    for n in sizes:
        x = rng.standard_t(2.5, size=(n, d)) if heavy else rng.normal(size=(n, d))
        x = (x * rng.uniform(0.5, 2.0) + 0.5 * rng.normal(size=d)) * spread
        z = x @ ((own + 0.5 * rng.normal(size=d)) / spread) + (0.0 if separable else 1.0) * rng.normal(size=n)
        X.append(x)
        y.append(z if kind == "ridge" else np.where(z > 0, 1.0, -1.0))
    weights = None
    if N > 1 and rng.random() < 0.3:
        weights = np.full(N, 0.1 / (N - 1))
        weights[0] = 0.9
        traits.append("weight_0.9")
    l2 = float(rng.choice([1e-6, 1e-3, 0.05, 0.3]) if kind == "ridge" else rng.choice([1e-2, 0.05, 0.3]))
    problem: Ridge | Logistic = (Ridge if kind == "ridge" else Logistic)(X, y, l2=l2, weights=weights)
    smallest = int(sizes.min())
    batches = [
        Batches(1),
        Batches(1),
        Batches(1),
        Batches(min(4, smallest)),
        Batches(smallest, "without_replacement"),
    ]
    chosen = batches[int(rng.integers(5))]
    H = int(rng.choice([1, 2, 5, 10, 50, 100, 2000], p=[0.15, 0.1, 0.15, 0.25, 0.15, 0.15, 0.05]))
    method = Scaffold if rng.random() < 0.75 else FedAvg
    share = float(rng.choice([0.1, 0.3, 0.6, 0.95]))
    gamma = share * largest_step_size(problem, method, H, chosen)
    traits += [name for name, has in (("few", few), ("heavy", heavy), ("separable", separable)) if has]
    return Case(seed, problem, method(step_size=gamma, local_steps=H), chosen, tuple(traits))


def largest_step_size(
    problem: Ridge | Logistic, method: type[Scaffold] | type[FedAvg], H: int, batches: Batches
) -> float:
    """The largest γ with a plateau, exactly for ridge; 2/L for logistic regression, where there is always one."""
    top = 2.0 / problem.smoothness(Batches(None))
    if not isinstance(problem, Ridge):
        return top

    def grows(gamma: float) -> bool:
        radius = ExactRidge(problem, gamma, H, batches, method is Scaffold).radius()
        return not radius < 1.0

    low, high = 0.0, top
    while not grows(high):
        low, high = high, 2.0 * high
    for _ in range(12):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if grows(middle) else (middle, high)
    return low

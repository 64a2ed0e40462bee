"""The problems that statements are checked on, with γ and H inside their conditions, and how much to simulate."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation import Trace
from fedscaffold.simulation.run_method import run
from fedscaffold.theory import Constants, constants
from fedscaffold.theory.bounds import Proof, ScaffoldBounds

Kind = Literal["ridge", "logistic"]
KINDS: tuple[Kind, Kind] = ("ridge", "logistic")
RECORDS, BATCH = 12, 4  # few records of a client and small batches, so that gradients are noisy
INSIDE = 0.99  # of the largest step size that a condition allows


@dataclass(frozen=True)
class Budget:
    """The amount of simulation; more repetitions give smaller standard errors."""

    samples: int = 200  # random points at which an assumption is checked
    repetitions: int = 400  # runs from a given start
    chains: int = 10_000  # stationary ones
    rounds: int = 600  # in which the covariances of chains are taken
    paper_clients: tuple[int, ...] = (10,)  # of the paper's experiment, against the predictor
    paper_repetitions: int = 40  # there, for ten clients; fewer for more
    paper_rounds: int = 400
    curve_repetitions: int = 1000  # runs from zero there, of thirty rounds
    figure_clients: tuple[int, ...] = (10, 50, 200)
    figure_draws: int = 1  # of its regression data; many take seconds each
    speed_up_repetitions: int = 200  # runs for Table 1
    loosen: float = 1.0  # factor on all tolerances


DEFAULT = Budget()
FULL = Budget(
    samples=2000, repetitions=2000, chains=20_000, rounds=2000, paper_clients=(10, 100, 1000),
    paper_repetitions=100, curve_repetitions=4000, figure_clients=(10, 100, 1000, 10_000),
    figure_draws=20,
    speed_up_repetitions=1000,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A problem, a method with its γ and H, a batch size, and the problem's constants."""

    problem: Ridge | Logistic
    method: Scaffold
    batch_size: int
    constants: Constants

    @property
    def text(self) -> str:
        """The setting in words: problem, γ, H, B and N."""
        m = self.method
        return describe(self.problem, m.step_size, m.uniform_local_steps, self.batch_size)

    @property
    def bounds(self) -> ScaffoldBounds:
        """Section 4's bounds with this case's constants, γ, H and N."""
        return self.bounds_by("sharp")

    def bounds_by(self, proof: Proof) -> ScaffoldBounds:
        """Return Section 4's bounds by one of the two proofs of the linear speed-up."""
        gamma, H = self.method.step_size, self.method.uniform_local_steps
        return ScaffoldBounds(
            self.constants, step_size=gamma, local_steps=H, n_clients=self.problem.n_clients, proof=proof
        )

    def run(self, **more: Any) -> Trace:
        """Run this case's problem, method and batch size."""
        return run(self.problem, self.method, batch_size=self.batch_size, progress=False, **more)

    @property
    def ideal(self) -> Array:
        """ξ*_c = −∇f_c(θ*), with a sum of zero."""
        xi = -self.problem.client_gradients(self.problem.optimum())
        return np.asarray(xi - xi.mean(axis=0))

    @property
    def hessians(self) -> Array:
        """∇²f_c(θ*), (N, d, d)."""
        return self.problem.client_hessians(self.problem.optimum())

    @property
    def powers(self) -> Array:
        """Γ_c^h = (I − γ∇²f_c(θ*))^h for h = 0, ..., H, (H + 1, N, d, d)."""
        steps = np.eye(self.problem.dim) - self.method.step_size * self.hessians
        return np.stack([np.linalg.matrix_power(steps, h) for h in range(self.method.uniform_local_steps + 1)])

    @property
    def initial_distance2(self) -> float:
        """The bound on ‖X⁰ − X*‖²_Λ for θ⁰ = 0."""
        optimum = self.problem.optimum()
        return self.bounds.initial_distance2(squared_error=float(optimum @ optimum))

    @property
    def relaxation(self) -> float:
        """Rounds in which the slowest direction shrinks e times."""
        slowest = float(np.linalg.eigvalsh(self.problem.hessian(self.problem.optimum()))[0])
        return 1.0 / (self.method.step_size * self.method.uniform_local_steps * slowest)


def describe(problem: Ridge | Logistic, gamma: float, H: int, B: int) -> str:
    """Return problem, γ, H, B, N in one line."""
    return f"{problem.kind}, γ = {gamma:.3g}, H = {H}, B = {B}, N = {problem.n_clients}"


@dataclass(frozen=True)
class Spread:
    """Differences of clients: least and largest scale of their features, distance of their centres, penalty."""

    least: float = 0.6
    largest: float = 1.4
    centres: float = 0.7
    l2: float = 0.5


MODERATE: dict[Kind, Spread] = {"ridge": Spread(), "logistic": Spread(l2=1.0)}
WIDE: dict[Kind, Spread] = {"ridge": Spread(), "logistic": Spread(0.5, 2.0, 1.5, 0.3)}


def make(
    kind: Kind, n_clients: int, dim: int, spread: Spread, *, copies: int = 1, seed: int = 0
) -> Ridge | Logistic:
    """Build clients with 12 records and different true models.

    `copies` repeats all clients, which leaves f and the mean covariance of the noise as they are.
    """
    rng = np.random.default_rng(seed)
    scale = np.linspace(spread.least, spread.largest, n_clients)[:, None, None]
    x = rng.normal(size=(n_clients, RECORDS, dim)) * scale
    x = (x + spread.centres * rng.normal(size=(n_clients, 1, dim))) / np.sqrt(dim)
    y = np.einsum("cnd,cd->cn", x, 1.0 + rng.normal(size=(n_clients, dim))) + rng.normal(size=(n_clients, RECORDS))
    x, y = np.concatenate([x] * copies), np.concatenate([y] * copies)
    return Ridge(x, y, l2=spread.l2) if kind == "ridge" else Logistic(x, np.sign(y), l2=spread.l2)


def case(problem: Ridge | Logistic, *, parts: int, H: int, batch_size: int = BATCH) -> Case:
    """Take γH(L + μ) a little below 1/parts; with 48 parts and Q > 0 the L of every record, for Theorem 4.8."""
    known = constants(problem, batch_size=batch_size)
    L = known.L_record if parts == 48 and known.Q > 0 else known.L
    gamma = INSIDE / (parts * H * (L + known.mu))
    return Case(problem, Scaffold(step_size=gamma, local_steps=H), batch_size, known)


def crude(kind: Kind) -> Case:
    """Return the setting of Lemma 4.1 to Corollary 4.5."""
    return case(make(kind, 4, 3, MODERATE[kind]), parts=1, H=5)


def strict(kind: Kind) -> Case:
    """Return the setting of Lemma 4.6 to Theorem 5.3."""
    return case(make(kind, 3, 2, WIDE[kind]), parts=48, H=2)

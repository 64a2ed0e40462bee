"""First-order models of error curves: the mean of the quadratic model at θ*, and Lemma 5.1's covariance.

With λ_i and u_i the eigenvalues and eigenvectors of ∇²f(θ*) and C̄ = Σ w_c² C_c(θ*),

    E‖θ_t − θ*‖² ≈ ‖m_t‖² + Σ_i γ u_iᵀC̄u_i / (λ_i(2 − γλ_i)),

where m_t is the path without noise if each f_c is replaced by its quadratic model at θ*, and the sum is the first
order of the covariance. It takes a fraction of a second with hundreds of features, and no runs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from fedscaffold.core.capabilities import HasNoiseAlong
from fedscaffold.core.errors import NoPlateau
from fedscaffold.core.machine import grouped
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array, evenly_spaced_clients
from fedscaffold.methods import FedAvg
from fedscaffold.theory.exact.local_steps import Powers, mean_path
from fedscaffold.theory.expansion import FirstOrderLaw

SHARES = (0.3, 0.5, 0.7)  # of an aim, which are tried for the variance
LARGEST = 1_000_000  # numbers in all clients' Hessians, 8 MB: of more clients a sample is taken


@dataclass(frozen=True, eq=False)
class FirstOrderModel:
    """Clients at θ*, all of them or evenly spaced ones if they are many, and the first order of the variance."""

    weights: Array  # (n,)
    curvatures: Array  # eigenvalues of ∇²f_c(θ*), (n, d)
    U: Array  # their eigenvectors, (n, d, d)
    slopes: Array  # ∇f_c(θ*) less their mean, (n, d)
    optimum: Array  # (d,)
    lam: Array  # eigenvalues of ∇²f(θ*), without flat directions
    noise: Array  # uᵢᵀC̄uᵢ along their eigenvectors
    largest: float  # 1/L, the largest step size that is considered

    @classmethod
    def of(cls, problem: HasNoiseAlong, batches: Batches, optimum: Array) -> "FirstOrderModel":
        """Build the model of a problem; the Hessians of a sample are read a few clients at a time."""
        most, weights, chosen = max(2, LARGEST // problem.dim**2), problem.weights, [problem]
        if problem.n_clients > most:
            some = evenly_spaced_clients(problem.n_clients, most)
            groups = grouped(problem.sizes[some] * problem.dim, LARGEST)
            weights, chosen = weights[some] / weights[some].sum(), [problem.subset(some[a:b]) for a, b in groups]
        curvatures, V = np.linalg.eigh(np.concatenate([one.client_hessians(optimum) for one in chosen]))
        slopes = np.concatenate([one.client_gradients(optimum) for one in chosen])
        lam, U = np.linalg.eigh(problem.hessian(optimum))
        lam, U = lam[lam > 1e-12 * lam[-1]], U[:, lam > 1e-12 * lam[-1]]
        each = problem.client_noise_along(optimum, U, batch_size=batches.size, sampling=batches.sampling)
        noise, largest = problem.weights**2 @ each, 1.0 / problem.smoothness(batches)
        return cls(weights, curvatures, V, slopes - weights @ slopes, optimum, lam, noise, largest)

    def squares(self, gamma: float, H: int, *, corrected: bool = True) -> Iterator[float]:
        """Yield ‖m_t‖² for t = 0, 1, ..., from θ = 0 and ξ = 0; FedAvg (corrected=False) leaves ξ_c as it is."""
        own = Powers.of(self.U, self.curvatures, gamma, H)
        path = mean_path(own, self.weights, self.slopes, -self.optimum, gamma, H, scaffold=corrected)
        return (float(m @ m) for m, _ in path)

    def variance(self, gamma: float) -> float:
        """Return the trace of the first-order covariance."""
        return float((gamma * self.noise / (self.lam * (2.0 - gamma * self.lam))).sum())

    def step_size(self, most: float) -> float:
        """Return about the largest γ ≤ 1/L with at most this variance."""
        gamma = self.largest
        while self.variance(gamma) > most:
            gamma *= max(0.1, 0.95 * most / self.variance(gamma))
        return gamma

    @np.errstate(over="ignore", invalid="ignore")
    def rounds(self, aim: float, gamma: float, H: int, most: float = math.inf) -> float:
        """Return how many rounds reach an aim, at most `most`; without a limit, extrapolated from 100 on."""
        left, squares = aim - self.variance(gamma), list[float]()
        for t, square in enumerate(self.squares(gamma, H)):
            squares.append(square)
            if square <= left:
                return max(1.0, t)
            if t >= most or not square < 1e6 * squares[0]:
                break
            if t == 100:
                falls = square < squares[50] and left > 0.0
                slope = math.log(squares[50] / square) / 50.0 if falls else 0.0
                about = 100.0 + math.log(square / left) / slope if falls else math.inf
                if most == math.inf or about > 2 * most:
                    return about
        return math.inf

    def fewest_rounds(self, aim: float, H: int) -> float:
        """Return about how many rounds of H local steps reach an aim, with a step size that fits it."""
        return min(self.rounds(aim, self.step_size(share * aim), H) for share in SHARES)

    def propose(
        self, aim: float, *, most_local_steps: int, most_rounds: int, cost: Callable[[float, int], float]
    ) -> tuple[float, int, int] | None:
        """Return γ, H and T of about the least cost that reach an aim, or None within these limits.

        Some share of the aim is left to the variance, which gives γ; the rest is left to the mean. H is a power of
        two, or the limit.
        """
        best: tuple[float, int, int] | None = None
        ladder = [2**k for k in range(31) if 2**k < most_local_steps] + [most_local_steps]
        for gamma in (self.step_size(share * aim) for share in SHARES):
            dearer = 0
            for H in reversed(ladder):  # long rounds first: their paths are the shortest
                lowest = math.inf if best is None else cost(best[2], best[1])
                T = self.rounds(aim, gamma, H, min(most_rounds, lowest / cost(1, H)))
                if most_rounds >= T and cost(math.ceil(T), H) < lowest:
                    best, dearer = (gamma, H, math.ceil(T)), 0
                elif best is not None and best[1] >= H:
                    dearer += 1
                if dearer == 3:
                    break
        return best

    def curve(self, gamma: float, H: int, rounds: int) -> Array:
        """Return the error of every round, (rounds + 1,)."""
        squares = islice(self.squares(gamma, H), rounds + 1)
        return np.fromiter(squares, float) + self.variance(gamma)


@np.errstate(over="ignore", invalid="ignore")
def first_order_curve(problem: Any, method: Method, batches: Batches, law: FirstOrderLaw, rounds: int) -> Array:
    """Return the first-order errors of Scaffold or FedAvg from θ_0 = 0, (rounds + 1,); NoPlateau if they grow."""
    H = int(method.local_step_counts(problem.n_clients, np.full(1, 0.5)).max())
    model, scaffold = FirstOrderModel.of(problem, batches, problem.optimum()), not isinstance(method, FedAvg)
    squares = np.fromiter(islice(model.squares(method.step_size, H, corrected=scaffold), rounds + 1), float)
    if not squares[-1] < 1e6 * (1.0 + squares[0]):
        raise NoPlateau(f"a round does not contract with step_size={method.step_size:g}; take a smaller one")
    return squares + law.variance * (1.0 - law.rate ** (2.0 * np.arange(rounds + 1)))

"""The average of the iterates, θ̄ = mean of θ_t over rounds after < t ≤ T: its covariance, bias and best tail.

Stationary models have Cov(θ_{t+k}, θ_t) = A^k P, A the map of the mean, so that T Cov θ̄ → P + 2 sym A(I − A)⁻¹P.
With D_c = (1/H) Σ_{h<H} Γ_c^h, Ḡ = Σ w_c G_c and Q_c the noise that client c gathers in a round, for Scaffold

    T Cov θ̄ → Ḡ⁻¹ [ Σ_c w_c² D_c⁻¹ (Q_c/H²) D_c⁻¹ ] Ḡ⁻¹,

because in an average over rounds γHξ_c's changes cancel, and Σ_c w_c (D_c⁻¹ times what a client adds) is left.
"""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from fedscaffold.core.capabilities import SmoothProblem
from fedscaffold.core.checks import whole_number
from fedscaffold.core.display.summaries import Summarised
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.family.family_setting import FamilySetting, family_setting
from fedscaffold.theory.prediction.family.stationary_law import StationaryLaw, laws_of_rounds, stationary_law
from fedscaffold.theory.prediction.plateau import PlateauState
from fedscaffold.theory.prediction.setting import Setting, setting
from fedscaffold.theory.prediction.stationary import solve_stationary


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AveragePrediction(Summarised):
    """What the average of the iterates of rounds after + 1, ..., rounds is predicted to reach.

    Attributes
    ----------
    rounds, after
        T, and how many first rounds are left out.
    cov
        Cov θ̄, (d, d).
    mean_error
        E θ̄ − θ*, (d,): the bias of the plateau, and what is left of the start.
    bias
        E θ − θ* on the plateau, (d,), which averaging does not remove.
    long_run_cov
        The limit of T Cov θ̄, (d, d).

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=6, dim=3)
    >>> method = fs.Scaffold(step_size=0.1, local_steps=10)
    >>> found = fs.theory.predict_average(problem, method, batch_size=4, rounds=200)
    >>> found.mse < fs.theory.predict(problem, method, batch_size=4).mse / 10
    True
    """

    rounds: int
    after: int
    cov: Array
    mean_error: Array
    bias: Array
    long_run_cov: Array

    @property
    def mse(self) -> float:
        """Expected squared error of the average, E‖θ̄ − θ*‖²."""
        return float(np.trace(self.cov) + self.mean_error @ self.mean_error)

    def extrapolated(self, coarse: "AveragePrediction") -> float:
        """E‖2θ̄(γ, H) − θ̄(2γ, H/2) − θ*‖²: Richardson–Romberg's error, for runs that draw records of their own.

        Parameters
        ----------
        coarse
            The prediction for twice the step size and, for Scaffold, half the local steps.
        """
        error = 2.0 * self.mean_error - coarse.mean_error
        return float(np.trace(4.0 * self.cov + coarse.cov) + error @ error)

    def _facts(self) -> dict[str, object]:
        return {"mse": f"{self.mse:.4g}", "rounds": self.rounds, "after": self.after}

    def _title(self) -> str:
        return "Prediction of the average"


@one_blas_thread
def predict_average(
    problem: SmoothProblem,
    method: Method,
    *,
    batch_size: int | None,
    rounds: int,
    after: int | None = None,
    sampling: Sampling = "with_replacement",
) -> AveragePrediction:
    """E‖θ̄ − θ*‖² of the average of θ_t over after < t ≤ T, from θ_0 = 0: its covariance and its mean.

    The mean follows its path exactly for ridge; the covariance is that of the stationary law.

    Parameters
    ----------
    problem, method, batch_size, sampling
        As in `predict`, of up to 600 numbers in all clients' models together.
    rounds
        T.
    after
        How many first rounds are left out; by default as many as make the error least.

    Examples
    --------
    The more rounds, the smaller the share of them that is best left out:

    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=6, dim=3)
    >>> method = fs.Scaffold(step_size=0.02, local_steps=5)
    >>> few, many = (fs.theory.predict_average(problem, method, batch_size=4, rounds=T) for T in (50, 500))
    >>> few.after / 50 > many.after / 500
    True
    """
    T = whole_number("rounds", rounds, least=1)
    s = family_setting(problem, method, Batches(batch_size, sampling))
    if after is not None and whole_number("after", after, least=0) >= T:
        raise InvalidInput(f"after={after} leaves nothing of rounds={T} to average")
    law = stationary_law(s)
    path = mean_path(s, T)
    tails = range(T) if after is None else [after]
    best = min(tails, key=lambda a: _error(s, law, path, a, T))
    d = problem.dim
    return AveragePrediction(
        rounds=T,
        after=best,
        cov=average_covariance(s, law, T - best),
        mean_error=path[best + 1 :].mean(axis=0),
        bias=law.mean[:d],
        long_run_cov=long_run_covariance(s, law),
    )


def mean_path(s: FamilySetting, rounds: int) -> Array:
    """E θ_t − θ* for t = 0, ..., rounds, (rounds + 1, d)."""
    return np.array([second[0, s.server(0)] for second in islice(laws_of_rounds(s), rounds + 1)])


def _error(s: FamilySetting, law: StationaryLaw, path: Array, after: int, T: int) -> float:
    mean = path[after + 1 :].mean(axis=0)
    return float(np.trace(average_covariance(s, law, T - after)) + mean @ mean)


def average_covariance(s: FamilySetting, law: StationaryLaw, n: int) -> Array:
    """Cov of the mean of n consecutive θ_t: (1/n²) {nP + 2 sym Σ_{k<n} (n − k) A^k P}, in closed form, (d, d)."""
    d, A, P = s.problem.dim, law.mean_map, law.cov
    eye = np.eye(len(A))
    ahead = np.linalg.solve(eye - A, A)  # A (I − A)⁻¹
    left = np.linalg.solve(eye - A, (eye - np.linalg.matrix_power(A, n)) @ ahead)
    total = (n * ahead - left)[:d] @ P[:, :d]
    return (n * P[:d, :d] + total + total.T) / n**2


def long_run_covariance(s: FamilySetting, law: StationaryLaw) -> Array:
    """Lim T Cov θ̄ = P + 2 sym A (I − A)⁻¹ P, (d, d)."""
    d, A = s.problem.dim, law.mean_map
    ahead = np.linalg.solve(np.eye(len(A)) - A, A)[:d] @ law.cov[:, :d]
    return law.cov[:d, :d] + ahead + ahead.T


@one_blas_thread
def scaffold_long_run_covariance(
    problem: SmoothProblem, method: Method, *, batch_size: int | None, sampling: Sampling = "with_replacement"
) -> Array:
    """Ḡ⁻¹ [ Σ w_c² D_c⁻¹ (Q_c/H²) D_c⁻¹ ] Ḡ⁻¹, the limit of T Cov θ̄ of Scaffold's average, (d, d).

    For any number of clients; exact for ridge. Against the best that HT gradients per client could do,
    Ḡ⁻¹C̄Ḡ⁻¹/(HT) with C̄ = Σ w_c² C_c, long rounds lose: for one curvature λ by the factor (x/2) coth(x/2) with
    x = γHλ, for small γ.

    Parameters
    ----------
    problem, method, batch_size, sampling
        As in `predict`; Scaffold with all clients.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=6, dim=3)
    >>> method = fs.Scaffold(step_size=0.1, local_steps=10)
    >>> fs.theory.scaffold_long_run_covariance(problem, method, batch_size=4).shape
    (3, 3)
    """
    s = setting(problem, method, Batches(batch_size, sampling))
    if not s.scaffold:
        raise InvalidInput(f"this is about the average of Scaffold, not of {method.kind}; use predict_average")
    return long_run_of(s, solve_stationary(s))


def long_run_of(s: Setting, state: PlateauState) -> Array:
    """The limit of T Cov θ̄ of Scaffold's average for a stationary law, (d, d)."""
    assert state.system is not None  # of Scaffold
    M, d, _ = state.system.J.shape
    gains = 1.0 / (1.0 - state.system.c)  # of the reduced system for what stays the same from round to round
    middle = np.einsum("a,aibj,b->ij", gains, state.sums.noise.reshape(M, d, M, d), gains)
    inverse = np.asarray(np.linalg.inv(state.sums.curvature), dtype=np.float64)
    return inverse @ middle @ inverse

"""The average of the iterates, θ̄ = mean of θ_t over rounds after < t ≤ T, on quadratic losses.

Stationary models have Cov(θ_{t+k}, θ_t) = A^k P, A the map of the mean, so that T Cov θ̄ → P + 2 sym A(I − A)⁻¹P.
With D_c = (1/H) Σ_{h<H} Γ_c^h, Ḡ = Σ w_c G_c and Q_c the noise that client c gathers in a round, for Scaffold

    T Cov θ̄ → Ḡ⁻¹ [ Σ_c w_c² D_c⁻¹ (Q_c/H²) D_c⁻¹ ] Ḡ⁻¹,

because in an average over rounds γHξ_c's changes cancel, and Σ_c w_c (D_c⁻¹ times what a client adds) is left.
"""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.checks import check_problem_and_method, whole_number
from fedscaffold.core.display import Summarised
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import one_blas_thread
from fedscaffold.core.protocols import Method, Problem
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.theory.exact.dense import LARGEST, Rounds, Stationary, stationary
from fedscaffold.theory.exact.law import dense_rounds, is_exact, many_clients


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AveragePrediction(Summarised):
    """Predicted error of the average of the iterates of rounds after + 1, ..., rounds.

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
        """Return E‖2θ̄(γ, H) − θ̄(2γ, H/2) − θ*‖², the error of Richardson–Romberg on two independent runs.

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
    problem: Problem,
    method: Method,
    *,
    batch_size: int | None,
    rounds: int,
    after: int | None = None,
    sampling: Sampling = "with_replacement",
) -> AveragePrediction:
    """Return E‖θ̄ − θ*‖² of the average of θ_t over after < t ≤ T, from θ_0 = 0: its covariance and its mean.

    The mean follows its path; the covariance is that of the stationary law.

    Parameters
    ----------
    problem
        Ridge regression, linear stochastic approximation or TD learning, with at most 600 numbers in the states of
        all clients.
    method
        A method whose server and clients combine models linearly.
    batch_size
        Records in each stochastic gradient; None for full gradients.
    rounds
        T.
    after
        Number of first rounds that are left out; by default the one with the least error.
    sampling
        "with_replacement" or "without_replacement", within a batch.

    Returns
    -------
    AveragePrediction
        Covariance and mean error of the average.

    Raises
    ------
    InvalidInput
        If the losses are not quadratic, the method is not linear, or there are too many clients.
    NoPlateau
        If the method does not contract.

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
    if after is not None and whole_number("after", after, least=0) >= T:
        raise InvalidInput(f"after={after} leaves nothing of rounds={T} to average")
    r = _rounds(problem, method, Batches(batch_size, sampling))
    law, at = stationary(r), r.server(0)
    z = r.start(np.zeros(problem.dim))
    path, matrix = np.empty((T, problem.dim)), r.mean_map()  # E θ_t − θ* for t = 1, ..., T
    for t in range(T):
        z = matrix @ z
        path[t] = z[at]
    tails = range(T) if after is None else [after]

    def error(a: int) -> float:
        mean = path[a:].mean(axis=0)
        return float(np.trace(average_covariance(r, law, T - a)) + mean @ mean)

    best = min(tails, key=error)
    return AveragePrediction(
        rounds=T,
        after=best,
        cov=average_covariance(r, law, T - best),
        mean_error=path[best:].mean(axis=0),
        bias=law.mean[at],
        long_run_cov=long_run_covariance(r, law),
    )


def _rounds(problem: Problem, method: Method, batches: Batches) -> Rounds:
    """Return the rounds of a method, followed by the second moment of all states."""
    check_problem_and_method(problem, method)
    if not is_exact(problem, method, batches):
        raise InvalidInput(
            "averages are predicted for linear methods on quadratic losses, not for "
            f"{method.kind} on {problem.kind}; simulate with fedscaffold.run and record TailAverage"
        )
    clients = len(method.init_clients(1, np.ones(1), 1, None)) * problem.n_clients * problem.dim
    if clients > LARGEST:
        raise InvalidInput(
            f"averages are predicted for up to {LARGEST} numbers in the clients' states, not {clients:,}; "
            "take a subset of the clients, or simulate with fedscaffold.run"
        )
    return dense_rounds(problem, method, batches)


def average_covariance(r: Rounds, law: Stationary, n: int) -> Array:
    """Return Cov of the mean of n consecutive θ_t: (1/n²) {nP + 2 sym Σ_{k<n} (n − k) A^k P}, (d, d)."""
    at, A, P = r.server(0), law.mean_map, law.cov
    eye = np.eye(len(A))
    ahead = np.linalg.solve(eye - A, A)  # A (I − A)⁻¹
    left = np.linalg.solve(eye - A, (eye - np.linalg.matrix_power(A, n)) @ ahead)
    total = (n * ahead - left)[at] @ P[:, at]
    return np.asarray((n * P[at, at] + total + total.T) / n**2)


def long_run_covariance(r: Rounds, law: Stationary) -> Array:
    """Return the limit of T Cov θ̄ = P + 2 sym A (I − A)⁻¹ P, (d, d)."""
    at, A = r.server(0), law.mean_map
    ahead = np.linalg.solve(np.eye(len(A)) - A, A)[at] @ law.cov[:, at]
    return np.asarray(law.cov[at, at] + ahead + ahead.T)


@one_blas_thread
def scaffold_long_run_covariance(
    problem: Problem, method: Method, *, batch_size: int | None, sampling: Sampling = "with_replacement"
) -> Array:
    """Return Ḡ⁻¹ [ Σ w_c² D_c⁻¹ (Q_c/H²) D_c⁻¹ ] Ḡ⁻¹, the limit of T Cov θ̄ of Scaffold's average, (d, d).

    For any number of clients. Against the best that HT gradients per client could do, Ḡ⁻¹C̄Ḡ⁻¹/(HT) with
    C̄ = Σ w_c² C_c, long rounds lose: for one curvature λ by the factor (x/2) coth(x/2) with x = γHλ, for small γ.

    Parameters
    ----------
    problem
        Ridge regression, on tables or streams.
    method
        Scaffold with all clients and one number of local steps.
    batch_size
        Records in each stochastic gradient; None for full gradients.
    sampling
        "with_replacement" or "without_replacement", within a batch.

    Returns
    -------
    Array
        The matrix, (d, d).

    Raises
    ------
    InvalidInput
        If the problem is not ridge regression, or the method is not Scaffold.
    NoPlateau
        If the method does not contract.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=6, dim=3)
    >>> method = fs.Scaffold(step_size=0.1, local_steps=10)
    >>> fs.theory.scaffold_long_run_covariance(problem, method, batch_size=4).shape
    (3, 3)
    """
    check_problem_and_method(problem, method)
    batches = Batches(batch_size, sampling)
    many = many_clients(problem, method, batches) if is_exact(problem, method, batches) else None
    if many is None or not many.scaffold:
        raise InvalidInput(
            "this limit is known of the average of Scaffold with all clients on ridge regression, not of "
            f"{method.kind} on {problem.kind}; use predict_average"
        )
    Q, own, w = many.plateau()[1].gathered, many.powers, problem.weights
    each = Q / (many.H**2 * own.delta[:, :, None] * own.delta[:, None, :])
    middle = np.einsum("c,cij->ij", w**2, own.U @ each @ np.swapaxes(own.U, 1, 2))
    inverse = np.asarray(np.linalg.inv(np.einsum("c,cij->ij", w, many.q.matrices)), dtype=np.float64)
    return inverse @ middle @ inverse

"""The paper's first-order formulas for Scaffold's stationary law, in small γH."""

from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from fedscaffold.core.capabilities import HasNoiseCovariances, SmoothProblem
from fedscaffold.core.checks import check_problem_and_method
from fedscaffold.core.display import Summarised
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method, Problem
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.core.types import Array


class PlainMethod(NamedTuple):
    """Scaffold or FedAvg with all clients and one number of local steps."""

    scaffold: bool  # whether clients keep control variates
    gamma: float
    H: int


def plain_method(method: Method, n_clients: int) -> PlainMethod | None:
    """Return γ and H of Scaffold, GradientScaffold or FedAvg with all clients and one H; None for others."""
    scaffold = {"scaffold": True, "gradient_scaffold": True, "fedavg": False}.get(method.kind)
    if scaffold is None or method.participants(n_clients) < n_clients:
        return None
    steps = method.local_step_counts(n_clients, np.full(1, 0.5))
    return PlainMethod(scaffold, method.step_size, int(steps[0, 0])) if steps.size == 1 else None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Expansion(Summarised):
    """Lemma 5.1 and Theorem 5.3: leading terms as γ → 0 of the stationary covariances and bias of Scaffold.

    The remainders are O(γ²H + γ^{3/2}) for `cov_theta`, `cov_theta_xi`, `bias` and `bias_xi`, and O(γ) for
    `cov_xi`. With weights w_c the paper's means become sums with w_c, and C̄/N becomes Σ w_c² C_c.

    Attributes
    ----------
    step_size, local_steps
        γ and H.
    weights
        w_c, (N,).
    cov_theta
        Cov θ, (d, d).
    bias
        E θ − θ*, (d,).
    hessian, client_hessians
        ∇²f(θ*), (d, d), and ∇²f_c(θ*), (N, d, d).
    noise, mean_noise
        C_c(θ*), (N, d, d), and Σ w_c² C_c(θ*), (d, d), with C_c the covariance of a stochastic gradient.
    curvature_pull
        ½ ∇³f_c(θ*)[Cov θ], (N, d).

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("classification", n_clients=4)
    >>> found = fs.theory.expansion(problem, fs.Scaffold(step_size=0.01, local_steps=5), batch_size=10)
    >>> found.cov_xi(0, 1).shape == found.cov_theta.shape == (problem.dim, problem.dim)
    True
    """

    step_size: float
    local_steps: int
    weights: Array
    cov_theta: Array
    bias: Array
    hessian: Array
    client_hessians: Array
    noise: Array
    mean_noise: Array
    curvature_pull: Array

    def cov_theta_xi(self, client: int) -> Array:
        """Cov(θ, ξ_c) = −Cov θ (∇²f_c − ∇²f) + γ (w_c C_c − Σ w_i² C_i).  Lemma 5.1, an expansion.

        The paper prints + before its first term. With its own update θ_c ← θ_c − γ(g_c + ξ_c) it is −.
        """
        c = self._client(client)
        own = self.weights[c] * self.noise[c] - self.mean_noise
        return -self.cov_theta @ (self.client_hessians[c] - self.hessian) + self.step_size * own

    def cov_xi(self, client: int, other: int) -> Array:
        """Cov(ξ_c, ξ_c') = (1/H) (1[c = c'] C_c − w_c C_c − w_c' C_c' + Σ w_i² C_i).  Lemma 5.1, an expansion."""
        c, i = self._client(client), self._client(other)
        shared = self.mean_noise - self.weights[c] * self.noise[c] - self.weights[i] * self.noise[i]
        return (shared + (self.noise[c] if c == i else 0.0)) / self.local_steps

    def bias_xi(self, client: int) -> Array:
        """E ξ_c − ξ*_c = −(∇²f_c − ∇²f) b − ½ (∇³f_c − ∇³f)[Cov θ].  An expansion.

        The paper's lemma on the bias of control variates has the first term, with the sign slip of
        Lemma 5.1; the second is of the same order and hides in the lemma's remainder O(γ).
        """
        c = self._client(client)
        pull = self.curvature_pull[c] - self.weights @ self.curvature_pull
        return -(self.client_hessians[c] - self.hessian) @ self.bias - pull

    def _facts(self) -> dict[str, object]:
        return {
            "step_size": f"{self.step_size:.4g}",
            "local_steps": self.local_steps,
            "clients": self.weights.size,
            "trace of Cov θ": f"{np.trace(self.cov_theta):.4g}",
            "squared bias": f"{self.bias @ self.bias:.4g}",
        }

    def _title(self) -> str:
        return "Expansion of Scaffold's stationary law"

    def _client(self, client: int) -> int:
        if not 0 <= client < self.weights.size:
            raise InvalidInput(f"client must be between 0 and {self.weights.size - 1}, got {client}")
        return int(client)


def expansion(
    problem: Any, method: Method, *, batch_size: int | None, sampling: Sampling = "with_replacement"
) -> Expansion:
    """Cov θ = (γ/N) 𝐀C̄, b = −(γ/2N) ∇²f⁻¹ ∇³f[𝐀C̄], where 𝐀C solves ∇²f X + X ∇²f = C.

    Lemma 5.1 and Theorem 5.3 of "Scaffold with Stochastic Gradients: New Analysis with Linear Speed-Up"
    (Mangold, Durmus, Dieuleveut, Moulines, ICML 2025). An expansion, exact in the limit γ → 0 with γH → 0;
    away from it use `predict`.

    Parameters
    ----------
    problem
        Ridge or logistic regression.
    method
        Scaffold.
    batch_size
        Records in each stochastic gradient; None for full gradients.
    sampling
        "with_replacement" or "without_replacement", within a batch.

    Examples
    --------
    For small γH the expansion is what `predict` gives:

    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.Scaffold(step_size=1e-4, local_steps=2)
    >>> first, sharp = (f(problem, method, batch_size=10) for f in (fs.theory.expansion, fs.theory.predict))
    >>> bool(abs(first.cov_theta.trace() / sharp.cov_theta.trace() - 1) < 0.01)
    True
    """
    scaffold, gamma, H = _plain(problem, method)
    if not scaffold:
        raise InvalidInput("the expansion is of Scaffold's stationary law; for FedAvg use theory.predict")
    w, theta = problem.weights, problem.optimum()
    Batches(batch_size, sampling).check_fits(problem.sizes)
    noise = problem.client_noise_covariances(theta, batch_size=batch_size, sampling=sampling)
    hessians = problem.client_hessians(theta)
    hessian: Array = np.tensordot(w, hessians, axes=1)
    mean_noise: Array = np.tensordot(w**2, noise, axes=1)
    cov = gamma * solve_anticommutator(hessian, mean_noise)
    pull = 0.5 * problem.client_third_derivatives(theta, cov)
    return Expansion(
        step_size=gamma,
        local_steps=H,
        weights=w,
        cov_theta=cov,
        bias=np.asarray(-np.linalg.solve(hessian, w @ pull), dtype=np.float64),
        hessian=hessian,
        client_hessians=hessians,
        noise=noise,
        mean_noise=mean_noise,
        curvature_pull=pull,
    )


def solve_anticommutator(hessian: Array, right: Array) -> Array:
    """X with ∇²f X + X ∇²f = C: the paper's 𝐀 = (I ⊗ ∇²f + ∇²f ⊗ I)⁻¹ applied to C."""
    lam, u = np.linalg.eigh(hessian)
    return u @ ((u.T @ right @ u) / (lam[:, None] + lam[None, :])) @ u.T


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstOrderLaw:
    """Leading terms as γ → 0 of the stationary law of Scaffold or FedAvg, and how fast the mean gets there."""

    cov_theta: Array  # γ𝐀C̄, Cov θ on the plateau, (d, d)
    bias: Array  # −½ ∇²f⁻¹ ∇³f[Cov θ], and for FedAvg also ½γ(H − 1) ∇²f⁻¹ Σ w_c ∇²f_c ∇f_c, (d,)
    rate: float  # by which a round shrinks the slowest direction of E θ − θ*: max_i |1 − γλ_i|^H, λ_i of ∇²f
    largest_curvature: float  # the largest λ_i

    @property
    def variance(self) -> float:
        """Tr Cov θ, which falls as 1/N."""
        return float(np.trace(self.cov_theta))

    @property
    def mse(self) -> float:
        """E‖θ − θ*‖² on the plateau."""
        return self.variance + float(self.bias @ self.bias)


def first_order_law(problem: SmoothProblem, method: Method, batches: Batches) -> FirstOrderLaw:
    """Return the first-order law of Scaffold or FedAvg with all clients and one number of local steps.

    The first call for a problem and batches reads the records; later ones, with any γ and H, take microseconds.

    Raises
    ------
    InvalidInput
        If the problem lacks derivatives, or the method is another one.
    """
    scaffold, gamma, H = _plain(problem, method)
    known = _known.setdefault(problem, {})
    if batches not in known:
        known[batches] = _terms(problem, batches)
    terms = known[batches]
    bias = gamma * terms.bias
    if not scaffold:
        bias = bias + gamma * (H - 1) * terms.drift
    return FirstOrderLaw(
        cov_theta=gamma * terms.cov, bias=bias, rate=float(np.abs(1.0 - gamma * terms.lam).max()) ** H,
        largest_curvature=float(terms.lam[-1]),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Terms:
    """The coefficients of γ, and of γ(H − 1), in the first-order law of a problem and batches."""

    lam: Array  # eigenvalues of ∇²f(θ*), (d,)
    cov: Array  # 𝐀C̄, (d, d)
    bias: Array  # −½ ∇²f⁻¹ ∇³f[𝐀C̄], (d,)
    drift: Array  # ½ ∇²f⁻¹ Σ w_c ∇²f_c ∇f_c, (d,)


_known: "WeakKeyDictionary[SmoothProblem, dict[Batches, _Terms]]" = WeakKeyDictionary()


def _plain(problem: Problem, method: Method) -> PlainMethod:
    """Return γ and H, and check that the problem has derivatives."""
    check_problem_and_method(problem, method)
    if not isinstance(problem, HasNoiseCovariances):
        raise InvalidInput(
            "first-order laws need client_noise_covariances and client_third_derivatives, which "
            f"{problem.kind} lacks; use theory.predict"
        )
    found = plain_method(method, problem.n_clients)
    if found is None:
        raise InvalidInput(
            f"first-order laws are known of Scaffold and FedAvg, not of {method.kind}, with all clients and the "
            "same number of local steps on each; use theory.predict"
        )
    return found


def _terms(problem: Any, batches: Batches) -> _Terms:
    batches.check_fits(problem.sizes)
    d, w, theta = problem.dim, problem.weights, problem.optimum()
    hessian, noise, drift = np.zeros((d, d)), np.zeros((d, d)), np.zeros(d)
    at_once = max(1, 4_000_000 // d**2)  # clients whose matrices take 32 MB
    for begin in range(0, problem.n_clients, at_once):
        some = np.arange(begin, min(begin + at_once, problem.n_clients))
        part: Any = problem if some.size == problem.n_clients else problem.subset(some)
        own = part.client_hessians(theta)
        hessian += np.tensordot(w[some], own, axes=1)
        drift += w[some] @ np.einsum("cij,cj->ci", own, part.client_gradients(theta))
        each = part.client_noise_covariances(theta, batch_size=batches.size, sampling=batches.sampling)
        noise += np.tensordot(w[some] ** 2, each, axes=1)
    cov = solve_anticommutator(hessian, noise)
    pull = w @ problem.client_third_derivatives(theta, cov)
    bias, drifted = np.linalg.solve(hessian, np.stack([-0.5 * pull, 0.5 * drift], axis=1)).T
    return _Terms(np.asarray(np.linalg.eigvalsh(hessian), np.float64), cov, bias, drifted)

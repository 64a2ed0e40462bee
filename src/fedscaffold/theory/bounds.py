"""Section 4 of the paper with explicit constants: upper bounds, and the conditions under which they are proved.

‖X‖²_Λ = ‖θ‖² + γ²H² Σ_c w_c ‖ξ_c‖² measures the state X = (θ, ξ_1, ..., ξ_N); X* = (θ*, −∇f_c(θ*)). The paper has
clients of equal weight; its proofs bound each client and take means, so that any weights will do, and 1/N, the
variance of the mean of N independent vectors, becomes Σ w_c². They need smoothness only as
E‖g_c(θ) − g_c(θ')‖² ≤ L⟨∇f_c(θ) − ∇f_c(θ'), θ − θ'⟩, so L is `Constants.L`.

If the text of "Scaffold with Stochastic Gradients: New Analysis with Linear Speed-Up" and its proofs differ, the
bounds follow the proofs; the page "Errata" lists the differences, "Convergence and bounds" all formulas.
"""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedscaffold.core.checks import given, not_negative, positive, whole_number
from fedscaffold.core.display import Summarised, html_summary, text_summary
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.theory.problem_constants import Constants
from fedscaffold.theory.problem_constants import constants as constants_of

__all__ = ["Bound", "Complexity", "Condition", "CovarianceSystem", "ScaffoldBounds", "complexity"]

Proof = Literal["sharp", "paper"]
Order = Literal[2, 4, 6]
Remainders = tuple[float, float, float]
BELOW = 1.0 - 1e-9  # keeps rounding from missing a limit that is met exactly
# by order q: multiples of γσ*²/μ for E^{2/q} of ‖X − X*‖^q_Λ and of ‖θ_c^h − θ*‖^q, rounded up from the proof's
MOMENTS: dict[int, tuple[float, float]] = {2: (0.6, 1.3), 4: (2.5, 5.6), 6: (6.5, 15.0)}


@dataclass(frozen=True, repr=False)
class Condition:
    """An inequality value ≤ limit that a statement needs.

    Attributes
    ----------
    name
        The inequality in the paper's symbols.
    value, limit
        Its two sides.
    satisfied
        Whether value ≤ limit.
    missed_by
        value/limit, at most 1 if the condition is satisfied.

    Examples
    --------
    >>> from fedscaffold.theory.bounds import Condition
    >>> Condition("γ ≤ 1/(2L)", 0.5, 0.25)
    Condition(γ ≤ 1/(2L): 0.5 > 0.25, missed by a factor 2)
    """

    name: str
    value: float
    limit: float
    satisfied: bool = field(init=False)
    missed_by: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "satisfied", self.value <= self.limit)
        object.__setattr__(self, "missed_by", self.value / self.limit)

    def __repr__(self) -> str:
        if self.satisfied:
            return f"Condition({self.name}: {self.value:.3g} ≤ {self.limit:.3g})"
        missed = f"missed by a factor {self.missed_by:.3g}"
        return f"Condition({self.name}: {self.value:.3g} > {self.limit:.3g}, {missed})"


@dataclass(frozen=True, repr=False)
class Bound:
    """A number that is proved to be an upper bound if its conditions hold.

    Attributes
    ----------
    value
        The formula's value, whether or not it is proved here.
    holds
        Whether all conditions are satisfied, so that `value` is a bound.
    conditions
        All that the proof needs of γ and H.
    statement
        The paper's statement, such as "Theorem 4.8".

    Examples
    --------
    >>> from fedscaffold.theory.bounds import Bound, Condition
    >>> Bound(0.3, (Condition("γ ≤ 1/(2L)", 0.1, 0.25),), "Lemma 4.1")
    <Bound | statement: Lemma 4.1, value: 0.3, holds: True, conditions satisfied: 1 of 1>
    """

    value: float
    holds: bool = field(init=False)
    conditions: tuple[Condition, ...]
    statement: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", all(condition.satisfied for condition in self.conditions))

    def _facts(self) -> dict[str, object]:
        satisfied = sum(condition.satisfied for condition in self.conditions)
        return {
            "statement": self.statement,
            "value": f"{self.value:.4g}",
            "holds": self.holds,
            "conditions satisfied": f"{satisfied} of {len(self.conditions)}",
        }

    def __repr__(self) -> str:
        return text_summary("Bound", self._facts())

    def _repr_html_(self) -> str:
        sides = {one.name: f"{one.value:.3g}, limit {one.limit:.3g}" for one in self.conditions}
        return html_summary("Bound", {**self._facts(), **sides})


class CovarianceSystem(NamedTuple):
    """Upper bounds on the sizes A, B and C of stationary covariances, each in terms of the others.

    Examples
    --------
    >>> from fedscaffold.theory.bounds import Bound, CovarianceSystem
    >>> a, b, c = (Bound(value, (), "Lemma 4.7") for value in (0.1, 0.2, 0.3))
    >>> CovarianceSystem(theta=a, theta_xi=b, xi=c).xi.value
    0.3
    """

    theta: Bound  # on A, of θ
    theta_xi: Bound  # on B, of θ with ξ_c
    xi: Bound  # on C, of ξ_c with ξ_c'


@dataclass(frozen=True)
class ScaffoldBounds:
    """The paper's bounds for one problem and one setting of Scaffold, a method for each statement.

    Parameters
    ----------
    constants
        Of the problem, from `theory.constants`.
    step_size, local_steps
        γ and H.
    n_clients
        N, with weights that differ as in `constants.design_effect`. Only Theorems 4.8 and 4.9 depend on it.
    proof
        The proof of Theorems 4.8 and 4.9: "sharp" for this library's constants and conditions, by fourth moments,
        or "paper" for the paper's.

    Raises
    ------
    InvalidInput
        If μ = 0, since all statements divide by μ, or if the constants are known at θ* only.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> proved = fs.theory.bounds.ScaffoldBounds(known, step_size=1e-5, local_steps=10, n_clients=4)
    >>> proved.contraction().holds, proved.contraction().value < 1
    (True, True)
    >>> proved.drift(distance2=100.0).value < 100.0
    True
    >>> start = proved.initial_distance2(squared_error=5.0)
    >>> proved.finite_time_mse(rounds=10, initial_distance2=start).statement
    'Theorem 4.9'
    >>> many = fs.theory.bounds.ScaffoldBounds(known, step_size=1e-5, local_steps=10, n_clients=40)
    >>> round(proved.stationary_covariance().value / many.stationary_covariance().value, 6)
    10.0
    """

    constants: Constants
    _: KW_ONLY
    step_size: float
    local_steps: int
    n_clients: int
    proof: Proof = "sharp"

    def __post_init__(self) -> None:
        _check_proof(self.proof)
        positive("step_size", self.step_size)
        whole_number("local_steps", self.local_steps, least=1)
        whole_number("n_clients", self.n_clients, least=1)
        _check_convex(self.constants)

    def initial_distance2(self, *, squared_error: float) -> float:
        """Return ‖X⁰ − X*‖²_Λ = ‖θ⁰ − θ*‖² + γ²H²ζ₁² for control variates that start from zero.

        Exact; `squared_error` is ‖θ⁰ − θ*‖².
        """
        gamma, H, _, _ = self._symbols
        return not_negative("squared_error", squared_error) + (gamma * H * self.constants.zeta1) ** 2

    def contraction(self) -> Bound:
        """Return Lemma 4.1's contraction factor (1 − γμ/4)^H.

        On E‖X⁺ − X'⁺‖²_Λ / ‖X − X'‖²_Λ over one round of two chains that draw the same records.
        """
        gamma, H, mu, _ = self._symbols
        return Bound(_rate(gamma * mu / 4.0, H), (self._small_step(2), self._short_round(1)), "Lemma 4.1")

    def wasserstein_decay(self, *, rounds: int, initial_wasserstein2: float) -> Bound:
        """Return Theorem 4.2's bound (1 − γμ/4)^{HT} W₂²(ρ, π) on W₂²(ρKᵀ, π).

        The squared distance, in the Λ-norm, between the law of the state after T rounds from the law ρ and the
        stationary law π; `initial_wasserstein2` is W₂²(ρ, π), or an upper bound on it.
        """
        factor, T = self.contraction(), whole_number("rounds", rounds, least=0)
        start = not_negative("initial_wasserstein2", initial_wasserstein2)
        return Bound(factor.value**T * start, factor.conditions, "Theorem 4.2")

    def wasserstein_from_start(self, *, rounds: int, initial_distance2: float) -> Bound:
        """Return (1 − γμ/4)^{HT} (‖X⁰ − X*‖_Λ + √(8γσ²/μ))², Theorem 4.2 with Corollary 4.5.

        On W₂² to the stationary law after T rounds from a known X⁰, by the triangle inequality through X*.
        """
        crude, start = self.stationary_mse(), not_negative("initial_distance2", initial_distance2)
        first = (math.sqrt(start) + math.sqrt(crude.value)) ** 2
        decay = self.wasserstein_decay(rounds=rounds, initial_wasserstein2=first)
        return Bound(decay.value, crude.conditions, "Theorem 4.2")

    def drift(self, *, distance2: float) -> Bound:
        """Return Lemma 4.3's bound (1 − γμ/4)^H ‖X − X*‖²_Λ + 2γ²Hσ² on E‖X⁺ − X*‖²_Λ after one round.

        `distance2` is ‖X − X*‖²_Λ at the start of the round. Printed without γ ≤ 1/(4L), which the proof uses. σ²
        is `noise_variance_at_optimum`, not A5's larger σ*²: the proof uses A5 at θ* with p = 1 only.
        """
        gamma, H, mu, _ = self._symbols
        left = _rate(gamma * mu / 4.0, H) * not_negative("distance2", distance2)
        noise = 2.0 * gamma**2 * H * self.constants.noise_variance_at_optimum
        return Bound(left + noise, self._crude_conditions, "Lemma 4.3")

    def crude_mse(self, *, rounds: int, initial_distance2: float) -> Bound:
        """Return Theorem 4.4's bound (1 − γμ/4)^{HT} ‖X⁰ − X*‖²_Λ + 8γσ²/μ on E‖X^T − X*‖²_Λ, so on the MSE.

        σ² as in `drift`. Repeating Lemma 4.3 as it stands gives more than 8; the 8 is right because noise of early
        local steps has shrunk by the end of the round.
        """
        gamma, H, mu, _ = self._symbols
        T = whole_number("rounds", rounds, least=0)
        left = _rate(gamma * mu / 4.0, H * T) * not_negative("initial_distance2", initial_distance2)
        return Bound(left + self._plateau(8.0), self._crude_conditions, "Theorem 4.4")

    def stationary_mse(self) -> Bound:
        """Return Corollary 4.5's bound 8γσ²/μ on E‖X − X*‖²_Λ under the stationary law.

        So on E‖θ − θ*‖², on γ²H² Σ_c w_c E‖ξ_c − ξ*_c‖², and on their sum. σ² as in `drift`.
        """
        return Bound(self._plateau(8.0), self._crude_conditions, "Corollary 4.5")

    def mean_local_iterates(self) -> Bound:
        """Return 16.62γσ²/μ, Corollary 4.5's third line, on Σ_c w_c E‖θ_c^h − θ*‖² for every local step h ≤ H.

        Under the stationary law, σ² as in `drift`. Printed with 8 and γH(L + μ) ≤ 1, which is not proved.
        """
        return Bound(self._plateau(16.62), (self._short_round(12),), "Corollary 4.5")

    def stationary_moment(self, *, order: Order) -> Bound:
        """Return 0.6, 2.5 or 6.5 times γσ*²/μ for q = 2, 4, 6: Corollary 4.5 for E^{2/q}‖X − X*‖^q_Λ.

        Under the stationary law; so on E^{2/q}‖θ − θ*‖^q too. For q = 2 it is sharper than `stationary_mse`.
        """
        return self._moment(order, 0, "Corollary 4.5")

    def local_iterates(self) -> Bound:
        """Return Lemma 4.6's bound 28γσ*²/μ on E‖θ_c^h − θ*‖² for each client c and local step h ≤ H.

        Under the stationary law. Printed without a condition on β, and in the appendix with γβ ≤ L; the constants
        28 and 54 come out with γβ ≤ L/4.
        """
        gamma, _, mu, _ = self._symbols
        sigma2, conditions = self._local_noise()
        return Bound(28.0 * gamma * sigma2 / mu, conditions, "Lemma 4.6")

    def control_variates(self) -> Bound:
        """Return Lemma 4.6's bound 54Lσ*²/(μH) on E‖ξ_c − ξ*_c‖² for each client c.

        Under the stationary law, with the conditions of `local_iterates`.
        """
        _, H, mu, L = self._symbols
        sigma2, conditions = self._local_noise()
        return Bound(54.0 * L * sigma2 / (mu * H), conditions, "Lemma 4.6")

    def local_moment(self, *, order: Order) -> Bound:
        """Return 1.3, 5.6 or 15 times γσ*²/μ for q = 2, 4, 6: Lemma 4.6 for E^{2/q}‖θ_c^h − θ*‖^q, every c and h.

        Under the stationary law. For q = 2 it is sharper than `local_iterates`.
        """
        return self._moment(order, 1, "Lemma 4.6")

    def covariance_system(
        self, *, theta: float, theta_xi: float, xi: float, round_noise: float, remainders: Remainders | None = None
    ) -> CovarianceSystem:
        """Return Lemma 4.7's three bounds on A = ‖Σ^θ‖, B = Σ_c w_c‖Σ^{θ,ξ}_c‖, C = Σ_{c,c'} w_c w_c'‖Σ^ξ_{c,c'}‖.

        A ≤ {γ²H(H−1)L B + ¼γ⁴H²(H−1)²L² C + γ²𝔑s + r₁}/(1 − (1 − γμ)^H), B ≤ 2ζ₂A + 4γ³H(H−1)²L² C + 4γ𝔑s/H + 2r₂
        and C ≤ 2ζ₂²A + 4ζ₂γ(H−1)L B + 9𝔑s/H² + 2r₃ with the appendix's constants and s = Σ w_c², for spectral
        norms of second moments about (θ*, ξ*) in the stationary law.

        Parameters
        ----------
        theta, theta_xi, xi
            A, B and C.
        round_noise
            𝔑 = Σ_c w_c² ‖Σ_h Γ_c^h C_c Γ_c^h‖ / Σ_c w_c², with C_c the noise's stationary mean covariance.
        remainders
            r₁, r₂, r₃: ‖R^θ‖, Σ_c w_c‖R^{θ,ξ}_c‖, Σ_{c,c'} w_c w_c'‖R^ξ_{c,c'}‖ of Lemmas C.3 to C.5; 0 if Q = 0.

        Raises
        ------
        InvalidInput
            If the losses are not quadratic (Q > 0) and no remainders are given.
        """
        (gamma, H, mu, L), round_noise = self._symbols, not_negative("round_noise", round_noise)
        if self.constants.Q > 0 and remainders is None:
            raise InvalidInput("Lemma 4.7 needs remainders if the losses are not quadratic (Q > 0)")
        first, second, third = remainders or (0.0, 0.0, 0.0)
        a, b, c = not_negative("theta", theta), not_negative("theta_xi", theta_xi), not_negative("xi", xi)
        zeta2, reach, noise = self.constants.zeta2, gamma**2 * H * (H - 1) * L, round_noise * self._share
        values = (
            (reach * b + reach**2 / 4.0 * c + gamma**2 * noise + first) / (1.0 - _rate(gamma * mu, H)),
            2 * zeta2 * a + 4 * gamma**3 * H * (H - 1) ** 2 * L**2 * c + 4 * gamma * noise / H + 2 * second,
            2 * zeta2**2 * a + 4 * zeta2 * gamma * (H - 1) * L * b + 9 * noise / H**2 + 2 * third,
        )
        return CovarianceSystem(*(Bound(value, (self._short_round(12),), "Lemma 4.7") for value in values))

    def stationary_covariance(self) -> Bound:
        """Return Theorem 4.8's bound on tr E(θ − θ*)(θ − θ*)ᵀ = E‖θ − θ*‖² under the stationary law.

        "sharp": (√(0.7γσ*²Σw_c²/μ) + 3.4Qγσ*²/μ²)², and at most 0.6γσ*²/μ, by fourth moments. "paper":
        10γσ*²Σw_c²/μ + 6·15080 γ^{3/2}Qσ*³/μ^{5/2} + 48·600² γ³HQ²σ*⁴/μ³, with conditions on `L_record` if Q > 0.
        """
        proof = PROOFS[self.proof]
        sigma2, conditions = proof.noise(self)
        value = proof.stationary(self.constants, self.step_size, self.local_steps, self._share, sigma2)
        return Bound(value, conditions, "Theorem 4.8")

    def finite_time_mse(self, *, rounds: int, initial_distance2: float) -> Bound:
        """Return Theorem 4.9's bound on E‖θ^T − θ*‖² after T rounds from ‖X⁰ − X*‖²_Λ.

        "sharp": ((1 − 7γμ/4)^{HT/2} {‖X⁰ − X*‖_Λ + √(0.6γσ*²/μ)} + √(Theorem 4.8))². "paper": (1 − γμ/4)^{HT}
        {4‖X⁰ − X*‖²_Λ + 64γσ*²/μ} + 2 · Theorem 4.8, which is not the printed statement but what its proof gives.
        """
        gamma, H, mu, _ = self._symbols
        proof, T = PROOFS[self.proof], whole_number("rounds", rounds, least=0)
        distance2 = not_negative("initial_distance2", initial_distance2)
        sigma2, conditions = proof.noise(self)
        shrunk = _rate(proof.contraction * gamma * mu, proof.power * H * T)
        left = shrunk * proof.start(mu, gamma, sigma2, distance2)
        stays = proof.stationary(self.constants, gamma, H, self._share, sigma2)
        return Bound(proof.total(left, stays), conditions, "Theorem 4.9")

    @property
    def _symbols(self) -> tuple[float, int, float, float]:
        return self.step_size, self.local_steps, self.constants.mu, self.constants.L

    @property
    def _share(self) -> float:
        """Σ w_c² of N clients whose weights differ as the weights of the constants' clients do."""
        return self.constants.design_effect / self.n_clients

    @property
    def _crude_conditions(self) -> tuple[Condition, ...]:
        return self._small_step(4), self._short_round(1)

    def _small_step(self, parts: int) -> Condition:
        return Condition(f"γ ≤ 1/({parts}L)", self.step_size, 1.0 / (parts * self.constants.L))

    def _short_round(self, parts: int, *, record: bool = False) -> Condition:
        """Return γH(L + μ) ≤ 1/parts, with the smoothness of single records if `record`."""
        gamma, H, mu, L = self._symbols
        name, L = ("L_record", self.constants.L_record) if record else ("L", L)
        limit = "1" if parts == 1 else f"1/{parts}"
        return Condition(f"γH({name} + μ) ≤ {limit}", gamma * H * (L + mu), 1.0 / parts)

    def _plateau(self, factor: float) -> float:
        return factor * self.step_size * self.constants.noise_variance_at_optimum / self.constants.mu

    def _local_noise(self) -> tuple[float, tuple[Condition, ...]]:
        """Return σ*² for Lemma 4.6, and its conditions."""
        gamma, _, _, L = self._symbols
        sigma2, beta = noise_pair(self.constants, L / (4.0 * gamma))
        return sigma2, (self._short_round(12), Condition("γβ ≤ L/4", gamma * beta, L / 4.0))

    def _moment(self, order: int, which: int, statement: str) -> Bound:
        """Bound a moment by the steps of the sharp proof, docs/explanation/theory/sharp.md."""
        if order not in MOMENTS:
            raise InvalidInput(f"order must be 2, 4 or 6, got {order!r}")
        gamma, _, mu, _ = self._symbols
        sigma2, (_, *conditions) = PROOFS["sharp"].noise(self)  # the first, on ζ₂, is for Theorem 4.8 only
        return Bound(MOMENTS[order][which] * gamma * sigma2 / mu, tuple(conditions), statement)


class BoundCurve(NamedTuple):
    """Theorem 4.9 for t = 0, ..., T, or the condition that is missed by most; neither for other methods."""

    values: Array | None  # (rounds + 1,)
    missed: Condition | None


def bound_curve(problem: Any, method: Any, *, batch_size: int | None, rounds: int) -> BoundCurve:
    """Return Theorem 4.9's bound after every round from θ_0 = 0, for Scaffold with all clients and one H."""
    if not isinstance(method, Scaffold) or not isinstance(method.local_steps, int):
        return BoundCurve(None, None)
    if method.participants(problem.n_clients) < problem.n_clients:
        return BoundCurve(None, None)
    proved = ScaffoldBounds(
        constants_of(problem, batch_size=batch_size),
        step_size=method.step_size, local_steps=method.local_steps, n_clients=problem.n_clients,
    )  # fmt: skip
    optimum = problem.optimum()
    start = proved.initial_distance2(squared_error=float(optimum @ optimum))
    curve = [proved.finite_time_mse(rounds=t, initial_distance2=start) for t in range(rounds + 1)]
    if curve[0].holds:
        return BoundCurve(np.array([bound.value for bound in curve]), None)
    return BoundCurve(None, max(curve[0].conditions, key=lambda condition: condition.missed_by))


@dataclass(frozen=True, kw_only=True, repr=False)
class Complexity(Summarised):
    """A step size, local steps and rounds that are proved to reach a target: the result of `complexity`.

    Attributes
    ----------
    step_size, local_steps, rounds
        γ, H, T.
    gradients_per_client
        HT.
    largest_n_clients
        Up to this N, γ grows as N and so gradients per client fall as 1/N, to within a fifth: the linear speed-up
        is guaranteed. 0 if other conditions than noise limit the step size even for one client.
    bound
        Theorem 4.9 at γ, H, T: at most the target.
    """

    step_size: float
    local_steps: int
    rounds: int
    gradients_per_client: int
    largest_n_clients: int
    bound: Bound

    def _facts(self) -> dict[str, object]:
        return {
            "step_size": f"{self.step_size:.4g}",
            "local_steps": self.local_steps,
            "rounds": self.rounds,
            "proved error": f"{self.bound.value:.4g}",
            "largest_n_clients": self.largest_n_clients,
        }


def complexity(
    constants: Constants, *, target: float, n_clients: int, squared_error: float, proof: Proof = "sharp"
) -> Complexity:
    """Return γ, H, T for which Theorem 4.9 gives E‖θ^T − θ*‖² ≤ target: Corollary 4.10.

    γ ∝ Nμ·target/σ*², γH = min{1/(24(L + μ)), μ/(4Lζ₂)}, T ∝ log(1/target), with the constants' own σ*² and β.
    γ, and so HT, does not depend on ζ₂; the paper's factor min(1, μ/ζ₂) is a slip.

    Parameters
    ----------
    constants
        Of the problem, from `theory.constants`.
    target
        The mean squared error to reach: the paper's ε².
    n_clients
        N, as in `ScaffoldBounds`.
    squared_error
        ‖θ⁰ − θ*‖² of the start; control variates start from zero.
    proof
        As in `ScaffoldBounds`.

    Returns
    -------
    Complexity
        The settings, the bound that they give, and the largest N with a guaranteed linear speed-up.

    Raises
    ------
    InvalidInput
        As in `ScaffoldBounds`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> proved = fs.theory.bounds.complexity(known, target=1.0, n_clients=4, squared_error=10.0)
    >>> proved.bound.holds, proved.bound.value <= 1.0
    (True, True)
    """
    chosen = PROOFS[_check_proof(proof)]
    _check_convex(constants)
    eps2, N = positive("target", target), whole_number("n_clients", n_clients, least=1)
    length = chosen.longest_round(constants)
    gamma, left, largest = chosen.step_size(constants, length, eps2, N)
    H = max(1, math.floor(length / gamma))
    proved = ScaffoldBounds(constants, step_size=gamma, local_steps=H, n_clients=N, proof=proof)
    distance2 = proved.initial_distance2(squared_error=squared_error)
    excess = max(1.0, chosen.start(constants.mu, gamma, constants.sigma_star2, distance2) / left)
    per_round = -chosen.power * H * math.log1p(-chosen.contraction * gamma * constants.mu)
    T = max(1, math.ceil(math.log(excess) / per_round))
    return Complexity(
        step_size=gamma,
        local_steps=H,
        rounds=T,
        gradients_per_client=H * T,
        largest_n_clients=largest,
        bound=proved.finite_time_mse(rounds=T, initial_distance2=distance2),
    )


def noise_pair(constants: Constants, largest_beta: float) -> tuple[float, float]:
    """Return A5's (σ*², β) with the smallest σ*² that has β ≤ largest_beta.

    Bounds grow with σ*², and β enters conditions only, so this is the best of `Constants.noise_bound`'s family. If
    no pair has β this small, return the constants' own fields.
    """
    lipschitz2 = constants.noise_lipschitz2
    if lipschitz2 == 0.0:
        return constants.noise_at_optimum, 0.0
    room = largest_beta * BELOW / lipschitz2 - 1.0
    if room <= 0.0:
        return constants.sigma_star2, constants.beta
    return constants.noise_bound(1.0 / room)


class StepSizes(NamedTuple):
    """γ that a target allows, the start's part of the target as `SpeedUpProof.start` counts it, the largest N."""

    gamma: float
    left: float
    largest_n_clients: int


@dataclass(frozen=True)
class SpeedUpProof:
    """The conditions and the contraction of a proof of the linear speed-up."""

    length: int  # γH(L + μ) ≤ 1/length
    spread: int  # γHLζ₂ ≤ μ/spread
    share_of_noise: int  # γβ ≤ μ/share_of_noise
    contraction: float  # the start's part shrinks by (1 − contraction · γμ)^(power · HT)
    power: float
    stationary_part = 0.8  # of the target, or of its root; the rest is for the start's part

    def noise(self, at: ScaffoldBounds) -> tuple[float, tuple[Condition, ...]]:
        """Return σ*² and the conditions on γ and H."""
        (gamma, H, mu, L), known = at._symbols, at.constants
        sigma2, beta = noise_pair(known, mu / (self.share_of_noise * gamma))
        return sigma2, (
            Condition(f"γHLζ₂ ≤ μ/{self.spread}", gamma * H * L * known.zeta2, mu / self.spread),
            at._short_round(self.length, record=self.needs_records(known)),
            Condition(f"γβ ≤ μ/{self.share_of_noise}", gamma * beta, mu / self.share_of_noise),
        )

    def needs_records(self, constants: Constants) -> bool:
        """Return whether γH is limited by the smoothness of single records."""
        return False

    def longest_round(self, constants: Constants) -> float:
        """Return the largest γH that the conditions allow."""
        smoothness = constants.L_record if self.needs_records(constants) else constants.L
        length = BELOW / (self.length * (smoothness + constants.mu))
        if constants.zeta2 > 0:
            length = min(length, BELOW * constants.mu / (self.spread * constants.L * constants.zeta2))
        return length

    def largest_step(self, constants: Constants, length: float) -> float:
        """Return the largest γ that the conditions allow with γH = length."""
        if constants.beta == 0:
            return length
        return min(length, BELOW * constants.mu / (self.share_of_noise * constants.beta))


@dataclass(frozen=True)
class SharpProof(SpeedUpProof):
    """The proof of docs/explanation/theory/sharp.md, its constants rounded up, as the tests check."""

    linear: float = 0.7
    curved: float = 3.4

    def start(self, mu: float, gamma: float, sigma2: float, distance2: float) -> float:
        """Return ‖X⁰ − X*‖_Λ + √(0.6γσ*²/μ)."""
        return math.sqrt(distance2) + math.sqrt(MOMENTS[2][0] * gamma * sigma2 / mu)

    def total(self, left: float, stationary: float) -> float:
        """Return (left + √stationary)², by the triangle inequality."""
        return (left + math.sqrt(stationary)) ** 2

    def stationary(self, constants: Constants, gamma: float, H: float, share: float, sigma2: float) -> float:
        """Return Theorem 4.8's bound, or the second moment, which N does not divide, if smaller."""
        mu = constants.mu
        root = math.sqrt(self.linear * gamma * sigma2 * share / mu)
        curved = self.curved * constants.Q * gamma * sigma2 / mu**2
        return min((root + curved) ** 2, MOMENTS[2][0] * gamma * sigma2 / mu)

    def step_size(self, constants: Constants, length: float, target: float, n_clients: int) -> StepSizes:
        """Solve curved · γ + linear · √γ = 0.8 √target, or take γ that the second moment allows."""
        mu, sigma2 = constants.mu, constants.sigma_star2
        part = self.stationary_part * math.sqrt(target)
        limit, left = self.largest_step(constants, length), math.sqrt(target) - part
        if sigma2 == 0:
            return StepSizes(limit, left, 0)
        p = math.sqrt(self.linear * sigma2 * constants.design_effect / (n_clients * mu))
        q = self.curved * constants.Q * sigma2 / mu**2
        root = 2.0 * part / (p + math.sqrt(p * p + 4.0 * q * part))
        gamma = BELOW * max(root**2, part**2 * mu / (MOMENTS[2][0] * sigma2))
        one = (
            BELOW * part**2 * mu / (self.linear * sigma2 * constants.design_effect)
        )  # γ of one client, noise alone
        largest = limit
        if q > 0:  # up to where the curved term is a tenth of `part`, so that the speed-up is linear to a fifth
            one, largest = 0.9**2 * one, min(limit, 0.1 * part / q)
        return StepSizes(min(gamma, limit), left, math.floor(largest / one))


@dataclass(frozen=True)
class PaperProof(SpeedUpProof):
    """The paper's chain of sixth moments, with its gaps closed as the page "Errata" says."""

    linear: float = 10.0
    three_halves: float = 6.0 * 15080.0
    cubic: float = 48.0 * 600.0**2

    def needs_records(self, constants: Constants) -> bool:
        """Return whether there are sixth moments, which need smoothness of every record."""
        return constants.Q > 0

    def start(self, mu: float, gamma: float, sigma2: float, distance2: float) -> float:
        """Return 4‖X⁰ − X*‖²_Λ + 64γσ*²/μ."""
        return 4.0 * distance2 + 64.0 * gamma * sigma2 / mu

    def total(self, left: float, stationary: float) -> float:
        """Return left + 2 · stationary."""
        return left + 2.0 * stationary

    def stationary(self, constants: Constants, gamma: float, H: float, share: float, sigma2: float) -> float:
        """Return the sum of the three terms."""
        return self.linear * gamma * sigma2 * share / constants.mu + self._curved(constants, gamma, H, sigma2)

    def _curved(self, constants: Constants, gamma: float, H: float, sigma2: float) -> float:
        mu, Q = constants.mu, constants.Q
        three_halves = self.three_halves * Q * gamma**1.5 * sigma2**1.5 / mu**2.5
        return float(three_halves + self.cubic * H * Q**2 * gamma**3 * sigma2**2 / mu**3)

    def step_size(self, constants: Constants, length: float, target: float, n_clients: int) -> StepSizes:
        """Take γ ∝ N while the terms that N does not divide stay below half of the room for them."""
        mu, sigma2 = constants.mu, constants.sigma_star2
        room = self.stationary_part * target / (1.0 if constants.Q == 0 else 2.0)
        limit, left = self.largest_step(constants, length), (1.0 - self.stationary_part) * target

        def not_in_n(gamma: float) -> float:
            """Return twice the last two of the three terms at this γH."""
            return 2.0 * self._curved(constants, gamma, length / gamma, sigma2)

        if not_in_n(limit) > room:
            low = limit * room / not_in_n(limit)  # enough, as all powers of γ are larger than 1
            while limit - low > 1e-13 * limit:
                middle = 0.5 * (low + limit)
                low, limit = (low, middle) if not_in_n(middle) > room else (middle, limit)
            limit = BELOW * low
        if sigma2 == 0:
            return StepSizes(limit, left, 0)
        one = BELOW * room * mu / (2.0 * self.linear * sigma2 * constants.design_effect)
        return StepSizes(min(n_clients * one, limit), left, math.floor(limit / one))


PROOFS: dict[Proof, SharpProof | PaperProof] = {
    "sharp": SharpProof(length=24, spread=4, share_of_noise=20, contraction=1.75, power=0.5),
    "paper": PaperProof(length=48, spread=10, share_of_noise=19, contraction=0.25, power=1.0),
}


def _check_proof(name: Proof) -> Proof:
    if name not in get_args(Proof):
        raise InvalidInput(f"proof must be one of {get_args(Proof)}, got {given(name)}")
    return name


def _check_convex(constants: Constants) -> None:
    if "mu" in constants.local:
        raise InvalidInput(
            "the bounds need constants that hold for all θ, but these are about θ* only; if you can vouch for "
            "them, dataclasses.replace(constants, local=())"
        )
    if not constants.mu > 0:
        raise InvalidInput(
            "the bounds need strong convexity, but mu = 0: penalise every coefficient, the intercept too "
            "(l2 > 0 and n_unpenalised=0)"
        )


def _rate(share: float, steps: float) -> float:
    """Return (1 − share)^steps; infinite if 1 − share is negative, which no condition allows."""
    return math.exp(steps * math.log1p(-share)) if share < 1.0 else math.inf

"""Theorem 4.8, Theorem 4.9 and Corollary 4.10: the bounds that improve with the number of clients."""

import math
from dataclasses import dataclass
from typing import get_args

from fedscaffold.core.checks import given, not_negative, positive, whole_number
from fedscaffold.core.display.summaries import Summarised
from fedscaffold.core.errors import InvalidInput
from fedscaffold.theory.bounds.conditions import Bound, Proof, check_convex, setting
from fedscaffold.theory.bounds.crude import initial_distance2 as distance2_from_zero
from fedscaffold.theory.bounds.proofs import PROOFS, SpeedUpProof
from fedscaffold.theory.problem_constants import Constants


def stationary_covariance(
    constants: Constants, *, step_size: float, local_steps: int, n_clients: int, proof: Proof = "sharp"
) -> Bound:
    """(√(0.7γσ*²Σw_c²/μ) + 3.4Qγσ*²/μ²)², and at most 0.6γσ*²/μ: Theorem 4.8 by fourth moments, an upper bound.

    On the trace of E(θ − θ*)(θ − θ*)ᵀ under the stationary law, which is E‖θ − θ*‖². Here Σ w_c² is
    `design_effect`/N, so 1/N for equal weights. The page "Theorem 4.8 by fourth moments" has the proof.

    With proof="paper": 10γσ*²Σw_c²/μ + 6·15080 γ^{3/2}Qσ*³/μ^{5/2} + 48·600² γ³HQ²σ*⁴/μ³. The paper states it for
    the largest eigenvalue. But its proof uses nothing of a norm except ‖AMB‖ ≤ ‖A‖‖M‖‖B‖, with the spectral norm
    of A and B, and ‖E uvᵀ‖ ≤ (E‖u‖² E‖v‖²)^{1/2}, which the nuclear norm has too. The proof as printed has gaps,
    which can be closed without larger constants:

    - It takes ‖Δ_c‖ ≤ ζ₂ for every client, while A4 bounds a mean square. Following Σ_c w_c C̃_c^k (ξ_c − ξ*_c),
      k = 1, 2, ..., instead of each ξ_c, only the mean of ‖Δ_c‖ is needed, which is at most (7/6) ζ₂.
    - In the remainders it takes the product of a first moment and a root mean square for a bound on the mean of a
      product; with Cauchy–Schwarz 28 becomes 600 there. Keeping the factor γHL ≤ 1/48 that the proof drops from
      its last two remainders, the sums are below 10, 6·15080 and 48·600².
    - Its sixth moments need smoothness of every record, A2 as written, so that where Q > 0 the condition on γH
      is on `L_record`; where Q = 0 there are no such terms, and L is enough.

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.
    proof
        "sharp" for this library's proof, "paper" for the paper's constants and conditions.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> few = fs.theory.bounds.stationary_covariance(known, **setting)
    >>> many = fs.theory.bounds.stationary_covariance(known, **{**setting, "n_clients": 40})
    >>> few.holds, round(few.value / many.value, 6)
    (True, 10.0)
    """
    chosen = _proof(proof)
    gamma, H, share, _, _ = setting(constants, step_size, local_steps, n_clients)
    sigma2, conditions = chosen.noise(constants, gamma, H)
    return Bound(chosen.stationary(constants, gamma, H, share, sigma2), conditions)


def finite_time_mse(
    constants: Constants,
    *,
    step_size: float,
    local_steps: int,
    n_clients: int,
    rounds: int,
    initial_distance2: float,
    proof: Proof = "sharp",
) -> Bound:
    """((1 − 7γμ/4)^{HT/2} {‖X⁰ − X*‖_Λ + √(0.6γσ*²/μ)} + √(Theorem 4.8))²: Theorem 4.9, a bound on E‖θ^T − θ*‖².

    With proof="paper", (1 − γμ/4)^{HT} {4‖X⁰ − X*‖²_Λ + 64γσ*²/μ} + 2 · Theorem 4.8, as the paper's proof has it;
    32 would do for 64. The printed statement has 2 for 4, σ*²/(Lμ) for γσ*²/μ, a 1/N in the last term that
    Theorem 4.8 does not have, and a factor d on Theorem 4.8's terms that is not needed (see there).

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.
    rounds
        T.
    initial_distance2
        ‖X⁰ − X*‖²_Λ; ‖θ⁰ − θ*‖² + γ²H²ζ₁² for control variates that start from zero, as in the paper.
    proof
        As in `stationary_covariance`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> found = fs.theory.bounds.finite_time_mse(known, **setting, rounds=10, initial_distance2=100.0)
    >>> found.holds
    True
    """
    chosen = _proof(proof)
    gamma, H, share, _, _ = setting(constants, step_size, local_steps, n_clients)
    T = whole_number("rounds", rounds, least=0)
    start = not_negative("initial_distance2", initial_distance2)
    sigma2, conditions = chosen.noise(constants, gamma, H)
    return Bound(chosen.finite_time(constants, gamma, H, share, sigma2, T, start), conditions)


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

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> known = fs.theory.constants(problem, batch_size=10)
    >>> proved = fs.theory.bounds.complexity(known, target=1.0, n_clients=4, squared_error=10.0)
    >>> proved.gradients_per_client == proved.local_steps * proved.rounds, proved.bound.holds
    (True, True)
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
    """γ ∝ Nμ·target/σ*², γH = min{1/(24(L + μ)), μ/(4Lζ₂)}, T ∝ log(1/target): Corollary 4.10, sufficient.

    γ, H, T for which Theorem 4.9, as `finite_time_mse` has it, gives E‖θ^T − θ*‖² ≤ target; and an upper bound on
    the number of clients for which γ may grow as N. σ*² and β are the constants' own fields. The paper's factor
    min(1, μ/ζ₂) in the number of gradients per client is a slip: γ, and so HT, does not depend on ζ₂.

    Parameters
    ----------
    constants
        Of the problem, from `theory.constants`.
    target
        The mean squared error to reach: the paper's ε².
    n_clients
        N; their weights differ as those of the constants' clients do.
    squared_error
        ‖θ⁰ − θ*‖² of the start; control variates start from zero.
    proof
        As in `stationary_covariance`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> proved = fs.theory.bounds.complexity(known, target=1.0, n_clients=4, squared_error=10.0)
    >>> proved.bound.holds, proved.bound.value <= 1.0
    (True, True)
    """
    chosen = _proof(proof)
    check_convex(constants)
    eps2, N = positive("target", target), whole_number("n_clients", n_clients, least=1)
    error = not_negative("squared_error", squared_error)
    length = chosen.longest_round(constants)
    gamma, left, largest = chosen.step_size(constants, length, eps2, N)
    H = max(1, math.floor(length / gamma))
    start = distance2_from_zero(constants, step_size=gamma, local_steps=H, n_clients=N, squared_error=error)
    T = chosen.rounds(constants, gamma, H, constants.sigma_star2, start, left)
    reached = finite_time_mse(
        constants, step_size=gamma, local_steps=H, n_clients=N, rounds=T, initial_distance2=start, proof=proof
    )
    return Complexity(
        step_size=gamma,
        local_steps=H,
        rounds=T,
        gradients_per_client=H * T,
        largest_n_clients=largest,
        bound=reached,
    )


def _proof(name: Proof) -> SpeedUpProof:
    if name not in get_args(Proof):
        raise InvalidInput(f"proof must be one of {get_args(Proof)}, got {given(name)}")
    return PROOFS[name]

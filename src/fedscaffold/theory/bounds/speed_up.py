"""Theorem 4.8, Theorem 4.9 and Corollary 4.10: the bounds that improve with the number of clients."""

import math
from dataclasses import dataclass

from fedscaffold.core.checks import not_negative, positive, whole_number
from fedscaffold.core.summaries import Summarised
from fedscaffold.theory.bounds.conditions import (
    BELOW,
    Bound,
    Condition,
    check_convex,
    noise_pair,
    rate,
    setting,
    short_round,
)
from fedscaffold.theory.bounds.crude import initial_distance2 as distance2_from_zero
from fedscaffold.theory.constants.constants import Constants

# Theorem 4.8's constants, and Theorem 4.9's, which are twice as large
LINEAR, THREE_HALVES, CUBIC = 10.0, 6.0 * 15080.0, 48.0 * 600.0**2
STATIONARY_SHARE = 0.8  # of the target error; the rest is for what is left of the start


def stationary_covariance(constants: Constants, *, step_size: float, local_steps: int, n_clients: int) -> Bound:
    """10γσ*²/(Nμ) + 6·15080 γ^{3/2}Qσ*³/μ^{5/2} + 48·600² γ³HQ²σ*⁴/μ³: Theorem 4.8, an upper bound.

    On the trace of E(θ − θ*)(θ − θ*)ᵀ under the stationary law, which is E‖θ − θ*‖². The paper states it for the
    largest eigenvalue. But its proof uses nothing of a norm except ‖AMB‖ ≤ ‖A‖‖M‖‖B‖, with the spectral norm of A
    and B, and ‖E uvᵀ‖ ≤ (E‖u‖² E‖v‖²)^{1/2}, which the nuclear norm has too.

    The proof as printed has gaps, which can be closed without larger constants:

    - It takes ‖Δ_c‖ ≤ ζ₂ for every client, while A4 bounds a mean square. Following (1/N) Σ_c C̃_c^k (ξ_c − ξ*_c),
      k = 1, 2, ..., instead of each ξ_c, only the mean of ‖Δ_c‖ is needed, which is at most 2ζ₂.
    - In the remainders it takes the product of a first moment and a root mean square for a bound on the mean of a
      product; with Cauchy–Schwarz 28 becomes 600 there. Keeping the factor γHL ≤ 1/48 that the proof drops from
      its last two remainders, the sums are below 10, 6·15080 and 48·600².
    - Its sixth moments need smoothness of every record, A2 as written, so that where Q > 0 the condition on γH
      is on `L_record`; where Q = 0 there are no such terms, and L is enough.

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.

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
    gamma, H, N, mu, _ = setting(constants, step_size, local_steps, n_clients)
    sigma2, conditions = _noise(constants, gamma, H)
    return Bound(_stationary(gamma, H, N, mu, constants.Q, sigma2), conditions)


def finite_time_mse(
    constants: Constants,
    *,
    step_size: float,
    local_steps: int,
    n_clients: int,
    rounds: int,
    initial_distance2: float,
) -> Bound:
    """(1 − γμ/4)^{HT} {4‖X⁰ − X*‖²_Λ + 64γσ*²/μ} + 2 · Theorem 4.8: Theorem 4.9, an upper bound on E‖θ^T − θ*‖².

    As its proof has it. The printed statement has 2 for 4, σ*²/(Lμ) for γσ*²/μ, a 1/N in the last term that
    Theorem 4.8 does not have, and a factor d on Theorem 4.8's terms that is not needed (see there).

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.
    rounds
        T.
    initial_distance2
        ‖X⁰ − X*‖²_Λ; ‖θ⁰ − θ*‖² + γ²H²ζ₁² for control variates that start from zero, as in the paper.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> found = fs.theory.bounds.finite_time_mse(known, **setting, rounds=10, initial_distance2=100.0)
    >>> found.holds
    True
    """
    gamma, H, N, mu, _ = setting(constants, step_size, local_steps, n_clients)
    T = whole_number("rounds", rounds, least=0)
    start = not_negative("initial_distance2", initial_distance2)
    sigma2, conditions = _noise(constants, gamma, H)
    left = rate(gamma * mu / 4.0, H * T) * (4.0 * start + 64.0 * gamma * sigma2 / mu)
    return Bound(left + 2.0 * _stationary(gamma, H, N, mu, constants.Q, sigma2), conditions)


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
        Up to this N, γ grows as N and so gradients per client fall as 1/N: the linear speed-up is guaranteed.
        0 if other conditions than noise limit the step size even for one client.
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


def complexity(constants: Constants, *, target: float, n_clients: int, squared_error: float) -> Complexity:
    """γ ∝ Nμ·target/σ*², γH = min{1/(48(L + μ)), μ/(10Lζ₂)}, T ∝ log(1/target): Corollary 4.10, sufficient.

    γ, H, T for which Theorem 4.9, as `finite_time_mse` has it, gives E‖θ^T − θ*‖² ≤ target; and an upper bound on
    the number of clients for which γ may grow as N. σ*² and β are the constants' own fields.

    Parameters
    ----------
    constants
        Of the problem, from `theory.constants`.
    target
        The mean squared error to reach: the paper's ε².
    n_clients
        N, of equal weight.
    squared_error
        ‖θ⁰ − θ*‖² of the start; control variates start from zero.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> proved = fs.theory.bounds.complexity(known, target=1.0, n_clients=4, squared_error=10.0)
    >>> proved.bound.holds, proved.bound.value <= 1.0
    (True, True)
    """
    from scipy.optimize import brentq  # here, as it is slow to import and seldom needed

    check_convex(constants)
    eps2, N = positive("target", target), whole_number("n_clients", n_clients, least=1)
    error = not_negative("squared_error", squared_error)
    mu, Q, sigma2 = constants.mu, constants.Q, constants.sigma_star2
    length = BELOW / (48.0 * (_smoothness(constants) + mu))  # γH
    if constants.zeta2 > 0:
        length = min(length, BELOW * mu / (10.0 * constants.L * constants.zeta2))
    room = STATIONARY_SHARE * eps2 / (1.0 if Q == 0 else 2.0)

    def not_in_n(gamma: float) -> float:
        """Theorem 4.9's last two terms at this γH."""
        return 2.0 * _bias(gamma, length / gamma, mu, Q, sigma2)

    limit = length if constants.beta == 0 else min(length, BELOW * mu / (19.0 * constants.beta))
    if not_in_n(limit) > room:
        low = limit * room / not_in_n(limit)  # enough, as all powers of γ are larger than 1
        log_gamma = brentq(lambda u: math.log(not_in_n(math.exp(u)) / room), math.log(low), math.log(limit))
        limit = BELOW * math.exp(log_gamma)
    per_client = math.inf if sigma2 == 0 else BELOW * room * mu / (2.0 * LINEAR * sigma2)
    gamma = min(N * per_client, limit)
    H = max(1, math.floor(length / gamma))

    start = distance2_from_zero(constants, step_size=gamma, local_steps=H, n_clients=N, squared_error=error)
    left = (1.0 - STATIONARY_SHARE) * eps2
    times = max(1.0, (4.0 * start + 64.0 * gamma * sigma2 / mu) / left)
    T = max(1, math.ceil(math.log(times) / (-H * math.log1p(-gamma * mu / 4.0))))
    reached = finite_time_mse(
        constants, step_size=gamma, local_steps=H, n_clients=N, rounds=T, initial_distance2=start
    )
    return Complexity(
        step_size=gamma,
        local_steps=H,
        rounds=T,
        gradients_per_client=H * T,
        largest_n_clients=math.floor(limit / per_client),
        bound=reached,
    )


def _bias(gamma: float, H: float, mu: float, Q: float, sigma2: float) -> float:
    """Theorem 4.8's terms that N does not divide."""
    three_halves = THREE_HALVES * Q * gamma**1.5 * sigma2**1.5 / mu**2.5
    return float(three_halves + CUBIC * H * Q**2 * gamma**3 * sigma2**2 / mu**3)


def _stationary(gamma: float, H: int, N: int, mu: float, Q: float, sigma2: float) -> float:
    return LINEAR * gamma * sigma2 / (N * mu) + _bias(gamma, H, mu, Q, sigma2)


def _smoothness(constants: Constants) -> float:
    return constants.L_record if constants.Q > 0 else constants.L


def _noise(constants: Constants, gamma: float, H: int) -> tuple[float, tuple[Condition, ...]]:
    """σ*² for Theorems 4.8 and 4.9, and their conditions."""
    mu, L = constants.mu, constants.L
    sigma2, beta = noise_pair(constants, mu / (19.0 * gamma))
    which = "L_record" if constants.Q > 0 else "L"
    return sigma2, (
        Condition("γHLζ₂ ≤ μ/10", gamma * H * L * constants.zeta2, mu / 10.0),
        short_round(gamma, H, _smoothness(constants), mu, 48, which),
        Condition("γβ ≤ μ/19", gamma * beta, mu / 19.0),
    )

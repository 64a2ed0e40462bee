"""Lemma 4.1 to Lemma 4.6: contraction, and bounds that do not improve with the number of clients.

‖X‖²_Λ = ‖θ‖² + γ²H² Σ_c w_c ‖ξ_c‖² measures the state X = (θ, ξ_1, ..., ξ_N); X* = (θ*, −∇f_c(θ*)). The paper has
w_c = 1/N; its proofs bound each client and take the mean, so that any weights will do. They
need smoothness only as E‖g_c(θ) − g_c(θ')‖² ≤ L⟨∇f_c(θ) − ∇f_c(θ'), θ − θ'⟩, so L is `Constants.L`.
"""

import math

from fedscaffold.core.checks import not_negative, whole_number
from fedscaffold.theory.bounds.conditions import (
    Bound,
    Condition,
    noise_pair,
    rate,
    setting,
    short_round,
    small_step,
)
from fedscaffold.theory.problem_constants import Constants


def initial_distance2(
    constants: Constants, *, step_size: float, local_steps: int, n_clients: int, squared_error: float
) -> float:
    """‖X⁰ − X*‖²_Λ = ‖θ⁰ − θ*‖² + γ²H²ζ₁² for control variates that start from zero. Exact.

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.
    squared_error
        ‖θ⁰ − θ*‖².

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> fs.theory.bounds.initial_distance2(known, **setting, squared_error=5.0) > 5.0
    True
    """
    gamma, H, _, _, _ = setting(constants, step_size, local_steps, n_clients)
    return not_negative("squared_error", squared_error) + (gamma * H * constants.zeta1) ** 2


def contraction(constants: Constants, *, step_size: float, local_steps: int, n_clients: int) -> Bound:
    """(1 − γμ/4)^H: Lemma 4.1, a contraction factor.

    An upper bound on E‖X⁺ − X'⁺‖²_Λ / ‖X − X'‖²_Λ over one round of two chains that draw the same records.

    Parameters
    ----------
    constants
        Of the problem, from `theory.constants`.
    step_size, local_steps
        γ and H.
    n_clients
        N; their weights differ as those of the constants' clients do. Only Theorems 4.8 and 4.9 depend on it.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> found = fs.theory.bounds.contraction(known, **setting)
    >>> found.holds, found.value < 1
    (True, True)
    """
    gamma, H, _, mu, L = setting(constants, step_size, local_steps, n_clients)
    return Bound(rate(gamma * mu / 4.0, H), (small_step(gamma, L, 2), short_round(gamma, H, L, mu, 1)))


def wasserstein_decay(
    constants: Constants,
    *,
    step_size: float,
    local_steps: int,
    n_clients: int,
    rounds: int,
    initial_wasserstein2: float,
) -> Bound:
    """(1 − γμ/4)^{HT} W₂²(ρ, π): Theorem 4.2, an upper bound on W₂²(ρKᵀ, π).

    The squared distance, in the Λ-norm, between the law of the state after T rounds and the stationary law π.

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.
    rounds
        T.
    initial_wasserstein2
        W₂²(ρ, π), or an upper bound on it, of the law ρ that the run starts from.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> fs.theory.bounds.wasserstein_decay(known, **setting, rounds=0, initial_wasserstein2=2.0).value
    2.0
    """
    factor = contraction(constants, step_size=step_size, local_steps=local_steps, n_clients=n_clients)
    T = whole_number("rounds", rounds, least=0)
    start = not_negative("initial_wasserstein2", initial_wasserstein2)
    return Bound(factor.value**T * start, factor.conditions)


def wasserstein_from_start(
    constants: Constants,
    *,
    step_size: float,
    local_steps: int,
    n_clients: int,
    rounds: int,
    initial_distance2: float,
) -> Bound:
    """(1 − γμ/4)^{HT} (‖X⁰ − X*‖_Λ + √(8γσ²/μ))²: Theorem 4.2 with Corollary 4.5, an upper bound.

    On W₂² to the stationary law after T rounds from a known X⁰; W₂(δ_X⁰, π) by the triangle inequality through X*.

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.
    rounds
        T.
    initial_distance2
        ‖X⁰ − X*‖²_Λ, for example from the function of this name.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> found = fs.theory.bounds.wasserstein_from_start(known, **setting, rounds=100, initial_distance2=2.0)
    >>> found.holds
    True
    """
    crude = stationary_mse(constants, step_size=step_size, local_steps=local_steps, n_clients=n_clients)
    start = not_negative("initial_distance2", initial_distance2)
    decay = wasserstein_decay(
        constants,
        step_size=step_size,
        local_steps=local_steps,
        n_clients=n_clients,
        rounds=rounds,
        initial_wasserstein2=(math.sqrt(start) + math.sqrt(crude.value)) ** 2,
    )
    return Bound(decay.value, crude.conditions)


def drift(constants: Constants, *, step_size: float, local_steps: int, n_clients: int, distance2: float) -> Bound:
    """(1 − γμ/4)^H ‖X − X*‖²_Λ + 2γ²Hσ²: Lemma 4.3, an upper bound on E‖X⁺ − X*‖²_Λ after one round.

    Printed without γ ≤ 1/(4L), which its proof uses. Its σ² is the noise's variance at θ* and nothing else:
    the proof uses A5 at θ* with p = 1. So it is `noise_variance_at_optimum` here, not A5's larger σ*².

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.
    distance2
        ‖X − X*‖²_Λ at the start of the round.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> found = fs.theory.bounds.drift(known, **setting, distance2=100.0)
    >>> found.holds, found.value < 100.0
    (True, True)
    """
    gamma, H, _, mu, L = setting(constants, step_size, local_steps, n_clients)
    sigma2 = constants.noise_variance_at_optimum
    value = rate(gamma * mu / 4.0, H) * not_negative("distance2", distance2) + 2.0 * gamma**2 * H * sigma2
    return Bound(value, _crude_conditions(gamma, H, L, mu))


def crude_mse(
    constants: Constants,
    *,
    step_size: float,
    local_steps: int,
    n_clients: int,
    rounds: int,
    initial_distance2: float,
) -> Bound:
    """(1 − γμ/4)^{HT} ‖X⁰ − X*‖²_Λ + 8γσ²/μ: Theorem 4.4, an upper bound on E‖X^T − X*‖²_Λ, so on the MSE.

    σ² as in `drift`. Repeating Lemma 4.3 as it stands gives 2γ²Hσ²/(1 − (1 − γμ/4)^H), which is more than
    8γσ²/μ; the 8 is right because noise of early local steps has shrunk by the end of the round.

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.
    rounds
        T.
    initial_distance2
        ‖X⁰ − X*‖²_Λ, for example from the function of this name.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> near, far = (
    ...     fs.theory.bounds.crude_mse(known, **setting, rounds=T, initial_distance2=100.0).value for T in (1, 10)
    ... )
    >>> far < near
    True
    """
    gamma, H, _, mu, L = setting(constants, step_size, local_steps, n_clients)
    T = whole_number("rounds", rounds, least=0)
    start = rate(gamma * mu / 4.0, H * T) * not_negative("initial_distance2", initial_distance2)
    return Bound(start + _plateau(constants, gamma), _crude_conditions(gamma, H, L, mu))


def stationary_mse(constants: Constants, *, step_size: float, local_steps: int, n_clients: int) -> Bound:
    """8γσ²/μ: Corollary 4.5, an upper bound on E‖X − X*‖²_Λ under the stationary law.

    So on E‖θ − θ*‖², and on γ²H² Σ_c w_c E‖ξ_c − ξ*_c‖², and on their sum. σ² as in `drift`. The corollary's third
    line is `mean_local_iterates`.

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> fs.theory.bounds.stationary_mse(known, **setting).holds
    True
    """
    gamma, H, _, mu, L = setting(constants, step_size, local_steps, n_clients)
    return Bound(_plateau(constants, gamma), _crude_conditions(gamma, H, L, mu))


def mean_local_iterates(constants: Constants, *, step_size: float, local_steps: int, n_clients: int) -> Bound:
    """16.6γσ²/μ: Corollary 4.5's third line, an upper bound on Σ_c w_c E‖θ_c^h − θ*‖² for every local step h ≤ H.

    Under the stationary law, σ² as in `drift`. Printed with 8 and γH(L + μ) ≤ 1, but the proof bounds
    y = θ_c^h − θ* + γh(ξ_c − ξ*_c) instead. With γH(L + μ) ≤ 1/12 it gives E‖y‖² ≤ E‖θ − θ*‖² + 2γ²Hσ² +
    γ²H²E‖ξ_c − ξ*_c‖²/36, and ‖θ_c^h − θ*‖² ≤ 2‖y‖² + 2γ²H²‖ξ_c − ξ*_c‖², so (2 + 1/18)·8 + 4/24 in all.

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> fs.theory.bounds.mean_local_iterates(known, **setting).holds
    True
    """
    gamma, H, _, mu, L = setting(constants, step_size, local_steps, n_clients)
    return Bound(16.6 / 8.0 * _plateau(constants, gamma), (short_round(gamma, H, L, mu, 12),))


def local_iterates(constants: Constants, *, step_size: float, local_steps: int, n_clients: int) -> Bound:
    """28γσ*²/μ: Lemma 4.6, an upper bound on E‖θ_c^h − θ*‖² for each client c and local step h ≤ H.

    Under the stationary law. Printed without a condition on β, and in the appendix with γβ ≤ L; the constants
    28 and 54 come out with γβ ≤ L/4. (The proof takes 8 for the mean over clients, where `mean_local_iterates`
    says that 16.6 is proved, and 12L² for 4L² + 2β/H. Put right: M ≤ 16.7 γσ*²/μ + w (16.6γσ*²/μ + M) with
    w = 12(γHL)² + 6γ²Hβ ≤ 0.21, so M ≤ 25.5 γσ*²/μ. `local_moment` has 1.3 for γH(L + μ) ≤ 1/24.)

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> fs.theory.bounds.local_iterates(known, **setting).holds
    True
    """
    gamma, H, _, mu, L = setting(constants, step_size, local_steps, n_clients)
    sigma2, conditions = _local_noise(constants, gamma, H, L, mu)
    return Bound(28.0 * gamma * sigma2 / mu, conditions)


def control_variates(constants: Constants, *, step_size: float, local_steps: int, n_clients: int) -> Bound:
    """54Lσ*²/(μH): Lemma 4.6, an upper bound on E‖ξ_c − ξ*_c‖² for each client c.

    Under the stationary law. Conditions as for `local_iterates`, with which the proof gives
    4σ*²/H + (4L² + 2β/H)(16.6 + 25.5)γσ*²/μ ≤ 41.5 Lσ*²/(μH).

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> fs.theory.bounds.control_variates(known, **setting).holds
    True
    """
    gamma, H, _, mu, L = setting(constants, step_size, local_steps, n_clients)
    sigma2, conditions = _local_noise(constants, gamma, H, L, mu)
    return Bound(54.0 * L * sigma2 / (mu * H), conditions)


def _plateau(constants: Constants, gamma: float) -> float:
    return 8.0 * gamma * constants.noise_variance_at_optimum / constants.mu


def _crude_conditions(gamma: float, H: int, L: float, mu: float) -> tuple[Condition, ...]:
    return small_step(gamma, L, 4), short_round(gamma, H, L, mu, 1)


def _local_noise(
    constants: Constants, gamma: float, H: int, L: float, mu: float
) -> tuple[float, tuple[Condition, ...]]:
    """σ*² for Lemma 4.6, and its conditions."""
    sigma2, beta = noise_pair(constants, L / (4.0 * gamma))
    return sigma2, (short_round(gamma, H, L, mu, 12), Condition("γβ ≤ L/4", gamma * beta, L / 4.0))

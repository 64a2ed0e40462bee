"""Lemma 4.7: how the stationary covariances of the model and of the control variates bound each other."""

from typing import NamedTuple

from fedscaffold.core.checks import not_negative
from fedscaffold.core.errors import InvalidInput
from fedscaffold.theory.bounds.conditions import Bound, rate, setting, short_round
from fedscaffold.theory.problem_constants import Constants


class CovarianceSystem(NamedTuple):
    """Upper bounds on the sizes A, B and C of stationary covariances, each in terms of the others.

    Examples
    --------
    >>> from fedscaffold.theory.bounds import Bound, CovarianceSystem
    >>> CovarianceSystem(theta=Bound(0.1, ()), theta_xi=Bound(0.2, ()), xi=Bound(0.3, ())).xi.value
    0.3
    """

    theta: Bound  # on A, of θ
    theta_xi: Bound  # on B, of θ with ξ_c
    xi: Bound  # on C, of ξ_c with ξ_c'


def covariance_system(
    constants: Constants,
    *,
    step_size: float,
    local_steps: int,
    n_clients: int,
    theta: float,
    theta_xi: float,
    xi: float,
    round_noise: float,
) -> CovarianceSystem:
    """A ≤ {γ²H(H−1)L B + ¼γ⁴H²(H−1)²L² C + γ²𝔑s}/(1 − (1 − γμ)^H): Lemma 4.7, three upper bounds.

    B ≤ 2ζ₂A + 4γ³H(H−1)²L² C + 4γ𝔑s/H and C ≤ 2ζ₂²A + 4ζ₂γ(H−1)L B + 9𝔑s/H², with the constants of the
    appendix and s = Σ w_c², which is 1/N for equal weights. Here A = ‖Σ^θ‖, B = Σ_c w_c ‖Σ^{θ,ξ}_c‖ and
    C = Σ_{c,c'} w_c w_c' ‖Σ^ξ_{c,c'}‖ are spectral norms of second moments about (θ*, ξ*) in the stationary law.

    For quadratic f_c alone: otherwise there are remainders, which the paper bounds only as far as Theorem 4.8
    needs them. The proof takes ‖Δ_c‖ ≤ ζ₂ for every client, Δ_c = (Γ_c^H − Γ̄)/(γH), where A4 bounds a mean square.
    But it needs only Σ w_c‖Δ_c‖, which is at most (7/6) ζ₂, and its constants have room for 7/6.

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.
    theta, theta_xi, xi
        A, B and C.
    round_noise
        𝔑 = Σ_c w_c² ‖Σ_h Γ_c^h C_c Γ_c^h‖ / Σ_c w_c², with C_c the noise's stationary mean covariance.

    Raises
    ------
    InvalidInput
        If the losses are not quadratic: Q > 0.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> found = fs.theory.bounds.covariance_system(
    ...     known, **setting, theta=1.0, theta_xi=1.0, xi=1.0, round_noise=1.0
    ... )
    >>> found.theta.holds
    True
    """
    gamma, H, share, mu, L = setting(constants, step_size, local_steps, n_clients)
    if constants.Q > 0:
        raise InvalidInput("Lemma 4.7 is explicit for quadratic losses only, but Q > 0; use a ridge problem")
    a, b = not_negative("theta", theta), not_negative("theta_xi", theta_xi)
    c, noise = not_negative("xi", xi), not_negative("round_noise", round_noise)
    zeta2, conditions = constants.zeta2, (short_round(gamma, H, L, mu, 12),)
    reach = gamma**2 * H * (H - 1) * L
    bound_theta = (reach * b + reach**2 / 4.0 * c + gamma**2 * noise * share) / (1.0 - rate(gamma * mu, H))
    bound_theta_xi = (
        2.0 * zeta2 * a + 4.0 * gamma**3 * H * (H - 1) ** 2 * L**2 * c + 4.0 * gamma * noise * share / H
    )
    bound_xi = 2.0 * zeta2**2 * a + 4.0 * zeta2 * gamma * (H - 1) * L * b + 9.0 * noise * share / H**2
    return CovarianceSystem(
        Bound(bound_theta, conditions), Bound(bound_theta_xi, conditions), Bound(bound_xi, conditions)
    )

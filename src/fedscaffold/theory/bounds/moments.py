"""Moments of order two, four and six under the stationary law, of the whole state and of every local model.

By one inequality for each local step, docs/explanation/theory/sharp.md. The paper has the order six, E^{1/3}‖·‖⁶ ≤
240γσ*²/μ and 600γσ*²/μ, by a lemma whose proof has three slips (see the errata page).
"""

from typing import Literal, NamedTuple

from fedscaffold.core.errors import InvalidInput
from fedscaffold.theory.bounds.conditions import Bound, Condition, noise_pair, setting, short_round
from fedscaffold.theory.problem_constants import Constants

Order = Literal[2, 4, 6]
LENGTH, SHARE_OF_NOISE = 24, 20.0  # γH(L + μ) ≤ 1/24 and γβ ≤ μ/20


class MomentConstants(NamedTuple):
    """Multiples of γσ*²/μ, rounded up from those of the proof, which the tests compute again."""

    whole: float
    local: float


MOMENTS: dict[int, MomentConstants] = {
    2: MomentConstants(0.6, 1.3),
    4: MomentConstants(2.5, 5.6),
    6: MomentConstants(6.5, 15.0),
}


def stationary_moment(
    constants: Constants, *, step_size: float, local_steps: int, n_clients: int, order: Order
) -> Bound:
    """0.6, 2.5 or 6.5 times γσ*²/μ: an upper bound on E^{2/q}‖X − X*‖^q_Λ for q = 2, 4, 6.

    Under the stationary law; so on E^{2/q}‖θ − θ*‖^q too. Of order two it is a sharper Corollary 4.5, whose 8
    needs only γH(L + μ) ≤ 1.

    Parameters
    ----------
    constants, step_size, local_steps, n_clients
        As in `contraction`.
    order
        q: 2, 4 or 6.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> known = fs.theory.constants(fs.problems.paper("regression", n_clients=4), batch_size=10)
    >>> setting = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4}
    >>> fs.theory.bounds.stationary_moment(known, **setting, order=4).holds
    True
    """
    return _moment(constants, step_size, local_steps, n_clients, _constants(order).whole)


def local_moment(
    constants: Constants, *, step_size: float, local_steps: int, n_clients: int, order: Order
) -> Bound:
    """1.3, 5.6 or 15 times γσ*²/μ: an upper bound on E^{2/q}‖θ_c^h − θ*‖^q for q = 2, 4, 6 and every c and h.

    Under the stationary law. Of order two it is a sharper Lemma 4.6, whose 28 needs only γH(L + μ) ≤ 1/12.

    Parameters
    ----------
    constants, step_size, local_steps, n_clients, order
        As in `stationary_moment`.

    Examples
    --------
    Local models are further from the optimum than the server's:

    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=3)
    >>> known = fs.theory.constants(problem, batch_size=10)
    >>> chosen = {"step_size": 1e-5, "local_steps": 10, "n_clients": 4, "order": 6}
    >>> bounds = fs.theory.bounds
    >>> bounds.local_moment(known, **chosen).value > bounds.stationary_moment(known, **chosen).value
    True
    """
    return _moment(constants, step_size, local_steps, n_clients, _constants(order).local)


def _constants(order: int) -> MomentConstants:
    if order not in MOMENTS:
        raise InvalidInput(f"order must be 2, 4 or 6, got {order!r}")
    return MOMENTS[order]


def _moment(constants: Constants, step_size: float, local_steps: int, n_clients: int, factor: float) -> Bound:
    gamma, H, _, mu, L = setting(constants, step_size, local_steps, n_clients)
    sigma2, beta = noise_pair(constants, mu / (SHARE_OF_NOISE * gamma))
    conditions = (short_round(gamma, H, L, mu, LENGTH), Condition("γβ ≤ μ/20", gamma * beta, mu / SHARE_OF_NOISE))
    return Bound(factor * gamma * sigma2 / mu, conditions)

"""The stationary law by passes over the clients: all of them first, then, of many, a sample of them."""

from dataclasses import replace

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.anderson import Anderson
from fedscaffold.theory.prediction.client_sample import Sample, sample_clients
from fedscaffold.theory.prediction.local_steps import accumulate, rotate
from fedscaffold.theory.prediction.plateau import (
    PlateauState,
    client_sums,
    control_means,
    linear_start,
    one_pass,
    solved,
    squared_parts,
    theta_covariance,
)
from fedscaffold.theory.prediction.setting import MANY_CLIENTS, Setting

MOST_PASSES = 40
MEMORY = 6
LARGEST_ACCELERATED = 2_000_000  # numbers in the noise of all clients, of which a dozen copies are kept
NOTHING = 1e-22  # of ‖θ*‖²: rounding errors
UNSEEN = 0.01  # of what a sample changes: what its error leaves out
PRECISE_ENOUGH = 1e-3  # standard error that a sample may cause, relative to the squared error that is predicted


def solve_stationary(s: Setting) -> PlateauState:
    """The stationary law of a setting."""
    state = linear_start(s)
    return state if s.scaffold and not s.factors.any() else settle(s, state)


def settle(s: Setting, state: PlateauState) -> PlateauState:
    """Passes over the clients until further ones would change the law by less than `settled`, relative.

    What they would change follows from the last two changes, as of a geometric series. Passes contract about
    tenfold where noise depends little on where it acts. Where it depends much, for ridge, whose noise is an
    affine function of itself, Anderson's acceleration finds the fixed point.
    """
    last, before, floor = np.inf, squared_parts(state), NOTHING * float(s.optimum @ s.optimum)
    numbers = s.clients.size * s.steps.nodes.size * s.problem.dim**2
    history = Anderson(MEMORY) if s.quadratic and numbers <= LARGEST_ACCELERATED else None
    for _ in range(MOST_PASSES):
        with np.errstate(over="ignore", invalid="ignore"):  # what grows beyond all numbers is refused below
            later = one_pass(s, state)
        now = squared_parts(later)
        if not np.isfinite(now).all() or now[0] < -floor:
            break
        change = np.abs(now - before)
        rate = float(np.clip(change.sum() / max(last, 1e-300), 0.0, 0.9)) if np.isfinite(last) else 0.5
        if (change * rate / (1.0 - rate) <= s.settled * np.array([now[0], now.sum()]) + floor).all():
            return later
        found = settle_sample(s, state, later)
        if found is not None:
            return found
        last = float(change.sum())
        state, before = later if history is None else accelerated(s, history, state, later), now
    raise InvalidInput(
        "no plateau found: the noise grows with the distance that it causes faster than the method contracts; "
        "take a smaller step_size or a larger batch_size"
    )


def accelerated(s: Setting, history: Anderson, state: PlateauState, later: PlateauState) -> PlateauState:
    """The next guess for ridge: the law that a combination of the noises of past passes causes."""
    before = np.broadcast_to(state.noise, later.noise.shape)
    noise = history.next(before.ravel(), later.noise.ravel()).reshape(later.noise.shape)
    Q = accumulate(s.steps, later.cur, noise, [s.H])[:, 0]
    return solved(s, later.cur, noise, Q, later.residual, others=later.others)


def settle_sample(s: Setting, state: PlateauState, later: PlateauState) -> PlateauState | None:
    """The law after further passes over a sample of the clients; None where a sample would not do.

    `later` is what a pass over all clients made of `state`. From there on, sums over all clients change by what
    those over the sample do. Where the sample says that this was not precise enough, it is not used.
    """
    if s.clients.size <= MANY_CLIENTS or state.others is not None:
        return None
    chosen = sample_clients(s.weights, np.abs(changes(s, state, later)))
    if chosen is None:
        return None
    sub, start = chosen.of(s), restricted(s, later, chosen)
    try:
        found = settle(sub, start)
    except InvalidInput:
        return None
    changed = changes(sub, start, found)
    if chosen.error(changed) + UNSEEN * abs(float(changed.sum())) > PRECISE_ENOUGH:
        return None
    return for_everyone(s, later, found)


def changes(s: Setting, state: PlateauState, later: PlateauState) -> Array:
    """What each client changed in the predicted squared error, relative to it, about: by its noise and its pull.

    With S = γHḠ, for FedAvg I − Γ̄, the variance of θ grows with tr(S⁻¹ Q) of all noise, and the mean b is −S⁻¹
    times the sum of all pulls, so that ‖b‖² changes by −2 bᵀS⁻¹ times what that changes.
    """
    sums, d = later.sums, s.problem.dim
    variance, bias = squared_parts(later)
    size = max(float(variance + bias), 1e-300)
    matrix = sums.curvature if s.scaffold else np.eye(d) - sums.coupling
    inverse = np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    U, noise = later.cur.U, s.gamma**2 * s.weights * s.own
    moved = later.Q - np.swapaxes(U, 1, 2) @ state.cur.U @ state.Q @ np.swapaxes(state.cur.U, 1, 2) @ U
    total = float(np.sum(theta_covariance(sums.noise, d) * inverse.T))
    found = noise * (moved * rotate(U, inverse)).sum(axis=(1, 2)) * float(variance) / max(total, 1e-300) / size
    if not s.quadratic:
        lever = 2.0 / size * (inverse.T @ later.bias)
        pulls = [((lever @ one.cur.U) * client_pulls(s, one)).sum(axis=1) for one in (state, later)]
        found = found + s.weights * (pulls[1] - pulls[0])
    return np.asarray(found)


def client_pulls(s: Setting, state: PlateauState) -> Array:
    """Each client's share of the pull on the mean, in its eigenbasis, (N, d)."""
    r = s.gamma * accumulate(s.steps, state.cur, state.residual, [s.H])[:, 0]
    return r / state.cur.delta if s.scaffold else r


def restricted(s: Setting, whole: PlateauState, chosen: Sample) -> PlateauState:
    """A law with the arrays of a sample of clients, and the sums of the others."""
    at, sub = chosen.clients, chosen.of(s)
    cur, Q = whole.cur[at], whole.Q[at]
    r = s.gamma * accumulate(s.steps, cur, whole.residual[at], [s.H])[:, 0]
    others = whole.sums.plus(client_sums(sub, cur, Q, r, whole.sums.points), -1.0)
    arrays = {name: getattr(whole, name)[at] for name in ("cur", "eta", "noise", "Q", "residual")}
    return replace(whole, **arrays, others=others)


def for_everyone(s: Setting, whole: PlateauState, found: PlateauState) -> PlateauState:
    """The law found with a sample, with all clients as they were in the last pass over all of them."""
    r = s.gamma * accumulate(s.steps, whole.cur, whole.residual, [s.H])[:, 0]
    eta = control_means(whole.cur, found.bias, r) if s.scaffold else whole.eta
    law = {name: getattr(found, name) for name in ("system", "A", "P", "cov_theta", "bias", "sums")}
    return replace(whole, **law, eta=eta)

"""The stationary law by passes over the clients: all of them, or, of many, a sample of them.

A law has sums over all clients. Where passes over a sample change what its clients add to them, the sums are taken
to change by as much for all clients like them. The less there is left to change, the smaller a sample will do: it
starts from a first guess for all clients or, where that says too little, from one pass over all of them.
"""

from dataclasses import replace

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.errors import InvalidInput, NoPlateau
from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.anderson import Anderson
from fedscaffold.theory.prediction.local_steps import accumulate, rotate
from fedscaffold.theory.prediction.many_clients.client_sample import Sample, sample_clients
from fedscaffold.theory.prediction.many_clients.first_guess import guess_pulls
from fedscaffold.theory.prediction.plateau import (
    PlateauState,
    client_sums,
    control_means,
    linear_start,
    one_pass,
    round_pulls,
    solved,
    squared_parts,
    theta_covariance,
)
from fedscaffold.theory.prediction.setting import MANY_CLIENTS, SETTLED_MANY, Setting

MOST_PASSES = 40
MEMORY = 6
LARGEST_ACCELERATED = 2_000_000  # numbers in the noise of all clients, of which a dozen copies are kept
NOTHING = 1e-22  # of ‖θ*‖²: rounding errors
FEWEST, FEWEST_QUADRATIC = 48, 128  # clients of a first sample; more for ridge, whose guess is further off
SAMPLES = 2  # that are drawn at most
LARGEST_SHARE = 0.5  # of all clients in a sample: with more, passes over all of them take as long
UNSEEN = 0.005  # of what a sample changes: what its error leaves out
PRECISE_ENOUGH = 1e-3  # standard error that a sample may cause, relative to the squared error that is predicted


def solve_stationary(s: Setting) -> PlateauState:
    """The stationary law of a setting."""
    state = linear_start(s)
    if s.scaffold and not s.factors.any():
        return state
    if s.clients.size > MANY_CLIENTS and isinstance(s.problem, GeneralisedLinear):
        guess = state if s.quadratic else guess_pulls(s, state)
        found = settle_sample(s, guess, np.abs(changes(s, state, guess)) + noise_shares(s, guess))
        if found is not None:
            return found
        state = guess
    return settle(s, state)


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
        if s.clients.size > MANY_CLIENTS and state.others is None:
            found = settle_sample(s, later, np.abs(changes(s, state, later)))
            if found is not None:
                return found
        last = float(change.sum())
        state, before = later if history is None else accelerated(s, history, state, later), now
    raise NoPlateau(
        "no plateau found: the noise grows with the distance that it causes faster than the method contracts; "
        "take a smaller step_size or a larger batch_size"
    )


def accelerated(s: Setting, history: Anderson, state: PlateauState, later: PlateauState) -> PlateauState:
    """The next guess for ridge: the law that a combination of the noises of past passes causes."""
    before = np.broadcast_to(state.noise, later.noise.shape)
    noise = history.next(before.ravel(), later.noise.ravel()).reshape(later.noise.shape)
    Q = accumulate(s.steps, later.cur, noise, [s.H])[:, 0]
    return solved(s, later.cur, noise, Q, later.residual, others=later.others)


def settle_sample(s: Setting, guess: PlateauState, sizes: Array) -> PlateauState | None:
    """The law from a guess by passes over a sample of the clients; None where most of them would be needed.

    `sizes` is how much each client's part is thought to change. The sample says itself how precise it was; where
    that was not enough, one larger sample is drawn.
    """
    precise = PRECISE_ENOUGH * max(1.0, s.settled / SETTLED_MANY)
    count = min(FEWEST_QUADRATIC if s.quadratic else FEWEST, int(s.clients.size * LARGEST_SHARE))
    for _ in range(SAMPLES):
        if count > s.clients.size * LARGEST_SHARE:
            return None
        chosen = sample_clients(s.weights, sizes, count)
        sub, start = chosen.of(s), restricted(s, guess, chosen)
        try:
            found = settle(sub, start)
        except InvalidInput:
            return None
        changed = changes(sub, start, found)
        error = chosen.error(changed)
        if error + UNSEEN * abs(float(changed.sum())) <= precise:
            return for_everyone(s, guess, found)
        count = int(count * max(1.5, 1.5 * (error / precise) ** 2))
    return None


def noise_shares(s: Setting, state: PlateauState) -> Array:
    """About how much each client's noise adds to E‖θ − θ*‖², as a share of it, (N,)."""
    inverse = np.asarray(np.linalg.inv(response(s, state)), dtype=np.float64)
    found = s.weights * s.own * (state.Q * rotate(state.cur.U, inverse)).sum(axis=(1, 2))
    variance, bias = squared_parts(state)
    return np.asarray(found * float(variance) / max(float(found.sum() * (variance + bias)), 1e-300))


def response(s: Setting, state: PlateauState) -> Array:
    """S = γHḠ, for FedAvg I − Γ̄: a pull r on the mean moves it to −S⁻¹ r."""
    return state.sums.curvature if s.scaffold else np.eye(s.problem.dim) - state.sums.coupling


def changes(s: Setting, state: PlateauState, later: PlateauState) -> Array:
    """What each client changed in the predicted squared error, relative to it, about: by its noise and its pull.

    With S as in `response`, the variance of θ grows with tr(S⁻¹ Q) of all noise, and the mean b is −S⁻¹ times the
    sum of all pulls, so that ‖b‖² changes by −2 bᵀS⁻¹ times what that changes.
    """
    sums, d = later.sums, s.problem.dim
    variance, bias = squared_parts(later)
    size = max(float(variance + bias), 1e-300)
    inverse = np.asarray(np.linalg.inv(response(s, later)), dtype=np.float64)
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
    r = round_pulls(s, state.cur, state.residual)
    return r / state.cur.delta if s.scaffold else r


def restricted(s: Setting, whole: PlateauState, chosen: Sample) -> PlateauState:
    """A law with the arrays of a sample of clients, and the sums of the others."""
    at, sub = chosen.clients, chosen.of(s)
    cur, Q = whole.cur[at], whole.Q[at]
    r = round_pulls(s, cur, whole.residual[at])
    others = whole.sums.plus(client_sums(sub, cur, Q, r, whole.sums.points), -1.0)
    arrays = {name: getattr(whole, name)[at] for name in ("cur", "eta", "noise", "Q", "residual")}
    return replace(whole, **arrays, others=others)


def for_everyone(s: Setting, whole: PlateauState, found: PlateauState) -> PlateauState:
    """The law found with a sample, with all clients as they were in the last pass over all of them."""
    r = round_pulls(s, whole.cur, whole.residual)
    eta = control_means(whole.cur, found.bias, r) if s.scaffold else whole.eta
    law = {name: getattr(found, name) for name in ("system", "A", "P", "cov_theta", "bias", "sums")}
    return replace(whole, **law, eta=eta)

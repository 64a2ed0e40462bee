"""Exact second moments of quadratic problems by brute force: every cohort, every local step, from the pseudo-code.

Nothing here is taken from the library but the problem's records. A method is given as a list of its possible
rounds, each with a probability, its clients' numbers of steps, and a plain function of (server fields, client
fields, local models) that says how it ends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from fedscaffold.core.types import Array
from tests.theory.dense_algebra import batch_noise, record_slopes

# (server fields (K, d), client fields (N, d), local models (N, d)) → the same two one round later
Finish = Callable[[Array, Array, Array], tuple[Array, Array]]
# (server fields, client fields, own gradients at θ (N, d)) → ξ (N, d)
Correct = Callable[[Array, Array, Array], Array]


@dataclass(frozen=True)
class OneRound:
    """A round that may happen."""

    probability: float
    steps: tuple[int, ...]  # of each client; those of clients that stay away do not matter
    finish: Finish


def stationary(
    problem: Any, gamma: float, batch: int, K: int, correct: Correct, rounds: list[OneRound], *,
    noisy_exchange: bool = False, n_rounds: int = 400, positions: tuple[int, ...] = (0,),
) -> tuple[Array, Array, Array]:  # fmt: skip
    """(E θ − θ*, E (θ − θ*)(θ − θ*)ᵀ) after many rounds from θ = 0, and E‖θ − θ*‖² after each of them.

    By propagating the second moment of (1, z).
    """
    N, d = problem.n_clients, problem.dim
    size = 1 + (K + N) * d
    optimum = problem.optimum()
    linear = hasattr(problem, "client_matrices")
    hessians = problem.client_matrices if linear else problem.client_hessians(optimum)
    ahead = problem.client_gradients(optimum)
    records = [record_slopes(problem, c) for c in range(N)]

    def unpack(z: Array) -> tuple[Array, Array]:
        return z[1 : 1 + K * d].reshape(K, d), z[1 + K * d :].reshape(N, d)

    def correction(z: Array, pushed: Array) -> Array:
        server, clients = unpack(z)
        return correct(server, clients, z[0] * ahead + hessians @ server[0] + pushed)

    lift = np.zeros((2 * N * d, size))  # (x_c, ξ_c + ∇f_c(θ*)) at the start of the local steps
    noise_in = np.zeros((2 * N * d, N * d))
    for k, unit in enumerate(np.eye(size)):
        xi = correction(unit, np.zeros((N, d))) + unit[0] * ahead
        lift[:, k] = np.concatenate([np.tile(unpack(unit)[0][0], N), xi.ravel()])
    for k, unit in enumerate(np.eye(N * d)):
        noise_in[N * d :, k] = correction(np.zeros(size), unit.reshape(N, d)).ravel()
    step = np.block(
        [
            [np.eye(N * d) - gamma * block_diag(*hessians), -gamma * np.eye(N * d)],
            [np.zeros((N * d, N * d)), np.eye(N * d)],
        ]
    )

    def blocks_of_noise(joint: Array, rows: list[slice]) -> Array:
        """Noise of each client's gradient where its model has the law that stands at these rows."""
        found = np.zeros((N * d, N * d))
        for c, r in enumerate(rows):
            at, mean = slice(c * d, (c + 1) * d), joint[0, r]
            found[at, at] = batch_noise(records[c], joint[r, r] - np.outer(mean, mean), optimum + mean, batch)
        return found

    first = slice(1, 1 + d)
    turns = []
    for one in rounds:
        turn = np.zeros((size, size + N * d))
        for k, unit in enumerate(np.eye(size + N * d)):
            server, clients = one.finish(*unpack(unit[:size]), unit[size:].reshape(N, d))
            turn[0, k] = unit[0]
            turn[1:, k] = np.concatenate([server.ravel(), clients.ravel()])
        turns.append(turn)

    def after(second: Array) -> Array:
        base = size
        whole = np.concatenate([np.eye(base), lift])
        joint = whole @ second @ whole.T
        if noisy_exchange:
            noise = blocks_of_noise(second, [first] * N)
            joint[base:, base:] += noise_in @ noise @ noise_in.T
        longest = max(max(one.steps) for one in rounds)
        big = block_diag(np.eye(base), step)
        ends = [joint]
        rows = [slice(base + c * d, base + (c + 1) * d) for c in range(N)]
        for _ in range(longest):
            noise = blocks_of_noise(ends[-1], rows)
            joint = big @ ends[-1] @ big.T
            joint[base : base + N * d, base : base + N * d] += gamma**2 * noise
            ends.append(joint)
        total = np.zeros((size, size))
        for one, turn in zip(rounds, turns, strict=True):
            alike = len(set(one.steps)) == 1
            found = ends[one.steps[0]] if alike else _different(big, ends, one.steps, base, N, d)
            keep = slice(0, base + N * d)
            total += one.probability * turn @ found[keep, keep] @ turn.T
        return 0.5 * (total + total.T)

    z = np.zeros(size)
    z[0] = 1.0
    for k in positions:
        z[1 + k * d : 1 + (k + 1) * d] = -optimum
    second = np.outer(z, z)
    curve = [float(np.trace(second[first, first]))]
    for _ in range(n_rounds):
        new = after(second)
        curve.append(float(np.trace(new[first, first])))
        if np.abs(new - second).max() < 1e-12 * np.abs(new[first, first]).max():
            break
        second = new
    return second[0, first], second[first, first], np.array(curve)


def _different(big: Array, ends: list[Array], steps: tuple[int, ...], base: int, N: int, d: int) -> Array:
    """Second moment when client c stops after steps[c], by E v_{t+k} v_tᵀ = Aᵏ E v_t v_tᵀ."""
    found = ends[0].copy()
    for c in range(N):
        rows = slice(base + c * d, base + (c + 1) * d)
        late = np.linalg.matrix_power(big, steps[c])
        found[rows, :base] = (late @ ends[0])[rows, :base]
        found[:base, rows] = found[rows, :base].T
        for e in range(N):
            columns = slice(base + e * d, base + (e + 1) * d)
            early = min(steps[c], steps[e])
            if steps[c] >= steps[e]:
                both = np.linalg.matrix_power(big, steps[c] - early) @ ends[early]
            else:
                both = ends[early] @ np.linalg.matrix_power(big, steps[e] - early).T
            found[rows, columns] = both[rows, columns]
    return found

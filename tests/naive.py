"""Slow, obvious oracles: Algorithm 1, FedAvg and the index stream, in plain Python, one record at a time.

Nothing here is imported from the library, and nothing is fast.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Vector = list[float]
Draw = Callable[[int, int, int, int], Sequence[int]]  # (repetition, round, client, step) → record indices


@dataclass
class Clients:
    """Tables of records: features[c][i] is a vector, targets[c][i] a number (±1 for logistic)."""

    kind: str
    features: list[list[Vector]]
    targets: list[list[float]]
    l2: float
    weights: Vector


@dataclass
class Result:
    """θ and ξ_c after the last round, and θ after each."""

    theta: Vector
    control_variates: list[Vector]
    iterates: list[Vector]


def gradient_of_record(kind: str, theta: Vector, x: Vector, y: float) -> Vector:
    """∇ℓ(xᵀθ, y), without the penalty."""
    margin = math.fsum(a * b for a, b in zip(x, theta, strict=True))
    slope = margin - y if kind == "ridge" else -y / (1.0 + math.exp(y * margin))
    return [slope * a for a in x]


def gradient_of_batch(clients: Clients, c: int, theta: Vector, rows: Sequence[int]) -> Vector:
    """The mean over the records, plus l2·θ."""
    each = [gradient_of_record(clients.kind, theta, clients.features[c][i], clients.targets[c][i]) for i in rows]
    return [math.fsum(g[j] for g in each) / len(each) + clients.l2 * theta[j] for j in range(len(theta))]


def scaffold(
    clients: Clients, draw: Draw, *, gamma: float, H: int, T: int, theta: Vector, repetition: int = 0
) -> Result:
    """Algorithm 1."""
    N, d, w = len(clients.features), len(theta), clients.weights
    xi = [[0.0] * d for _ in range(N)]
    iterates = [theta]
    for t in range(T):
        local = []
        for c in range(N):
            theta_c = list(theta)
            for h in range(H):
                g = gradient_of_batch(clients, c, theta_c, draw(repetition, t, c, h))
                theta_c = [theta_c[j] - gamma * (g[j] + xi[c][j]) for j in range(d)]
            local.append(theta_c)
        theta = [math.fsum(w[c] * local[c][j] for c in range(N)) for j in range(d)]
        xi = [[xi[c][j] + (local[c][j] - theta[j]) / (gamma * H) for j in range(d)] for c in range(N)]
        iterates.append(theta)
    return Result(theta, xi, iterates)


def fedavg(
    clients: Clients, draw: Draw, *, gamma: float, H: int, T: int, theta: Vector, repetition: int = 0
) -> Result:
    """Local SGD and averaging."""
    N, d = len(clients.features), len(theta)
    iterates = [theta]
    for t in range(T):
        new = [0.0] * d
        for c in range(N):
            theta_c = list(theta)
            for h in range(H):
                g = gradient_of_batch(clients, c, theta_c, draw(repetition, t, c, h))
                theta_c = [theta_c[j] - gamma * g[j] for j in range(d)]
            new = [new[j] + clients.weights[c] * theta_c[j] for j in range(d)]
        theta = new
        iterates.append(theta)
    return Result(theta, [[0.0] * d for _ in range(N)], iterates)


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10, with whole numbers."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q % 2**32, (p >> 32) ^ d ^ k1, p % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [a, b, c, d]


def word(seed: int, repetition: int, round: int, client: int, position: int) -> int:
    """One word of the stream that the library documents."""
    key = (seed % 2**32, seed // 2**32)
    return philox((position // 4, round, client, repetition), key)[position % 4]


def drawing(seed: int, sizes: Sequence[int], batch_size: int | None, sampling: str) -> Draw:
    """The records that a run with this seed uses."""

    def draw(repetition: int, round: int, client: int, step: int) -> list[int]:
        n = sizes[client]
        if batch_size is None:
            return list(range(n))
        raw = [word(seed, repetition, round, client, step * batch_size + b) for b in range(batch_size)]
        if sampling == "with_replacement":
            return [u * n // 2**32 for u in raw]
        left, drawn = list(range(n)), []
        for b, u in enumerate(raw):  # swap a record from what is left to the front
            j = b + u * (n - b) // 2**32
            left[b], left[j] = left[j], left[b]
            drawn.append(left[b])
        return drawn

    return draw

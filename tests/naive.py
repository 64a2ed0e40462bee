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
    """Tables of records: features[c][i] is a vector, targets[c][i] a number (±1 for logistic).

    extras[c][i] is the offset and the weight of a record; without extras they are 0 and 1.
    """

    kind: str
    features: list[list[Vector]]
    targets: list[list[float]]
    l2: float
    weights: Vector
    extras: list[list[tuple[float, float]]] | None = None


Matrix = list[Vector]


@dataclass
class Systems(Clients):
    """Linear systems instead: features[c][i] is a matrix A, targets[c][i] a vector b, the gradient Aθ − b."""

    features: list[list[Matrix]]  # type: ignore[assignment]
    targets: list[list[Vector]]  # type: ignore[assignment]


@dataclass
class Result:
    """θ and ξ_c after the last round, and θ after each."""

    theta: Vector
    control_variates: list[Vector]
    iterates: list[Vector]


def gradient_of_record(kind: str, theta: Vector, x: Vector, y: float) -> Vector:
    """∇ℓ(xᵀθ, y), without the penalty."""
    if kind == "multinomial":
        return gradient_of_classes(theta, x, y)
    slope = slope_of_margin(kind, math.fsum(a * b for a, b in zip(x, theta, strict=True)), y)
    return [slope * a for a in x]


def gradient_of_classes(theta: Vector, x: Vector, y: float) -> Vector:
    """(p_k − [y = k]) x, one class after another."""
    d = len(x)
    parts = [theta[k : k + d] for k in range(0, len(theta), d)]
    powers = [math.exp(math.fsum(a * b for a, b in zip(x, part, strict=True))) for part in parts]
    slopes = [power / math.fsum(powers) - (k == y) for k, power in enumerate(powers)]
    return [slope * a for slope in slopes for a in x]


def weighted_gradient(kind: str, theta: Vector, x: Vector, y: float, offset: float, weight: float) -> Vector:
    """S ∇ℓ(xᵀθ + o, y): the offset is a feature whose coefficient is 1."""
    if kind == "multinomial":
        return [weight * g for g in gradient_of_classes(theta, x, y)]
    return [weight * g for g in gradient_of_record(kind, [*theta, 1.0], [*x, offset], y)[: len(x)]]


def slope_of_margin(kind: str, margin: float, y: float) -> float:
    """ℓ'(z, y)."""
    if kind == "ridge":
        return margin - y
    if kind == "poisson":
        return math.exp(margin) - y
    if kind == "gamma":
        return 1.0 - y * math.exp(-margin)
    return -y / (1.0 + math.exp(y * margin))


def gradient_of_batch(clients: Clients, c: int, theta: Vector, rows: Sequence[int]) -> Vector:
    """The mean over the records, plus l2·θ."""
    if isinstance(clients, Systems):
        each = [residual(clients.features[c][i], theta, clients.targets[c][i]) for i in rows]
        return [math.fsum(g[j] for g in each) / len(each) for j in range(len(theta))]
    records = [(clients.features[c][i], clients.targets[c][i]) for i in rows]
    if clients.extras is None:
        each = [gradient_of_record(clients.kind, theta, x, y) for x, y in records]
    else:
        extras = [clients.extras[c][i] for i in rows]
        each = [
            weighted_gradient(clients.kind, theta, *record, *extra)
            for record, extra in zip(records, extras, strict=True)
        ]
    return [math.fsum(g[j] for g in each) / len(each) + clients.l2 * theta[j] for j in range(len(theta))]


def residual(matrix: Matrix, theta: Vector, right: Vector) -> Vector:
    """Aθ − b."""
    products = [math.fsum(a * t for a, t in zip(row, theta, strict=True)) for row in matrix]
    return [product - b for product, b in zip(products, right, strict=True)]


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


def local_steps(
    clients: Clients,
    draw: Draw,
    *,
    gamma: float,
    H: int,
    theta: Vector,
    xi: Vector,
    c: int,
    t: int,
    repetition: int,
) -> Vector:
    """θ_c after H steps from θ with correction ξ."""
    for h in range(H):
        g = gradient_of_batch(clients, c, theta, draw(repetition, t, c, h))
        theta = [a - gamma * (b + x) for a, b, x in zip(theta, g, xi, strict=True)]
    return theta


def mean_over(cohort: Sequence[int], w: Vector, vectors: dict[int, Vector]) -> Vector:
    """Σ w_c v_c / Σ w_c over a cohort."""
    total = math.fsum(w[c] for c in cohort)
    dim = len(vectors[cohort[0]])
    return [math.fsum(w[c] * vectors[c][j] for c in cohort) / total for j in range(dim)]


def scaffold_in_cohorts(
    clients: Clients, draw: Draw, *, gamma: float, H: Sequence[int], cohorts: list[list[int]], theta: Vector,
    repetition: int = 0,
) -> Result:  # fmt: skip
    """Some clients in each round, each with its own number of steps; in terms of mean directions.

    Client c sends d_c = (θ − θ_c)/(γH_c); θ⁺ = θ − γH̄ d̄; ξ_c ← ξ_c − (d_c − d̄), for those who took part.
    """
    d, usual = len(theta), sum(H) / len(H)
    xi = [[0.0] * d for _ in H]
    iterates = [theta]
    for t, cohort in enumerate(cohorts):
        directions = {}
        for c in cohort:
            local = local_steps(
                clients, draw, gamma=gamma, H=H[c], theta=theta, xi=xi[c], c=c, t=t, repetition=repetition
            )
            directions[c] = [(theta[j] - local[j]) / (gamma * H[c]) for j in range(d)]
        mean = mean_over(cohort, clients.weights, directions)
        theta = [theta[j] - gamma * usual * mean[j] for j in range(d)]
        for c in cohort:
            xi[c] = [xi[c][j] - (directions[c][j] - mean[j]) for j in range(d)]
        iterates.append(theta)
    return Result(theta, xi, iterates)


def two_sided(
    clients: Clients, draw: Draw, *, gamma: float, H: int, eta: float, cohorts: list[list[int]], theta: Vector,
    repetition: int = 0,
) -> Result:  # fmt: skip
    """Karimireddy et al. 2020, Algorithm 1 with option II; 1/N becomes the client's weight."""
    d, w = len(theta), clients.weights
    own = [[0.0] * d for _ in w]
    server = [0.0] * d
    iterates = [theta]
    for t, cohort in enumerate(cohorts):
        local, new = {}, {}
        for c in cohort:
            xi = [server[j] - own[c][j] for j in range(d)]
            local[c] = local_steps(
                clients, draw, gamma=gamma, H=H, theta=theta, xi=xi, c=c, t=t, repetition=repetition
            )
            new[c] = [own[c][j] - server[j] + (theta[j] - local[c][j]) / (gamma * H) for j in range(d)]
        mean = mean_over(cohort, w, local)
        server = [server[j] + math.fsum(w[c] * (new[c][j] - own[c][j]) for c in cohort) for j in range(d)]
        theta = [theta[j] + eta * (mean[j] - theta[j]) for j in range(d)]
        for c in cohort:
            own[c] = new[c]
        iterates.append(theta)
    return Result(theta, [[server[j] - own[c][j] for j in range(d)] for c in range(len(w))], iterates)


def proxskip(
    clients: Clients,
    draw: Draw,
    *,
    gamma: float,
    p: float,
    lengths: Sequence[int],
    theta: Vector,
    repetition: int = 0,
) -> Result:
    """Mishchenko et al. 2022, Algorithm 2 (Scaffnew), given after how many steps each communication comes."""
    d, N = len(theta), len(clients.weights)
    h = [[0.0] * d for _ in range(N)]  # their sign: −ξ
    iterates = [theta]
    for t, H in enumerate(lengths):
        hat = {}
        for c in range(N):
            minus = [-value for value in h[c]]
            hat[c] = local_steps(
                clients, draw, gamma=gamma, H=H, theta=theta, xi=minus, c=c, t=t, repetition=repetition
            )
        shifted = {c: [hat[c][j] - gamma / p * h[c][j] for j in range(d)] for c in hat}
        theta = mean_over(range(N), clients.weights, shifted)
        h = [[h[c][j] + p / gamma * (theta[j] - hat[c][j]) for j in range(d)] for c in range(N)]
        iterates.append(theta)
    return Result(theta, [[-value for value in row] for row in h], iterates)


def fedlin(
    clients: Clients, draw: Draw, *, gamma: float, H: int, T: int, full: bool, theta: Vector, repetition: int = 0
) -> Result:
    """Mitra et al. 2021: corrected by gradients at θ, on all records or on the batch after the last step's."""
    d, N = len(theta), len(clients.weights)
    iterates = [theta]
    for t in range(T):
        rows = [range(len(clients.targets[c])) if full else draw(repetition, t, c, H) for c in range(N)]
        at_theta = {c: gradient_of_batch(clients, c, theta, rows[c]) for c in range(N)}
        mean = mean_over(range(N), clients.weights, at_theta)
        local = {}
        for c in range(N):
            xi = [mean[j] - at_theta[c][j] for j in range(d)]
            local[c] = local_steps(
                clients, draw, gamma=gamma, H=H, theta=theta, xi=xi, c=c, t=t, repetition=repetition
            )
        theta = mean_over(range(N), clients.weights, local)
        iterates.append(theta)
    return Result(theta, [[0.0] * d for _ in range(N)], iterates)


def fedprox(
    clients: Clients, draw: Draw, *, gamma: float, mu: float, H: int, cohorts: list[list[int]], theta: Vector,
    repetition: int = 0,
) -> Result:  # fmt: skip
    """Li et al. 2020, Algorithm 2, its inexact minimisation of F_k(w) + μ/2 ‖w − w_t‖² by H gradient steps."""
    d = len(theta)
    iterates = [theta]
    for t, cohort in enumerate(cohorts):
        local = {}
        for c in cohort:
            w = list(theta)
            for h in range(H):
                g = gradient_of_batch(clients, c, w, draw(repetition, t, c, h))
                w = [w[j] - gamma * (g[j] + mu * (w[j] - theta[j])) for j in range(d)]
            local[c] = w
        theta = mean_over(cohort, clients.weights, local)
        iterates.append(theta)
    return Result(theta, [[0.0] * d for _ in clients.weights], iterates)


def fedsplit(
    clients: Clients, draw: Draw, *, gamma: float, s: float, H: int, T: int, theta: Vector, repetition: int = 0
) -> Result:
    """Pathak & Wainwright 2020, Algorithm 1, with H gradient steps from x for each proximal step.

    z_j^half = prox_{s f_j}(2x − z_j), approximately; z_j ← z_j + 2(z_j^half − x); x ← mean z_j. The library keeps
    ξ_j = (z_j − x)/s.
    """
    N, d = len(clients.weights), len(theta)
    x, z = list(theta), {c: list(theta) for c in range(N)}
    iterates = [theta]
    for t in range(T):
        for c in range(N):
            centre = [2 * x[j] - z[c][j] for j in range(d)]
            half = list(x)
            for h in range(H):
                g = gradient_of_batch(clients, c, half, draw(repetition, t, c, h))
                half = [half[j] - gamma * (g[j] + (half[j] - centre[j]) / s) for j in range(d)]
            z[c] = [z[c][j] + 2 * (half[j] - x[j]) for j in range(d)]
        x = mean_over(range(N), clients.weights, z)
        iterates.append(x)
    return Result(x, [[(z[c][j] - x[j]) / s for j in range(d)] for c in range(N)], iterates)


Compress = Callable[[Vector, int, int, int], Vector]  # (vector, repetition, round, client) → what arrives


def scallion(
    clients: Clients, draw: Draw, *, gamma: float, H: int, alpha: float, compress: Compress,
    cohorts: list[list[int]], theta: Vector, repetition: int = 0, server_levels: int | None = None,
) -> Result:  # fmt: skip
    """Huang, Li & Li 2023, SCALLION with η_g = 1; 1/N becomes the client's weight.

    With `server_levels`, `server` is what clients know of the mean of all c_i: each round moves it by the rounded
    difference to that mean, and θ goes −γH along it.
    """
    d, w = len(theta), clients.weights
    own = [[0.0] * d for _ in w]
    server = [0.0] * d
    iterates = [theta]
    for t, cohort in enumerate(cohorts):
        delta = {}
        for c in cohort:
            y = list(theta)
            for h in range(H):
                g = gradient_of_batch(clients, c, y, draw(repetition, t, c, h))
                y = [y[j] - gamma * (g[j] - own[c][j] + server[j]) for j in range(d)]
            increment = [alpha * ((theta[j] - y[j]) / (gamma * H) - server[j]) for j in range(d)]
            delta[c] = compress(increment, repetition, t, c)
        for c in cohort:
            own[c] = [own[c][j] + delta[c][j] for j in range(d)]
        if server_levels is None:
            mean = mean_over(cohort, w, delta)
            theta = [theta[j] - gamma * H * (mean[j] + server[j]) for j in range(d)]
            server = [server[j] + math.fsum(w[c] * delta[c][j] for c in cohort) for j in range(d)]
        else:
            exact = mean_over(range(len(w)), w, dict(enumerate(own)))
            told = nearest([exact[j] - server[j] for j in range(d)], server_levels)
            server = [server[j] + told[j] for j in range(d)]
            theta = [theta[j] - gamma * H * server[j] for j in range(d)]
        iterates.append(theta)
    return Result(theta, [[server[j] - own[c][j] for j in range(d)] for c in range(len(w))], iterates)


def tamuna(
    clients: Clients, draw: Draw, *, gamma: float, p: float, s: int, lengths: Sequence[int],
    cohorts: list[list[int]], owners: Callable[[int, int], list[int]], theta: Vector, repetition: int = 0,
) -> Result:  # fmt: skip
    """Condat et al. 2023, Algorithm 1 with η = pχ; owners(t, j) are the s clients that send coordinate j."""
    d, w, n = len(theta), clients.weights, len(clients.weights)
    chi = n * (s - 1) / (s * (n - 1))
    h = [[0.0] * d for _ in w]  # their sign: −ξ
    iterates = [theta]
    for t, (L, cohort) in enumerate(zip(lengths, cohorts, strict=True)):
        x = {}
        for c in cohort:
            minus = [-value for value in h[c]]
            x[c] = local_steps(
                clients, draw, gamma=gamma, H=L, theta=theta, xi=minus, c=c, t=t, repetition=repetition
            )
        new = list(theta)
        for j in range(d):
            who = owners(t, j)
            new[j] = math.fsum(w[c] * x[c][j] for c in who) / math.fsum(w[c] for c in who)
            for c in who:
                h[c][j] += p * chi / gamma * (new[j] - x[c][j])
        theta = new
        iterates.append(theta)
    return Result(theta, [[-value for value in row] for row in h], iterates)


def amplified_scaffold(
    clients: Clients, draw: Draw, *, eta: float, K: int, P: int, a: float, cohorts: list[list[int]], theta: Vector,
    repetition: int = 0,
) -> Result:  # fmt: skip
    """Crawshaw & Liu 2024, Algorithm 1: windows of P rounds, control variates G_i from the window's gradients."""
    N, d, w = len(clients.weights), len(theta), clients.weights
    G = [[0.0] * d for _ in range(N)]
    x, iterates = list(theta), [theta]
    begin = list(x)
    seen: dict[int, list[Vector]] = {}
    for r, cohort in enumerate(cohorts):
        mean_G = mean_over(range(N), w, dict(enumerate(G)))
        local = {}
        for i in cohort:
            y, gradients = list(x), []
            for k in range(K):
                g = gradient_of_batch(clients, i, y, draw(repetition, r, i, k))
                gradients.append(g)
                y = [y[j] - eta * (g[j] - G[i][j] + mean_G[j]) for j in range(d)]
            local[i] = y
            seen.setdefault(i, []).append([math.fsum(g[j] for g in gradients) / K for j in range(d)])
        x = mean_over(cohort, w, local)
        if (r + 1) % P == 0:
            x = [begin[j] + a * (x[j] - begin[j]) for j in range(d)]
            begin = list(x)
            for i, each in seen.items():
                G[i] = [math.fsum(g[j] for g in each) / len(each) for j in range(d)]
            seen = {}
        iterates.append(x)
    mean_G = mean_over(range(N), w, dict(enumerate(G)))
    return Result(x, [[mean_G[j] - G[i][j] for j in range(d)] for i in range(N)], iterates)


def local_svrg(
    clients: Clients, draw: Draw, *, gamma: float, H: int, T: int, theta: Vector, repetition: int = 0
) -> Result:
    """Gorbunov, Hanzely & Richtárik 2021, S-Local-SVRG; the reference point y is renewed at each communication."""
    N, d, w = len(clients.weights), len(theta), clients.weights
    iterates = [theta]
    for t in range(T):
        y = list(theta)
        full = {c: gradient_of_batch(clients, c, y, range(len(clients.targets[c]))) for c in range(N)}
        whole = mean_over(range(N), w, full)
        local = {}
        for c in range(N):
            x = list(theta)
            for h in range(H):
                rows = draw(repetition, t, c, h)
                here, there = gradient_of_batch(clients, c, x, rows), gradient_of_batch(clients, c, y, rows)
                x = [x[j] - gamma * (here[j] - there[j] + whole[j]) for j in range(d)]
            local[c] = x
        theta = mean_over(range(N), w, local)
        iterates.append(theta)
    return Result(theta, [[0.0] * d for _ in range(N)], iterates)


def vr_proxskip(
    clients: Clients, draw: Draw, *, gamma: float, p: float, lengths: Sequence[int], theta: Vector,
    repetition: int = 0,
) -> Result:  # fmt: skip
    """Malinovsky, Yi & Richtárik 2022, ProxSkip-VR with SVRG, whose y is the last common model."""
    N, d, w = len(clients.weights), len(theta), clients.weights
    h = [[0.0] * d for _ in range(N)]  # their sign: −ξ
    iterates = [theta]
    for t, L in enumerate(lengths):
        y, hat = list(theta), {}
        for c in range(N):
            full = gradient_of_batch(clients, c, y, range(len(clients.targets[c])))
            x = list(theta)
            for step in range(L):
                rows = draw(repetition, t, c, step)
                here, there = gradient_of_batch(clients, c, x, rows), gradient_of_batch(clients, c, y, rows)
                x = [x[j] - gamma * (here[j] - there[j] + full[j] - h[c][j]) for j in range(d)]
            hat[c] = x
        shifted = {c: [hat[c][j] - gamma / p * h[c][j] for j in range(d)] for c in range(N)}
        theta = mean_over(range(N), w, shifted)
        h = [[h[c][j] + p / gamma * (theta[j] - hat[c][j]) for j in range(d)] for c in range(N)]
        iterates.append(theta)
    return Result(theta, [[-value for value in row] for row in h], iterates)


def randprox(
    clients: Clients, draw: Draw, *, gamma: float, p: float, lengths: Sequence[int],
    sent: Callable[[int], Sequence[int]], theta: Vector, repetition: int = 0,
) -> Result:  # fmt: skip
    """Condat & Richtárik 2022, RandProx-FL, step by step.

    x̂_i = x_i − γ∇f_i(x_i) − γu_i; d_i = R(x̂_i) − mean R(x̂_i); x_i = x̂_i − d_i/(1 + ω); u_i += d_i/(γ(1 +
    ω)²), where R(v) is v/(p k/d) on the k coordinates sent(t) at the t-th communication, and 0 elsewhere and
    between them.
    """
    N, d, w = len(clients.weights), len(theta), clients.weights
    x, u = [list(theta) for _ in range(N)], [[0.0] * d for _ in range(N)]
    server, iterates = list(theta), [theta]
    for t, L in enumerate(lengths):
        k = len(sent(t))
        one_plus_omega = d / (p * k)
        for step in range(L):
            hat = []
            for c in range(N):
                g = gradient_of_batch(clients, c, x[c], draw(repetition, t, c, step))
                hat.append([x[c][j] - gamma * g[j] - gamma * u[c][j] for j in range(d)])
            x = hat
        for j in sent(t):
            mean = math.fsum(w[c] * x[c][j] for c in range(N))
            difference = [one_plus_omega * (x[c][j] - mean) for c in range(N)]
            for c in range(N):
                x[c][j] -= difference[c] / one_plus_omega
                u[c][j] += difference[c] / (gamma * one_plus_omega**2)
            server[j] = mean
        iterates.append(list(server))
    return Result(server, u, iterates)


def apda(
    clients: Clients, draw: Draw, *, gamma: float, L: float, mu: float, H: int, T: int, theta: Vector,
    repetition: int = 0,
) -> Result:  # fmt: skip
    """Sadiev, Kovalev & Richtárik 2022, APDA with inexact prox; K takes the mean over clients away.

    x̂ ≈ argmin G(x) + ‖x − (x − η_x Kᵀȳ)‖²/(2η_x) by H gradient steps from x, and G' = −Kᵀȳ − (x̂ − x)/η_x in
    place of ∇G(x̂), so that x ← x̂; y ← y + η_y K x̂ − η_y β_y K(Kᵀy + G'), ȳ = y + θ(y − y_before), with η_x =
    1/√(Lμ), η_y = √(Lμ), β_y = 1/(2L), θ = 1 − √(μ/L). The server's model is the mean of x̂ − β_y G'.
    """
    N, d, w = len(clients.weights), len(theta), clients.weights
    eta_x, eta_y, beta = 1 / math.sqrt(L * mu), math.sqrt(L * mu), 1 / (2 * L)
    x = {c: list(theta) for c in range(N)}
    y, bar = ({c: [0.0] * d for c in range(N)} for _ in range(2))
    iterates = [theta]

    def centred(vectors: dict[int, Vector]) -> dict[int, Vector]:
        mean = mean_over(range(N), w, vectors)
        return {c: [v[j] - mean[j] for j in range(d)] for c, v in vectors.items()}

    for t in range(T):
        hat = {}
        for c in range(N):
            v = list(x[c])
            for h in range(H):
                g = gradient_of_batch(clients, c, v, draw(repetition, t, c, h))
                v = [v[j] - gamma * (g[j] + bar[c][j] + (v[j] - x[c][j]) / eta_x) for j in range(d)]
            hat[c] = v
        slope = {c: [-bar[c][j] - (hat[c][j] - x[c][j]) / eta_x for j in range(d)] for c in range(N)}
        primal = centred(hat)
        dual = centred({c: [y[c][j] + slope[c][j] for j in range(d)] for c in range(N)})
        new = {c: [y[c][j] + eta_y * primal[c][j] - eta_y * beta * dual[c][j] for j in range(d)] for c in range(N)}
        momentum = 1 - math.sqrt(mu / L)
        bar = {c: [new[c][j] + momentum * (new[c][j] - y[c][j]) for j in range(d)] for c in range(N)}
        theta = mean_over(range(N), w, {c: [hat[c][j] - beta * slope[c][j] for j in range(d)] for c in range(N)})
        x, y = hat, new
        iterates.append(theta)
    return Result(theta, [bar[c] for c in range(N)], iterates)


def shared_coordinates(seed: int, repetition: int, round: int, k: int, d: int) -> list[int]:
    """The coordinates that all clients send in a round: those with the smallest words."""
    words = [word(seed, SLOT + repetition, round, SERVER, j) for j in range(d)]
    return sorted(range(d), key=lambda j: words[j])[:k]


SLOT = 2**31  # added to the repetition: the words for messages


def owners_of(seed: int, repetition: int, round: int, cohort: list[int], s: int, j: int) -> list[int]:
    """Whose masks keep coordinate j: columns are in the order of random words, and j's are the s from sj on."""
    c = len(cohort)
    words = [word(seed, SLOT + repetition, round, SERVER, i) for i in range(c)]
    order = sorted(range(c), key=lambda i: words[i])
    return sorted(cohort[order[(s * j + k) % c]] for k in range(s))


def compressing(seed: int, kind: str, setting: float) -> Compress:
    """Compressors with the random words that the library documents."""

    def compress(v: Vector, repetition: int, round: int, client: int) -> Vector:
        d = len(v)
        words = [word(seed, SLOT + repetition, round, client, j) for j in range(d)]
        uniform = [(u + 0.5) / 2**32 for u in words]
        if kind == "random_k":
            kept = sorted(range(d), key=lambda j: words[j])[: math.ceil(setting * d)]
            return [v[j] * d / len(kept) if j in kept else 0.0 for j in range(d)]
        if kind == "top_k":
            kept = sorted(range(d), key=lambda j: -abs(v[j]))[: math.ceil(setting * d)]
            return [v[j] if j in kept else 0.0 for j in range(d)]
        if kind == "natural":
            lower = [2.0 ** math.floor(math.log2(abs(x))) if x else 0.0 for x in v]
            up = [abs(x) - low > u * low for x, low, u in zip(v, lower, uniform, strict=True)]
            return [math.copysign(low * (2 if b else 1), x) for x, low, b in zip(v, lower, up, strict=True)]
        found: Vector = []
        for begin in range(0, d, 64):
            part = v[begin : begin + 64]
            norm = math.sqrt(math.fsum(x * x for x in part))
            for x, u in zip(part, uniform[begin:], strict=False):
                exact = setting * abs(x) / norm
                level = math.floor(exact) + (exact - math.floor(exact) > 1 - u)
                found.append(math.copysign(norm * level / setting, x))
        return found

    return compress


def nearest(v: Vector, levels: int) -> Vector:
    """Each number as the nearest multiple of ‖v‖/levels; for vectors of one bucket."""
    assert len(v) <= 64
    norm = math.sqrt(math.fsum(x * x for x in v))
    return [math.copysign(norm * math.floor(levels * abs(x) / norm + 0.5) / levels, x) if norm else 0.0 for x in v]


SERVER = 2**32 - 1


def cohort(seed: int, repetition: int, round: int, count: int, n_clients: int) -> list[int]:
    """Who takes part in a round."""
    left = list(range(n_clients))
    for b in range(count):
        j = b + word(seed, repetition, round, SERVER, 4 + b) * (n_clients - b) // 2**32
        left[b], left[j] = left[j], left[b]
    return sorted(left[:count])


def length(seed: int, repetition: int, round: int, p: float) -> int:
    """After how many steps ProxSkip communicates: coins are tossed with one uniform number, digit by digit."""
    chance, left, steps = (word(seed, repetition, round, SERVER, 0) + 0.5) / 2**32, 1.0, 0
    while chance < left:
        left *= 1.0 - p
        steps += 1
    return steps


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


# Temporal differences: the environment as plain lists


@dataclass
class Environment:
    """A client's chain: from state s to successors[s][k] with probability kernel[s][k], for reward rewards[s]."""

    successors: list[list[int]]
    kernel: Matrix
    rewards: Vector


def stationary_law(environment: Environment) -> Vector:
    """μ, by following the lazy chain (stay or go, a half each) until nothing changes."""
    states = len(environment.rewards)
    law = [1.0 / states] * states
    for _ in range(100_000):
        after = [mass / 2 for mass in law]
        for s, mass in enumerate(law):
            for following, chance in zip(environment.successors[s], environment.kernel[s], strict=True):
                after[following] += mass * chance / 2
        if max(abs(a - b) for a, b in zip(after, law, strict=True)) < 1e-17:
            return after
        law = after
    raise AssertionError("the chain does not settle")


def temporal_differences(
    environments: list[Environment], features: Matrix, discount: float, weights: Vector, *, mean: bool
) -> Systems:
    """Each transition (s, k) as a system φ(s)(φ(s) − λφ(s'))ᵀ, r(s)φ(s), or only their mean under μ(s)P(s, k)."""
    matrices, rights = [], []
    for environment in environments:
        law = stationary_law(environment)
        own_matrices, own_rights, shares = [], [], []
        for s, phi in enumerate(features):
            for k, following in enumerate(environment.successors[s]):
                change = [a - discount * b for a, b in zip(phi, features[following], strict=True)]
                own_matrices.append([[a * b for b in change] for a in phi])
                own_rights.append([environment.rewards[s] * a for a in phi])
                shares.append(law[s] * environment.kernel[s][k])
        if mean:
            d = range(len(features[0]))
            pairs = list(zip(shares, own_matrices, strict=True))
            own_matrices = [[[math.fsum(p * A[i][j] for p, A in pairs) for j in d] for i in d]]
            own_rights = [[math.fsum(p * b[i] for p, b in zip(shares, own_rights, strict=True)) for i in d]]
        matrices.append(own_matrices)
        rights.append(own_rights)
    return Systems("td", matrices, rights, 0.0, weights)


def first_above(shares: Vector, u: int) -> int:
    """The index whose interval, its share of 2³² words, the word u falls into."""
    total = 0.0
    for i, share in enumerate(shares[:-1]):
        total += share
        if u < round(total * 2**32):
            return i
    return len(shares) - 1


def drawing_transitions(seed: int, environments: list[Environment], batch_size: int, sampling: str) -> Draw:
    """The transitions that a run uses: each by itself, or one stretch of the stationary chain in each round."""
    laws = [stationary_law(environment) for environment in environments]

    def draw(repetition: int, round: int, client: int, step: int) -> list[int]:
        environment, law = environments[client], laws[client]
        pairs = [(s, k) for s in range(len(law)) for k in range(len(environment.kernel[s]))]
        shares = [law[s] * environment.kernel[s][k] for s, k in pairs]
        drawn: list[int] = []
        for position in range((step + 1) * batch_size):  # a stretch is followed from its first transition on
            u = word(seed, repetition, round, client, position)
            if sampling == "iid" or position == 0:
                drawn.append(first_above(shares, u))
            else:
                s, k = pairs[drawn[-1]]
                state = environment.successors[s][k]
                drawn.append(pairs.index((state, first_above(environment.kernel[state], u))))
        return drawn[step * batch_size :]

    return draw


def clipped(vector: Vector, norm: float) -> Vector:
    """The vector, shortened to a norm where it is longer."""
    length = math.sqrt(math.fsum(v * v for v in vector))
    return vector if length <= norm else [v * norm / length for v in vector]


def noise_number(seed: int, repetition: int, round: int, client: int, place: int) -> float:
    """Number `place` of the noise that the library documents."""
    block, i = 8 * (place // 128) + place % 8, place // 8 % 16
    words = philox((block, round, client, repetition), (seed % 2**32, seed // 2**32))
    total = 0.0
    for j in range(16):
        u = (words[j // 4] // 256 ** (j % 4) % 256 + 0.5) / 128 - 1.0
        y = -4.078134140713756 * u + 54.78427992632026 * u**3 - 138.3078491904034 * u**5 + 91.16643292704707 * u**7
        total += -y if (bin(i & j).count("1") + bin(i & i // 2).count("1")) % 2 else y
    return total / 4.0


RECORD_KEY, CLIENT_KEY = 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A


def private_scaffold(
    clients: Clients, draw: Draw, *, gamma: float, H: int, T: int, theta: Vector, seed: int, repetition: int = 0,
    record: tuple[float, float] | None = None, client: tuple[float, float] | None = None, remember: bool = True,
) -> Result:  # fmt: skip
    """Scaffold, or without memory FedAvg, with (clip, noise multiplier) of records or of clients' messages."""
    N, d, w = len(clients.features), len(theta), clients.weights
    xi = [[0.0] * d for _ in range(N)]
    iterates = [theta]
    for t in range(T):
        sent = []
        for c in range(N):
            local = list(theta)
            for h in range(H):
                rows = draw(repetition, t, c, h)
                if record is None:
                    g = gradient_of_batch(clients, c, local, rows)
                else:
                    clip, noise = record
                    records = [(clients.features[c][i], clients.targets[c][i]) for i in rows]
                    each = [clipped(gradient_of_record(clients.kind, local, x, y), clip) for x, y in records]
                    drawn = [noise_number(seed ^ RECORD_KEY, repetition, t, c, h * d + j) for j in range(d)]
                    noisy = [math.fsum(one[j] for one in each) + noise * clip * drawn[j] for j in range(d)]
                    g = [noisy[j] / len(rows) + clients.l2 * local[j] for j in range(d)]
                local = [local[j] - gamma * (g[j] + xi[c][j]) for j in range(d)]
            if client is not None:
                clip, noise = client
                change = clipped([local[j] - theta[j] for j in range(d)], clip)
                drawn = [noise_number(seed ^ CLIENT_KEY, repetition, t, c, j) for j in range(d)]
                local = [theta[j] + change[j] + noise * clip * drawn[j] for j in range(d)]
            sent.append(local)
        theta = [math.fsum(w[c] * sent[c][j] for c in range(N)) for j in range(d)]
        if remember:
            xi = [[xi[c][j] + (sent[c][j] - theta[j]) / (gamma * H) for j in range(d)] for c in range(N)]
        iterates.append(theta)
    return Result(theta, xi, iterates)


def gradient_scaffold_in_sums(
    clients: Clients, draw: Draw, *, gamma: float, H: int, T: int, theta: Vector, seed: int, clip: float,
    scales: Vector,
) -> Result:  # fmt: skip
    """Scaffold that sends sums of gradients, clipped and with parts of the noise, which no client remembers."""
    N, d, w = len(clients.features), len(theta), clients.weights
    xi = [[0.0] * d for _ in range(N)]
    iterates = [theta]
    for t in range(T):
        known, noisy = [], []
        for c in range(N):
            local, summed = list(theta), [0.0] * d
            for h in range(H):
                g = gradient_of_batch(clients, c, local, draw(0, t, c, h))
                local = [local[j] - gamma * (g[j] + xi[c][j]) for j in range(d)]
                summed = [summed[j] - gamma * g[j] for j in range(d)]
            known.append(clipped(summed, clip))
            drawn = [noise_number(seed ^ CLIENT_KEY, 0, t, c, j) for j in range(d)]
            noisy.append([known[c][j] + scales[c] * drawn[j] for j in range(d)])
        step = [math.fsum(w[c] * noisy[c][j] for c in range(N)) for j in range(d)]
        theta = [theta[j] + step[j] for j in range(d)]
        xi = [[(known[c][j] - step[j]) / (gamma * H) for j in range(d)] for c in range(N)]
        iterates.append(theta)
    return Result(theta, xi, iterates)

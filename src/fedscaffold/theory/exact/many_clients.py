"""Scaffold and FedAvg with all clients on quadratic losses with symmetric Hessians, for any number of clients.

With η_c = θ + γHξ_c − (θ* + γHξ*_c), a round of Scaffold around θ* is

    η_c⁺ = C̃_c η_c + (Γ_c^H − C̃_c) θ − γ e_c,     θ = Σ_c w_c η_c,     C̃_c = I − (1/H) Σ_{h<H} Γ_c^h,

so that θ feels client c only through (z − C̃_c)⁻¹. Interpolating 1/(z − c) in log(1 − c) at M Chebyshev points
c_m, with Φ_m(C̃_c) the m-th Lagrange function of C̃_c, gives θ = Σ_m ζ_m with

    ζ_m⁺ = c_m ζ_m + J_m θ − γ ε_m,     J_m = Σ_c w_c Φ_m(C̃_c) (Γ_c^H − C̃_c),     ε_m = Σ_c w_c Φ_m(C̃_c) e_c:

M·d states, M about ten, in place of N·d. The noise e_c of a round has the covariance Q_c of what H steps gather,
an affine function of the second moments of the local models, to which it adds itself. FedAvg has the one state θ.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.exact.dense import LARGEST, doubled, doubled_powers, no_plateau, solve, transposed
from fedscaffold.theory.exact.local_steps import Powers, Steps, accumulate, mean_path, steps
from fedscaffold.theory.exact.quadratic import Quadratic

CLIENTS_AT_ONCE = 128  # in products of M·d × d matrices, which then stay in the processor's cache


@dataclass(frozen=True, eq=False)
class System:
    """x_m⁺ = c_m x_m + J_m θ plus noise, θ = Σ_m x_m: the states that θ follows from."""

    c: Array  # (M,)
    J: Array  # (M, d, d)

    @cached_property
    def matrix(self) -> Array:
        """The map of a round, (M d, M d)."""
        return self.times(np.eye(self.J.shape[0] * self.J.shape[1]))

    def times(self, P: Array) -> Array:
        """Return the map of a round times P, (M d, k)."""
        M, d, _ = self.J.shape
        blocks = P.reshape(M, d, -1)
        return (self.c[:, None, None] * blocks + self.J @ blocks.sum(axis=0)).reshape(P.shape)

    def with_theta(self, P: Array) -> Array:
        """Return Cov(x_m, θ), (M, d, d), given Cov x."""
        M, d, _ = self.J.shape
        return np.asarray(P.reshape(M, d, M, d).sum(axis=2))

    def cov_theta(self, P: Array) -> Array:
        """Return Cov θ, (d, d), given Cov x."""
        return np.asarray(self.with_theta(P).sum(axis=0))

    @cached_property
    def powers(self) -> list[Array]:
        """The map of a round, its square, the square's square, ...; NoPlateau if rounds grow."""
        return doubled_powers(self.matrix)

    def lyapunov(self, noise: Array) -> Array:
        """Return the stationary Cov x for the covariance of a round's noise."""
        P = doubled(self.powers, noise)
        return 0.5 * (P + P.T)


@dataclass(frozen=True, eq=False)
class Noise:
    """The noise of a round, in the clients' eigenbases."""

    many: "ManyClients"
    nodes: Array  # covariance of a stochastic gradient at the nodes, (N, m, d, d)

    @cached_property
    def gathered(self) -> Array:
        """Q_c, (N, d, d)."""
        many, found = self.many, np.empty_like(self.many.q.matrices)
        for part in many.parts():
            found[part] = accumulate(many.steps, many.powers[part], self.nodes[part], [many.H])[:, 0]
        return found

    @cached_property
    def input(self) -> Array:
        """Its covariance in the states."""
        return self.many.input(self.gathered)


@dataclass(frozen=True, eq=False)
class Law:
    """The law of θ and η_c: covariances of the states, and of each client's with θ, in the clients' eigenbases."""

    P: Array  # Cov x, (n d, n d)
    cov_theta: Array  # (d, d)
    theta_eta: Array  # Cov(θ, η_c), (N, d, d)
    eta: Array  # Cov η_c, (N, d, d)
    with_states: Array | None = None  # Cov(x, η_c), (N, M d, d): on the way to the plateau


@dataclass(frozen=True, eq=False)
class ManyClients:
    """Scaffold (or FedAvg) with all clients and one number of local steps."""

    q: Quadratic
    factors: Array  # variance of each client's batch mean over that of one record, (N,)
    gamma: float
    H: int
    scaffold: bool  # whether clients keep control variates
    own: Array  # weight of a client's noise in the mean, w_c; less if it stands for many clients, (N,)

    @cached_property
    def tolerance(self) -> float:
        """Relative error of the plateau, about; small if that takes little work."""
        return 1e-7 if self.q.slopes.size <= LARGEST else 1e-4

    @cached_property
    def powers(self) -> Powers:
        """Powers of I − γ∇²f_c; NoPlateau if some client's rounds grow."""
        found = Powers.of(self.q.eigen[1], self.q.eigen[0], self.gamma, self.H)
        if not np.isfinite(found.gH).all() or (
            self.scaffold and not (found.delta.min() > 0.0 < 2.0 - found.delta.max())
        ):
            raise no_plateau(np.inf)
        return found

    @cached_property
    def steps(self) -> Steps:
        """Nodes of a round; along FedAvg's, whose clients drift apart, noise changes more."""
        tolerance = self.tolerance if self.scaffold else 0.1 * self.tolerance
        lam, step = self.q.eigen[0], np.eye(self.q.optimum.size) - self.gamma * self.q.matrices
        moments = step @ step + self.gamma**2 * self.factors[:, None, None] * self.q.covariances_of_unit
        growth = float(np.linalg.eigvalsh(moments).max())
        return steps(self.gamma, self.H, float(lam.min()), float(lam.max()), growth, tolerance)

    @cached_property
    def reach(self) -> Array:
        """Γ_c^H − C̃_c in the eigenbases, (N, d)."""
        return self.powers.gH - 1.0 + self.powers.delta

    # covariances

    @cached_property
    def points(self) -> Array:
        """Chebyshev points log(1 − c_m), (M,)."""
        x = np.log(self.powers.delta)
        return chebyshev(float(x.min()), float(x.max()), 0.1 * self.tolerance)

    def shares(self, part: slice) -> Array:
        """Return Φ_m(C̃_c) of some clients in their eigenbases, (M, k, d)."""
        return lagrange(self.points, np.log(self.powers.delta[part]))

    @cached_property
    def system(self) -> System:
        """The states that θ follows from: FedAvg's θ, or the M that take the place of all η_c."""
        own, w, d = self.powers, self.q.weights, self.q.optimum.size
        if not self.scaffold:
            return System(np.zeros(1), np.tensordot(w, own.matrices(own.gH), axes=1)[None])
        M = self.points.size
        J = np.zeros((M, d, d))
        for part in self.parts():
            phi = self.shares(part) * w[part, None] * self.reach[part]
            U = own.U[part].swapaxes(0, 1)  # (d, k, d)
            J += ((phi[:, None] * U).reshape(M * d, -1) @ U.reshape(d, -1).T).reshape(M, d, d)
        return System(1.0 - np.exp(self.points), J)

    def parts(self) -> list[slice]:
        """Return slices of clients that are worked on at once."""
        return [slice(k, k + CLIENTS_AT_ONCE) for k in range(0, self.q.weights.size, CLIENTS_AT_ONCE)]

    def input(self, Q: Array) -> Array:
        """Return the covariance of a round's noise in the states, (M d, M d), for Q_c in the eigenbases."""
        own, w, d = self.powers, self.q.weights * self.own, self.q.optimum.size
        size = self.system.c.size * d
        total = np.zeros((size, size))
        for part in self.parts():
            U = own.U[part].swapaxes(0, 1)  # (d, k, d)
            K = self.shares(part)[:, None] * U if self.scaffold else U[None]  # Φ_m(C̃_c) U_c, (M, d, k, d)
            K = np.ascontiguousarray(K.reshape(size, -1, d).swapaxes(0, 1))
            right = K @ (w[part, None, None] * Q[part])
            total += right.swapaxes(0, 1).reshape(size, -1) @ K.swapaxes(0, 1).reshape(size, -1).T
        return self.gamma**2 * 0.5 * (total + total.T)

    def law(self, P: Array, Q: Array) -> Law:
        """Return Cov(θ, η_c) and Cov η_c on the plateau with given Cov x and Q_c."""
        own, system, cov_theta = self.powers, self.system, self.system.cov_theta(P)
        if not self.scaffold:
            return Law(P, cov_theta, np.zeros_like(Q), np.zeros_like(Q))
        c, (M, d, _) = system.c, system.J.shape
        shares = 1.0 / (1.0 - c[:, None] * c[None, :])
        loops = np.eye(d) - c[:, None, None] * np.tensordot(shares, system.J, axes=1)
        gains = np.linalg.inv(loops)  # E (I − c_k A)⁻¹ = S_k [I/(1 − c_k c_1) ...]: A is diagonal plus rank d
        with_theta = system.with_theta(P)
        ahead = c[:, None, None] * with_theta + system.J @ cov_theta
        pushes = (gains @ np.tensordot(shares, ahead, axes=1)).reshape(M * d, d)
        gains = gains.reshape(M * d, d)
        theta_eta = np.empty_like(Q)
        own_c = 1.0 - own.delta
        shares = 1.0 / (1.0 - own_c[:, :, None] * own_c[:, None, :])
        for part in self.parts():
            U = own.U[part]
            noise = U @ (self.gamma**2 * self.own[part, None, None] * Q[part] * shares[part])
            both = gains @ noise.swapaxes(0, 1).reshape(d, -1)
            both += pushes @ (U * self.reach[part][:, None, :]).swapaxes(0, 1).reshape(d, -1)
            mixed = (both.reshape(M, d, -1, d) * self.shares(part)[:, None]).sum(axis=0)  # (d, k, d)
            theta_eta[part] = transposed(U) @ mixed.swapaxes(0, 1)
        fed = self.reach[:, :, None] * theta_eta * own_c[:, None, :]
        theta = self.reach[:, :, None] * (transposed(own.U) @ cov_theta @ own.U) * self.reach[:, None, :]
        return Law(P, cov_theta, theta_eta, (fed + transposed(fed) + theta + self.gamma**2 * Q) * shares)

    # noise

    def observed(self, law: Law, means: tuple[Array, Array], nodes: Array | None) -> Noise:
        """Return the noise of a round whose start has this law, given the noise of its steps (None for none).

        `means` are E θ − θ* and E ξ_c − ξ*_c, in the original basis. Local models are
        θ_c^h = (Γ^h + K_h/γH) θ − (K_h/γH) η_c − γ Σ_{k<h} Γ^{h−1−k} ε(k), with K_h = γ Σ_{k<h} Γ^k.
        """
        found = np.empty((*self.q.slopes.shape[:1], len(self.steps.nodes), *self.q.matrices.shape[1:]))
        for block in self.q.blocks:
            at = block.clients
            second = self.moments(at, law, means, None if nodes is None else nodes[at])
            found[at] = self.factors[at, None, None, None] * block.covariances(second, self.powers.U[at])
        return Noise(self, found)

    def moments(self, at: IntArray, law: Law, means: tuple[Array, Array], nodes: Array | None) -> Array:
        """Return E of (1, θ_c^h − θ*) squared at the nodes, for some clients, (k, m, d + 1, d + 1)."""
        s, gamma, own, d = self.steps, self.gamma, self.powers[at], self.q.optimum.size
        k, a = own.sums(s.nodes), own.at(s.nodes)
        second = np.zeros((at.size, len(s.nodes), 1 + d, 1 + d))
        cov = second[..., 1:, 1:]
        if nodes is not None:
            cov += gamma**2 * accumulate(s, own, nodes, s.nodes)
        first = a * (means[0] @ own.U)[:, None]
        first -= gamma * k * np.einsum("cij,ci->cj", own.U, means[1][at])[:, None]
        if self.scaffold:
            k = k / self.H
            a = a + k
            mixed = a[..., :, None] * law.theta_eta[at][:, None] * k[..., None, :]
            cov += k[..., :, None] * law.eta[at][:, None] * k[..., None, :] - mixed - transposed(mixed)
        cov += a[..., :, None] * (transposed(own.U) @ law.cov_theta @ own.U)[:, None] * a[..., None, :]
        cov += first[..., :, None] * first[..., None, :]
        second[..., 0, 0] = 1.0
        second[..., 1:, 0] = second[..., 0, 1:] = first
        return second

    def plateau(self) -> tuple[Law, Noise]:
        """Return the stationary law and the noise of its rounds."""
        means, (N, d) = self.resting(), self.q.slopes.shape
        nothing = Law(np.zeros_like(self.system.matrix), np.zeros((d, d)), *np.zeros((2, N, d, d)))
        if self.system.powers and not self.factors.any():  # which raises if rounds do not contract
            shape = (N, len(self.steps.nodes), d, d)
            return nothing, Noise(self, np.zeros(shape))

        def caused(noise: Noise) -> Law:
            return self.law(self.system.lyapunov(noise.input), noise.gathered)

        def after(nodes: Array) -> Array:
            return self.observed(caused(Noise(self, nodes)), means, nodes).nodes

        if self.scaffold:  # whose local models rest at θ*
            there = self.factors[:, None, None] * self.q.covariances_at_optimum
            zero = np.repeat(there[:, None], len(self.steps.nodes), axis=1)
        else:
            zero = self.observed(nothing, means, None).nodes
        noise = self.settled_noise(after, zero, zero, self.tolerance)
        sizes, law = np.trace(noise.gathered, axis1=1, axis2=2), caused(noise)
        if sizes.min() < -1e-6 * sizes.max() or not np.trace(law.cov_theta) >= 0.0:
            raise no_plateau()
        return law, noise

    def settled_noise(self, after: Callable[[Array], Array], zero: Array, guess: Array, within: float) -> Noise:
        """Return the noise C = after(C), for an affine map with after(0) = zero; NoPlateau if there is none.

        The map is repeated if it contracts quickly, and solved by GMRES from there if not.
        """
        nodes = guess
        for _ in range(6):
            before, nodes = nodes, after(nodes)
            if np.linalg.norm(nodes - before) <= within * np.linalg.norm(nodes):
                return Noise(self, nodes)
        solved = solve(lambda C: C - (after(C) - zero), zero, lambda C: C, nodes)
        if solved is None:
            raise no_plateau()
        return Noise(self, solved)

    # means

    def resting(self) -> tuple[Array, Array]:
        """Return E θ − θ* and E ξ_c − ξ*_c on the plateau; FedAvg's ξ_c is 0, so that the latter is ∇f_c(θ*)."""
        if self.scaffold:
            return np.zeros_like(self.q.optimum), np.zeros_like(self.q.slopes)
        own, w = self.powers, self.q.weights
        drift = self.gamma * self.H * own.delta * np.einsum("cij,ci->cj", own.U, self.q.slopes)
        pull = np.einsum("cij,cj->i", own.U, w[:, None] * drift)
        gap = np.eye(pull.size) - self.system.J[0]
        return -np.asarray(np.linalg.solve(gap, pull), dtype=np.float64), self.q.slopes

    def mean_path(self, theta0: Array) -> Iterator[tuple[Array, Array]]:
        """Yield E θ_t − θ* and E ξ_c − ξ*_c, the latter in the eigenbases, (N, d), for t = 0, 1, ..."""
        w, slopes, start = self.q.weights, self.q.slopes, theta0 - self.q.optimum
        return mean_path(self.powers, w, slopes, start, self.gamma, self.H, scaffold=self.scaffold)

    # the way to the plateau

    def way(self, rest: Law, noise: Noise, theta0: Array, shown: int) -> "Way":
        """Return the way of all clients or, if many, of some that stand for equal shares of the noise.

        Half of it is the plateau's, half about that of round 0, v_c tr ∇²f_c xᵀ∇²f_c x along the mean's path.
        """
        N, w = self.q.weights.size, self.q.weights * self.own
        each = w * np.trace(noise.gathered, axis1=1, axis2=2)
        if 2 * shown >= N or not each.sum() > 0.0:
            return Way(self, np.arange(N), rest, noise, np.zeros((1, 1)))
        theta, ahead = next(self.mean_path(theta0))
        own, nodes = self.powers, self.steps.nodes
        path = own.at(nodes) * (theta @ own.U)[:, None] - self.gamma * own.sums(nodes) * ahead[:, None]
        first = w * self.factors * own.lam.sum(axis=1) * np.einsum("cqi,ci->c", np.square(path), own.lam)
        each = each / each.sum() + first / max(float(first.sum()), 1e-300)
        order = np.argsort(np.square(self.q.slopes).sum(axis=1))  # which decide about the noise of first rounds
        shares = np.cumsum(each[order]) / each.sum()
        drawn = order[np.searchsorted(shares, (np.arange(shown) + 0.5) / shown)]
        clients, often = np.unique(drawn, return_counts=True)
        own = self.own[clients] * often * each.sum() / (shown * each[clients])
        some = replace(self, q=self.q.part(clients), factors=self.factors[clients], own=own)
        known = {"points": self.points} if self.scaffold else {}
        vars(some).update(system=self.system, steps=self.steps, powers=self.powers[clients], **known)
        law = replace(rest, theta_eta=rest.theta_eta[clients], eta=rest.eta[clients])
        part = Noise(some, noise.nodes[clients])
        return Way(some, clients, law, part, noise.input - part.input)

    def curve(self, rounds: int, theta0: Array, plateau: tuple[Law, Noise]) -> Array:
        """Return E‖θ_t − θ*‖² for t = 0, ..., rounds.

        The noise of more and more clients is followed, until twice as many change no round by 0.4 %.
        """
        shown, before = 64, None
        while True:
            way = self.way(*plateau, theta0, shown)
            found = self.followed(way, rounds, theta0)
            if way.many is self or (before is not None and (np.abs(found - before) <= 4e-3 * found).all()):
                return found
            shown, before = 2 * shown, found

    def followed(self, way: "Way", rounds: int, theta0: Array) -> Array:
        """Return the curve if the noise of some clients is followed.

        Noise is computed in the first rounds and then less and less often, until it is that of the plateau. In
        between, its excess over the plateau's falls as it did before.
        """
        at, noise, begin, share, fall = way.start(), way.noise, 0, 0.0, 1.0
        curve, rest = np.empty(rounds + 1), not self.factors.any()
        for t, (theta, ahead) in zip(range(rounds + 1), self.mean_path(theta0), strict=False):
            curve[t] = theta @ theta + np.trace(at.cov_theta)
            if not rest and (t == 0 or t == begin + max(1, begin // 16)):
                last, noise = way.excess(noise), way.noise_at(at, theta, ahead[way.clients], noise, share)
                if t > 0:
                    fall = float(np.clip(way.excess(noise) / (last or np.inf), 0.0, 1.0)) ** (1.0 / (t - begin))
                rest = way.has_come_to_rest(noise)
                begin, share = t, 0.0 if rest else 1.0
            at = way.after(at, noise, share, clients=not rest)
            share *= fall
        return curve


@dataclass(frozen=True, eq=False)
class Way:
    """Covariances on the way from a fixed start to the plateau."""

    many: ManyClients  # with the clients that are looked at
    clients: IntArray  # their numbers
    rest: Law
    noise: Noise  # on the plateau
    others: Array  # the other clients' noise on the plateau, in the states

    def start(self) -> Law:
        """Return the covariances before the first round."""
        N, d, _ = self.rest.eta.shape
        P, each = np.zeros_like(self.rest.P), np.zeros((N, d, d))
        return Law(P, np.zeros((d, d)), each, each, np.zeros((N, len(P), d)))

    def excess(self, noise: Noise) -> float:
        """Return by how much a round's noise is more than the plateau's, relative."""
        w = self.many.q.weights * self.many.own
        size, there = (float(w @ np.trace(n.gathered, axis1=1, axis2=2)) for n in (noise, self.noise))
        return (size - there) / max(there, 1e-300)

    def sizes(self, Q: Array) -> float:
        """Return a mean over clients of the norms of Q_c."""
        return float(self.many.q.weights * self.many.own @ np.linalg.norm(Q, axis=(1, 2)))

    def has_come_to_rest(self, noise: Noise) -> bool:
        """Return whether a round's noise is the plateau's, client by client, to a thousandth."""
        rest = self.noise.gathered
        return self.sizes(noise.gathered - rest) <= 1e-3 * self.sizes(rest)

    def noise_at(self, law: Law, theta: Array, ahead: Array, guess: Noise, share: float) -> Noise:
        """Return the noise of a round with given means, from an earlier one and the share of its excess left."""
        many = self.many
        means = theta, np.einsum("cij,cj->ci", many.powers.U, ahead)
        zero, begin = many.observed(law, means, None).nodes, self.noise.nodes
        begin = begin + share * (guess.nodes - begin)
        return many.settled_noise(lambda C: many.observed(law, means, C).nodes, zero, begin, 10.0 * many.tolerance)

    def after(self, law: Law, noise: Noise, share: float, *, clients: bool) -> Law:
        """Return the covariances one round later, with a share of a noise's excess; without `clients`, P only."""
        many, system, own = self.many, self.many.system, self.many.powers
        beyond = noise.input - self.noise.input + self.excess(noise) * self.others
        P = system.times(system.times(law.P).T) + self.noise.input + self.others + share * beyond
        if not (clients and many.scaffold):
            return replace(law, P=P, cov_theta=system.cov_theta(P))
        Q = self.noise.gathered + share * (noise.gathered - self.noise.gathered)
        (M, d, _), keep, reach = system.J.shape, 1.0 - own.delta, many.reach
        J, c = system.J.reshape(M * d, d), np.repeat(system.c, d)[:, None]
        assert law.with_states is not None  # as all laws on the way begin at `start`
        with_theta = c * system.with_theta(law.P).reshape(M * d, d) + J @ law.cov_theta
        spread = (self.shares[:, :, None] * own.U[:, None]).reshape(-1, M * d, d)  # Φ_m(C̃_c) U_c
        X = (c * law.with_states + J @ (own.U @ law.theta_eta)) * keep[:, None]
        X += (with_theta @ own.U) * reach[:, None] + spread @ (many.gamma**2 * many.q.weights[:, None, None] * Q)
        fed = reach[:, :, None] * law.theta_eta * keep[:, None, :]
        eta = keep[:, :, None] * law.eta * keep[:, None, :] + fed + transposed(fed) + many.gamma**2 * Q
        eta += reach[:, :, None] * (transposed(own.U) @ law.cov_theta @ own.U) * reach[:, None, :]
        theta_eta = transposed(own.U) @ X.reshape(-1, M, d, d).sum(axis=1)
        return Law(P, system.cov_theta(P), theta_eta, eta, X)

    @cached_property
    def shares(self) -> Array:
        """Φ_m(C̃_c) in the eigenbases, (N, M, d)."""
        return self.many.shares(slice(None)).swapaxes(0, 1)


def chebyshev(lowest: float, highest: float, tolerance: float) -> Array:
    """Return points of [lowest, highest] = range of log δ, enough for 1/(z − 1 + δ) on |z| = 1."""
    if highest - lowest < 1e-12:
        return np.array([0.5 * (lowest + highest)])
    z = np.exp(1j * np.concatenate([[0.0], np.pi * 10.0 ** np.linspace(-4, 0, 60)]))[:, None]
    x = np.linspace(lowest, highest, 101)
    for M in range(2, 49):
        nodes = np.cos(np.pi * (np.arange(M) + 0.5) / M)
        points = 0.5 * (lowest + highest) + 0.5 * (highest - lowest) * nodes
        error = np.abs((1.0 / (z - 1.0 + np.exp(points))) @ lagrange(points, x) * (z - 1.0 + np.exp(x)) - 1.0)
        if error.max() < tolerance:
            break
    return points


def lagrange(points: Array, x: Array) -> Array:
    """Return the Lagrange functions of `points` at x, one more axis in front, by the barycentric formula."""
    gaps = points[:, None] - points[None, :] + np.eye(points.size)
    barycentric = 1.0 / gaps.prod(axis=1)
    shape = (points.size,) + (1,) * x.ndim
    off = x[None] - points.reshape(shape)
    exact = off == 0.0
    terms = barycentric.reshape(shape) / np.where(exact, 1.0, off)
    return np.where(exact.any(axis=0), exact.astype(np.float64), terms / terms.sum(axis=0))

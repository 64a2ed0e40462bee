"""Any linear method by the second moment of its whole state, one local step after another.

The vector z = (1, server fields, client fields) holds the state; fields that are models are relative to θ*, and
all are relative to a centre: first 0, then the mean on the plateau, so that small covariances stay precise. The
second moment E zzᵀ has the mean in its first row, so that one linear recursion carries mean and covariance. A
client's local steps see z through θ and ζ_c = −γ(∇f_c(θ) + ξ_c): after h steps θ_c − θ = S_c(h) ζ_c plus noise,
with S_c(h) = Σ_{k<h} (I − γA_c)^k. Matrices A_c need not be symmetric.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from fedscaffold.core.errors import NoPlateau
from fedscaffold.core.types import Array
from fedscaffold.theory.exact.linear_method import LinearMethod
from fedscaffold.theory.exact.quadratic import Quadratic

LARGEST = 600  # numbers in the states of all clients: a round then takes about a tenth of a second
DOUBLINGS = 60  # 2⁶⁰ rounds: beyond any problem's condition number in double precision
GROWN = 1e12  # entries of a power of the round's matrix that will not come down again


@dataclass(frozen=True, eq=False)
class Rounds:
    """One round of a linear method on quadratic losses as a linear map of E zzᵀ."""

    q: Quadratic
    method: LinearMethod
    factors: Array  # variance of a batch mean over that of one record, (N,)
    centre: Array | None = None  # what the fields of z are relative to, after a 1, (size,); 0 by default

    def recentred(self, maps: Array) -> Array:
        """Change maps of z, (..., size), into maps of z relative to the centre, in place."""
        if self.centre is not None:
            maps[..., 0] = maps @ self.centre
        return maps

    @property
    def size(self) -> int:
        """Length of z."""
        return 1 + (self.method.n_server + self.method.n_client * self.q.weights.size) * self.q.optimum.size

    def server(self, k: int) -> slice:
        """Return where server field k stands in z."""
        d = self.q.optimum.size
        return slice(1 + k * d, 1 + (k + 1) * d)

    def clients(self, j: int) -> slice:
        """Return where field j of all clients stands in z, client after client."""
        N, d = self.q.slopes.shape
        start = 1 + self.method.n_server * d + j * N * d
        return slice(start, start + N * d)

    def start(self, theta0: Array) -> Array:
        """Return z before the first round, from θ_0 and with all other fields 0."""
        z = np.zeros(self.size)
        z[0] = 1.0
        for k, position in enumerate(self.method.positions):
            z[self.server(k)] = position * (theta0 - self.q.optimum)
        if self.centre is not None:
            z[1:] -= self.centre[1:]
        return z

    # local steps

    @cached_property
    def inputs(self) -> Array:
        """(1, θ, ζ_c) of every client from z, (N, 1 + 2d, size)."""
        q, m = self.q, self.method
        (N, d), w = q.slopes.shape, q.weights
        found = np.zeros((N, 1 + 2 * d, self.size))
        found[:, 0, 0] = 1.0
        found[:, 1 : 1 + d, self.server(0)] = np.eye(d)
        zeta, eye = found[:, 1 + d :], np.eye(d)
        for k in range(m.n_server):
            zeta[:, :, self.server(k)] += m.correction_server[k] * eye
        for j in range(m.n_client):
            fields = zeta[:, :, self.clients(j)].reshape(N, d, N, d)  # a view
            fields[np.arange(N), :, np.arange(N)] += m.correction_client[j] * eye
        own = m.correction_own + (0.0 if m.anchored else 1.0)
        zeta[:, :, 0] += own * q.slopes + m.correction_mean * (w @ q.slopes)
        zeta[:, :, self.server(0)] += own * q.matrices + m.correction_mean * np.tensordot(w, q.matrices, axes=1)
        zeta *= -m.gamma
        return self.recentred(found)

    @cached_property
    def step(self) -> Array:
        """I − γ(A_c + λ), (N, d, d)."""
        d = self.q.optimum.size
        return np.eye(d) - self.method.gamma * (self.q.matrices + self.method.pull * np.eye(d))

    @cached_property
    def sums(self) -> list[tuple[float, Array]]:
        """Probabilities of a round's numbers of steps, with S_c of each, (N, d, d)."""
        m = self.method
        found, S, eye = [], np.zeros_like(self.step), np.eye(self.step.shape[1])
        ends = np.zeros_like(S)
        for h in range(1, int(m.steps.max()) + 1):
            S = self.step @ S + eye
            if m.probabilities is None:
                ends[m.steps == h] = S[m.steps == h]
            elif h in m.steps:
                found.append((float(m.probabilities[np.searchsorted(m.steps, h)]), S))
        return found or [(1.0, ends)]

    def gathered(self, start: Array) -> Array:
        """Return Cov of θ_c's noise at the end of a round, (N, d, d), from E of (1, θ, ζ_c) squared."""
        if not self.factors.any():
            return np.zeros_like(self.step)
        if self.table is None:
            return self._gathered(start[:, None])[:, 0]
        rows, columns = np.triu_indices(start.shape[1])
        return np.einsum("csij,cs->cij", self.table, start[:, rows, columns])

    @cached_property
    def units(self) -> Array | None:
        """All symmetric unit matrices of the size of E of (1, θ, ζ_c) squared, (s, 1 + 2d, 1 + 2d), if few."""
        N, d = self.q.slopes.shape
        rows, columns = np.triu_indices(1 + 2 * d)
        if rows.size > 100 or N * rows.size * d**2 > 2_000_000:  # then a few rounds take less time than the table
            return None
        found, every = np.zeros((rows.size, 1 + 2 * d, 1 + 2 * d)), np.arange(rows.size)
        found[every, rows, columns] = found[every, columns, rows] = 1.0
        return found

    @cached_property
    def table(self) -> Array | None:
        """`gathered` of all unit matrices, (N, s, d, d)."""
        if self.units is None:
            return None
        return self._gathered(np.broadcast_to(self.units, (self.q.weights.size, *self.units.shape)))

    def _gathered(self, start: Array) -> Array:
        """Return `gathered` for several laws of the start, (N, b, 1 + 2d, 1 + 2d) → (N, b, d, d)."""
        m, d = self.method, self.q.optimum.size
        t, z = slice(1, 1 + d), slice(1 + d, None)
        step, S = self.step[:, None], np.zeros((self.step.shape[0], 1, d, d))
        local = np.zeros((*start.shape[:2], 1 + d, 1 + d))
        cov = np.zeros((*start.shape[:2], d, d))
        found, scale = np.zeros_like(cov), (m.gamma**2 * self.factors)[:, None, None, None]
        for h in range(1, int(m.steps.max()) + 1):
            local[..., 1:, 1:] = cov + S @ start[..., z, z] @ transposed(S)
            if not m.anchored:
                crossed = S @ start[..., z, t]
                local[..., 1:, 1:] += start[..., t, t] + crossed + transposed(crossed)
                local[..., 0, 0] = start[..., 0, 0]
                local[..., 1:, 0] = start[..., t, 0] + (S @ start[..., z, :1])[..., 0]
                local[..., 0, 1:] = local[..., 1:, 0]
            cov = step @ cov @ transposed(step) + scale * self.q.covariances(local)
            S = step @ S + np.eye(d)
            if m.probabilities is None:
                found[m.steps == h] = cov[m.steps == h]
            elif h in m.steps:
                found += m.probabilities[np.searchsorted(m.steps, h)] * cov
        return found

    # from messages to the next state

    @cached_property
    def messages(self) -> list[tuple[float, Array]]:
        """Probabilities of a round's numbers of steps, with the messages' means from z, (N d, size)."""
        (N, d), m = self.q.slopes.shape, self.method
        fixed = np.zeros((N, d, self.size))
        fixed[:, :, self.server(0)] = np.eye(d)
        for j in range(m.n_client):
            fields = fixed[:, :, self.clients(j)].reshape(N, d, N, d)
            fields[np.arange(N), :, np.arange(N)] += m.message_client[j] * np.eye(d)
        self.recentred(fixed)
        zeta, share = self.inputs[:, 1 + d :], m.message_local[:, None, None]
        return [(p, (fixed + share * (S @ zeta)).reshape(N * d, -1)) for p, S in self.sums]

    def ending(self, inside: Array) -> tuple[Array, Array]:
        """Return z⁺ from z, (size, size), and from messages, (size, N, d), if clients with inside 1 take part."""
        (N, d), m, size = self.q.slopes.shape, self.method, self.size
        from_z, from_sent = np.zeros((size, size)), np.zeros((size, N * d))
        from_z[0, 0] = 1.0
        eye, own = np.eye(d), np.repeat(inside, d)[:, None]
        mean = np.kron(self.q.weights if inside.all() else inside / inside.sum(), eye)  # of the messages, (d, N d)
        for k in range(m.n_server):
            for i in range(m.n_server):
                from_z[self.server(k), self.server(i)] += m.aggregate_server[k, i] * eye
            from_sent[self.server(k)] += m.aggregate_mean[k] * mean
        for j in range(m.n_client):
            rows, stacked, each = self.clients(j), own * np.tile(eye, (N, 1)), own * np.eye(N * d)
            from_z[rows, rows] += np.eye(N * d) - each
            for i in range(m.n_client):
                from_z[rows, self.clients(i)] += m.update_client[j, i] * each
            for i, share in enumerate(m.update_before[j] + m.update_after[j] @ m.aggregate_server):
                from_z[rows, self.server(i)] += share * stacked
            from_sent[rows] += m.update_sent[j] * each + (m.update_after[j] @ m.aggregate_mean) * stacked @ mean
        return self.ended(from_z), from_sent.reshape(size, N, d)

    def ended(self, from_z: Array) -> Array:
        """Change a map of z into its first fields after a round, so that both are relative to the centre."""
        if self.centre is not None:
            self.recentred(from_z)
            from_z[1:, 0] -= self.centre[1 : len(from_z)]
        return from_z

    @cached_property
    def endings(self) -> list[tuple[Array, Array]]:
        """The endings of all cohorts, which are equally likely."""
        N, cohorts = self.q.weights.size, combinations(range(self.q.weights.size), self.method.participants)
        return [self.ending(np.isin(np.arange(N), cohort).astype(np.float64)) for cohort in cohorts]

    @cached_property
    def maps(self) -> list[tuple[float, Array]]:
        """Probabilities of cohorts and numbers of steps, with E z⁺ from z of each, (size, size)."""
        found = [
            (p / len(self.endings), from_z + from_sent.reshape(self.size, -1) @ messages)
            for from_z, from_sent in self.endings
            for p, messages in self.messages
        ]
        if self.centre is not None and len(found) == 1:
            found[0][1][1:, 0] = 0.0  # the centre is where rounds lead; what is left are rounding errors
        return found

    def mean_map(self) -> Array:
        """Return E z⁺ from E z, (size, size)."""
        return np.asarray(sum(p * matrix for p, matrix in self.maps))

    def after(self, second: Array) -> Array:
        """Return E zzᵀ one round later; linear in E zzᵀ."""
        local, exchanged = self.noise(second)
        found = np.asarray(sum(self.added(reach, local, exchanged) for _, reach in self.endings)) / len(
            self.endings
        )
        for p, matrix in self.maps:
            found += p * (matrix @ second @ matrix.T)
        return 0.5 * (found + found.T)

    def noise(self, second: Array) -> tuple[Array, Array]:
        """Return Cov of the messages' noise, and of −γ times the noise of exchanged gradients, each (N, d, d)."""
        m, w, (N, d) = self.method, self.q.weights, self.q.slopes.shape
        start = self.inputs @ second @ transposed(self.inputs)
        exchanged = np.zeros_like(self.step)
        if m.noisy_exchange:
            at_theta = np.broadcast_to(second[: 1 + d, : 1 + d], (N, 1, 1 + d, 1 + d))
            exchanged = (m.gamma**2 * self.factors)[:, None, None] * self.q.covariances(at_theta)[:, 0]
            own = m.correction_own**2 + 2.0 * m.correction_own * m.correction_mean * w
            start[:, 1 + d :, 1 + d :] += own[:, None, None] * exchanged
            start[:, 1 + d :, 1 + d :] += m.correction_mean**2 * np.tensordot(w**2, exchanged, axes=1)
        return (m.message_local**2)[:, None, None] * self.gathered(start), exchanged

    def added(self, reach: Array, local: Array, exchanged: Array) -> Array:
        """Return what the noise of a round adds to E zzᵀ, given z⁺ from all messages."""
        m = self.method
        found = _spread(reach, local)
        for p, S in self.sums if m.noisy_exchange else ():
            by_local = np.einsum("zci,c,cij->zcj", reach, m.message_local, S, optimize=True)
            shared = m.correction_mean * self.q.weights[:, None] * by_local.sum(axis=1)[:, None]
            found += p * _spread(m.correction_own * by_local + shared, exchanged)
        return found

    def laws(self, theta0: Array, free: Array) -> Iterator[Array]:
        """Yield E zzᵀ after 0, 1, ... rounds; `free` keeps rounding errors out of what the method conserves."""
        z = free @ self.start(theta0)
        second = np.outer(z, z)
        while True:
            yield second
            second = free @ self.after(second) @ free


# where rounds lead


@dataclass(frozen=True, eq=False)
class Stationary:
    """The stationary law of z."""

    rounds: Rounds  # relative to the mean
    free: Array  # projection onto all z in which what the method conserves is 0, (size, size)
    mean: Array  # relative to 0, (size,)
    cov: Array  # (size, size); its first row and column are 0
    mean_map: Array  # of a round, without the constant and what is conserved, (size, size)


def stationary(r: Rounds) -> Stationary:
    """Return the stationary law of rounds.

    Some methods conserve sums of their fields, as Scaffold does Σ w_c ξ_c. These are 0 at the start, and are
    projected out: their rounding errors would not fade.
    """
    free, matrix = free_directions(r), r.mean_map()
    moved = free @ matrix @ free
    moved[0], moved[:, 0] = 0.0, 0.0
    powers = doubled_powers(moved)
    given = free @ matrix[:, 0]
    given[0] = 0.0
    mean = np.asarray(np.linalg.solve(np.eye(len(moved)) - moved, given), dtype=np.float64)
    mean[0] = 1.0
    about = replace(r, centre=mean)
    return Stationary(about, free, mean, _covariance(about, mean, free, powers), moved)


def free_directions(r: Rounds) -> Array:
    """Return the orthogonal projection onto all z in which what the method conserves is 0, (size, size).

    The quantity that a method conserves does not depend on the clients' matrices, so that it is found for other
    ones, of one dimension and well conditioned.
    """
    N, d, m = r.q.weights.size, r.q.optimum.size, r.method
    if not m.n_client:
        return np.eye(r.size)
    curvatures = np.linspace(0.5, 1.0, N) / m.gamma / max(1.0, float(m.steps.mean()))
    nothing = np.zeros((N, 1))
    other = Quadratic(r.q.weights, np.zeros(1), curvatures[:, None, None], nothing, [])
    matrix = Rounds(other, replace(m, pull=0.0), nothing[:, 0]).mean_map()[1:, 1:]
    U, sizes, _ = np.linalg.svd(matrix - np.eye(len(matrix)))
    kept = np.kron(U[:, sizes <= 1e-10 * sizes[0]], np.eye(d))
    found = np.eye(r.size)
    found[1:, 1:] -= kept @ kept.T
    return found


def no_plateau(radius: float | None = None) -> NoPlateau:
    """Return the error of a method whose rounds, or whose noise, do not contract."""
    if radius is None:
        return NoPlateau(
            "no plateau: the noise grows with the distance that it causes faster than the method contracts; "
            "take a smaller step_size or a larger batch_size"
        )
    grows = "" if np.isinf(radius) else f" (it multiplies errors by {radius:.4g} in a round)"
    return NoPlateau(
        f"no plateau: without noise the method does not contract near its fixed point{grows}; take a smaller "
        "step_size or fewer local_steps"
    )


@np.errstate(over="ignore", invalid="ignore")
def doubled_powers(matrix: Array) -> list[Array]:
    """Return A, A², A⁴, ... until they vanish; raise NoPlateau if they do not."""
    powers = [matrix]
    for k in range(DOUBLINGS):
        size = float(np.abs(powers[-1]).max())
        if size <= 1e-8:
            return powers
        if not size < GROWN:
            raise no_plateau(size ** (0.5**k))
        powers.append(powers[-1] @ powers[-1])
    raise no_plateau(1.0)


def _covariance(r: Rounds, mean: Array, free: Array, powers: list[Array]) -> Array:
    """Return the P with P = 𝓛P + W, where 𝓛 is a round's map of covariances and W what a round at rest adds.

    By GMRES, preconditioned with the solution of P = M̄PM̄ᵀ + X for the map M̄ of the mean. Since 𝓛 keeps
    covariances positive, a solution for positive W is positive if and only if 𝓛 contracts.
    """

    def after(P: Array) -> Array:
        P = r.after(P)
        P[0], P[:, 0] = 0.0, 0.0
        return free @ P @ free

    at_rest = np.zeros((r.size, r.size))
    at_rest[0, 0] = 1.0
    given = after(at_rest)
    size, largest = float(np.abs(given).max()), float(np.abs(mean).max() + np.abs(r.q.optimum).max())
    quiet = size <= 1e-28 * largest**2  # rounding errors
    if quiet and not r.factors.any():
        return np.zeros_like(given)
    right = free - at_rest if quiet else given / size  # noise that vanishes at rest may grow away from it
    P = solve(lambda P: P - after(P), right, lambda X: doubled(powers, X))
    if P is None or np.linalg.eigvalsh(P)[0] < -1e-6 * np.trace(P):
        raise no_plateau()
    return np.zeros_like(P) if quiet else size * 0.5 * (P + P.T)


def doubled(powers: list[Array], X: Array) -> Array:
    """Return Σ_k A^k X A^kᵀ, given A, A², A⁴, ..."""
    for power in powers:
        X = X + power @ X @ power.T
    return X


def solve(
    apply: Callable[[Array], Array], right: Array, precondition: Callable[[Array], Array],
    guess: Array | float = 0.0,
) -> Array | None:  # fmt: skip
    """Return the solution of a linear equation by GMRES from a guess; None if it does not converge."""
    found, size = np.zeros_like(right) + guess, float(np.linalg.norm(right))
    left = right - apply(found) if np.any(guess) else right
    for _ in range(3):  # of at most 40 steps each
        if np.linalg.norm(left) <= 1e-8 * size:
            break
        basis, images = [left / np.linalg.norm(left)], np.zeros((41, 40))
        for k in range(40):
            new = apply(precondition(basis[k]))
            for j, one in enumerate(basis):
                images[j, k] = np.vdot(one, new)
                new = new - images[j, k] * one
            images[k + 1, k] = np.linalg.norm(new)
            given = np.append(np.linalg.norm(left), np.zeros(k + 1))
            shares = np.linalg.lstsq(images[: k + 2, : k + 1], given, rcond=None)[0]
            error = np.linalg.norm(images[: k + 2, : k + 1] @ shares - given)
            if error <= 1e-9 * size:
                break
            basis.append(new / images[k + 1, k])
        found = found + precondition(np.tensordot(shares, np.stack(basis[: shares.size]), axes=1))
        before, left = np.linalg.norm(left), right - apply(found)
        if np.linalg.norm(left) > 0.1 * before:  # all that rounding leaves
            break
    return found if np.linalg.norm(left) <= 1e-6 * size else None


def _spread(reach: Array, cov: Array) -> Array:
    """Return Σ_c R_c C_c R_cᵀ for R (size, N, d) and C (N, d, d)."""
    size = len(reach)
    right = np.einsum("zci,cij->zcj", reach, cov, optimize=True)
    return right.reshape(size, -1) @ reach.reshape(size, -1).T


def transposed(matrices: Array) -> Array:
    """Return the transposes of matrices in the last two axes."""
    return np.swapaxes(matrices, -1, -2)

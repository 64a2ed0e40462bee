"""Noise of a round on the way to the plateau, and its pull on the mean: for all clients, or a sample of them.

Around the mean's path the local models spread by the noise of the round itself, and by what θ and ξ_c gathered in
the rounds before. What θ gathered is known; Cov(θ, η_c) and Cov η_c are taken to grow with it and with the powers
C̃_c^t, and a client's own part of Cov η_c is Σ_{k<t} C̃_c^k Q_c C̃_c^k.

For quadratic losses, whose noise grows with the squared distance to θ*, that of a sample is brought to the level
of all clients by the traces of their noise at one point of a round each, one look at the records (`noise_levels`).
"""

from dataclasses import dataclass, replace

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks
from fedscaffold.theory.expansion import weighted
from fedscaffold.theory.prediction.local_steps import Curvature, accumulate, curvature, rotate
from fedscaffold.theory.prediction.many_clients.client_sample import Sample, draw, inclusion
from fedscaffold.theory.prediction.plateau import PlateauState, covariances, local_covariances, local_means
from fedscaffold.theory.prediction.reduced_system import noise_input
from fedscaffold.theory.prediction.setting import Setting

FEWEST, SAMPLE = 32, 128  # clients of a sample, of large and of small tables
LARGEST_TABLES = 2_500_000  # records × features² of a sample of more than FEWEST
FADED = 0.01
MOST_PASSES = 8  # over the clients of the sample
PLATEAU_REPEATS = 2
SETTLED = 1e-2  # relative change of the noise of a round from pass to pass


@dataclass(frozen=True, eq=False)
class RoundNoise:
    """Noise of a round: of each client of the sample, and of all clients together."""

    cur: Curvature  # mean curvature along the round
    noise: Array  # at the nodes, in the eigenbasis of `cur`, (k, m, d, d)
    Q: Array  # what the round gathers of it, in the eigenbasis of the plateau's curvature, (k, d, d)
    pull: Array  # on the mean gradient at the nodes, (k, m, d)
    own: Array  # input of the reduced state by the sample alone, (M d, M d); of θ for FedAvg
    input: Array  # by all clients: in proportion to that of the plateau, and what the sample has beyond it


@dataclass(frozen=True, eq=False)
class RoundNoises:
    """What the noise of all rounds shares."""

    s: Setting  # of the sample
    clients: IntArray  # of the sample, among those of the whole setting
    state: PlateauState  # with the arrays of the sample
    theta_eta: Array  # Cov(θ, η_c) on the plateau, (k, d, d)
    eta: Array  # Cov η_c on the plateau without the client's own noise, (k, d, d)
    plateau_input: Array
    plateau: RoundNoise | None  # of the sample, as it is found on the plateau
    whole: Setting  # of all clients
    lengths: Array  # ‖x_i‖² of all records, where the level of all clients is asked for

    @classmethod
    def of(cls, s: Setting, state: PlateauState) -> "RoundNoises":
        """For a setting whose plateau is known."""
        chosen = noise_sample(s, state)
        at, sub = chosen.clients, chosen.of(s)
        arrays = {name: getattr(state, name)[at] for name in ("cur", "eta", "noise", "Q", "residual")}
        some = replace(state, **arrays)
        theta_eta, eta = covariances(sub, some)
        eta = eta - s.gamma**2 * own_shares(some.cur, None) * some.Q if s.scaffold else eta
        lengths = np.empty(0)
        if isinstance(s.problem, GeneralisedLinear) and s.quadratic and at.size < s.clients.size:
            lengths = np.einsum("ni,ni->n", s.problem.x, s.problem.x)
        found = cls(sub, at, some, theta_eta, eta, state.sums.noise, None, s, lengths)
        paths = local_means(sub, some, np.arange(at.size))
        plateau: RoundNoise | None = None
        for _ in range(PLATEAU_REPEATS):  # since Cov η_c depends on the noise that is found
            plateau = found.at(None, paths, state.cov_theta, plateau)
        return replace(found, plateau=plateau)

    def level(self, points: Array) -> float:
        """Noise of all clients at given points around θ*, (N, d), over what the sample says of it."""
        if self.clients.size == self.whole.clients.size:
            return 1.0
        levels = noise_levels(self.whole, self.lengths, points)
        ours = float(self.s.weights * self.s.own @ levels[self.clients])
        return float(self.whole.weights * self.whole.own @ levels) / ours if ours > 0.0 else 1.0

    def at(
        self, t: int | None, paths: Array, cov_theta: Array, last: RoundNoise | None, level: float = 1.0
    ) -> RoundNoise:
        """The noise of round t, None for the plateau, whose means follow given paths, (k, m, d), around θ*.

        `cov_theta` is that of θ as the round begins; `last` the noise of an earlier round, from which to guess;
        `level` by which factor the noise of all clients is more than the sample says.
        """
        s, state = self.s, self.state
        size = float(np.trace(state.cov_theta))
        ratio = float(np.trace(cov_theta)) / size if size > 0.0 else 0.0
        theta_eta, eta = ratio * self.theta_eta, ratio * self.eta
        if s.scaffold:
            grown = own_shares(state.cur, t)
            eta = (
                eta * grown / own_shares(state.cur, None)
                + s.gamma**2 * grown * (state if last is None else last).Q
            )
            theta_eta = theta_eta if t is None else theta_eta * (1.0 - (1.0 - state.cur.delta[:, None, :]) ** t)
        if t == 0 or (last is None and t is not None):
            cur, noise = state.cur, self.noise_at(paths)
        else:
            cur, noise = (state.cur, state.noise) if last is None else (last.cur, last.noise)
        size = self.gathered(accumulate(s.steps, cur, noise, [s.H])[:, 0])
        for _ in range(MOST_PASSES):
            cur, noise, pull = self.one_pass(cur, noise, paths, cov_theta, theta_eta, eta)
            Q = accumulate(s.steps, cur, noise, [s.H])[:, 0]
            before, size = size, self.gathered(Q)
            if abs(size - before) <= SETTLED * size:
                break
        Q = rotate(np.swapaxes(cur.U, 1, 2) @ state.cur.U, Q)
        own, total = self.inputs_of(Q)
        return RoundNoise(cur, noise, Q, pull, own, level * total)

    def gathered(self, Q: Array) -> float:
        """Tr Σ w_c² Q_c, what the round's noise adds to the variance of θ, up to γ²."""
        return float(self.s.weights * self.s.own @ np.trace(Q, axis1=1, axis2=2))

    def inputs_of(self, Q: Array) -> tuple[Array, Array]:
        """Input of the reduced state by the sample's Q_c, and by those of all clients."""
        own = self.input_of(Q)
        if self.plateau is None:
            return own, self.plateau_input
        there = self.plateau.own
        share = float(np.trace(own)) / max(float(np.trace(there)), 1e-300)
        return own, share * (self.plateau_input - there) + own

    def one_pass(
        self, cur: Curvature, noise: Array, paths: Array, cov_theta: Array, theta_eta: Array, eta: Array
    ) -> tuple[Curvature, Array, Array]:
        """Curvature, noise and pull over the clouds that given curvature and noise make around the paths."""
        s = self.s
        state = replace(self.state, cur=cur, noise=noise, cov_theta=cov_theta)
        turn = np.swapaxes(self.state.cur.U, 1, 2) @ cur.U
        theta_eta, eta = rotate(turn, theta_eta), rotate(turn, eta)
        (k, d), m, weights = s.gradients.shape, s.steps.nodes.size, s.steps.average_weights()
        U, lam = np.empty((k, d, d)), np.empty((k, d))
        found_noise, pull = np.empty((k, m, d, d)), np.zeros((k, m, d))

        def work(block: ClientBlock) -> None:
            at, points = s.places(block), s.optimum + paths[s.places(block)]
            clouds = local_covariances(s, state, at, theta_eta[at], eta[at])
            found = s.averages.over_clouds(block, points, clouds, s.factors[at])
            own = cur[at]
            if not s.quadratic:
                own = curvature(np.einsum("q,kqij->kij", weights, found.hessian), s.gamma, s.H)
                pull[at] = found.gradient - s.averages.gradients(block, points)
            U[at], lam[at] = own.U, own.lam
            found_noise[at] = rotate(own.U[:, None], found.noise)

        s.for_blocks(work)
        return cur if s.quadratic else Curvature.of(U, lam, s.gamma, s.H), found_noise, pull

    def noise_at(self, paths: Array) -> Array:
        """C_c along the paths, in the eigenbasis of the plateau's curvature, (k, m, d, d)."""
        s = self.s
        noise = np.empty((*paths.shape, paths.shape[-1]))

        def work(block: ClientBlock) -> None:
            at = s.places(block)
            noise[at] = s.averages.noise_at(block, s.optimum + paths[at], s.factors[at])

        s.for_blocks(work)
        return rotate(self.state.cur.U[:, None], noise)

    def input_of(self, Q: Array) -> Array:
        """γ² Σ_c of the sample's Q_c, as input of the reduced state; of θ for FedAvg."""
        s, U = self.s, self.state.cur.U
        if self.state.system is not None:
            return s.gamma**2 * noise_input(self.state.system, s.weights * s.own, self.state.cur, Q)
        return s.gamma**2 * weighted(s.weights * s.own, U @ Q @ np.swapaxes(U, 1, 2))

    def pull_beyond(self, found: RoundNoise) -> Array:
        """How much more than on the plateau the noise of a round pulls the mean gradient, on average, (m, d)."""
        assert self.plateau is not None
        return self._mean(found.pull - self.plateau.pull)

    def pull_since(self, older: Array) -> Array:
        """How much more the noise of the plateau pulls than in a guess of it, (k, m, d) in the eigenbasis."""
        assert self.plateau is not None
        return self._mean(self.plateau.pull - older @ np.swapaxes(self.state.cur.U, 1, 2))

    def _mean(self, pull: Array) -> Array:
        return np.tensordot(self.s.weights / self.s.weights.sum(), pull, axes=1)

    def faded(self, found: RoundNoise) -> bool:
        """Whether the noise of a round is that of the plateau."""
        ahead = abs(np.trace(found.input) - np.trace(self.plateau_input))
        return bool(ahead <= FADED * np.trace(self.plateau_input))


def noise_levels(s: Setting, squares: Array, points: Array) -> Array:
    """Tr C_c at a point around θ* for each client, (N,), up to what its mean gradient adds; 1 without tables.

    `squares` are the squared lengths ‖x_i‖² of all records.
    """
    problem = s.problem
    if not isinstance(problem, GeneralisedLinear):
        return np.ones(s.clients.size)
    found = np.empty(s.clients.size)

    def work(block: ClientBlock) -> None:
        at = s.places(block)
        slopes = problem.d1((block.x @ (s.optimum + points[at])[:, :, None])[:, :, 0], block.y)
        rows = problem.offsets[block.clients][:, None] + np.arange(block.y.shape[1])
        lengths = squares[np.minimum(rows, squares.size - 1)]  # beyond a client's own rows its share is 0
        found[at] = (slopes * slopes * lengths * block.share).sum(axis=1)

    for_blocks(problem, work, clients=s.clients)
    return found * s.factors


def noise_sample(s: Setting, state: PlateauState) -> Sample:
    """All clients, or a sample with probabilities that grow with weight and noise."""
    count = SAMPLE
    if isinstance(s.problem, GeneralisedLinear):
        each = float(s.problem.sizes.mean()) * s.problem.dim**2
        count = min(SAMPLE, max(FEWEST, int(LARGEST_TABLES / each)))
    if s.clients.size <= count:
        return Sample(np.arange(s.clients.size), np.ones(s.clients.size))
    noise = s.weights * s.own * np.trace(state.Q, axis1=1, axis2=2)
    return draw(
        inclusion(0.5 * s.weights / s.weights.sum() + 0.5 * noise / max(float(noise.sum()), 1e-300), count)
    )


def own_shares(cur: Curvature, rounds: int | None) -> Array:
    """Σ_k (c_a c_b)^k over so many rounds, or all, with c = 1 − δ, (k, d, d)."""
    c = 1.0 - cur.delta
    both = c[:, :, None] * c[:, None, :]
    return (1.0 if rounds is None else 1.0 - both**rounds) / (1.0 - both)

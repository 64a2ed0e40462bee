"""One round as a linear map of E z̃z̃ᵀ: local steps, who takes part, the server's step and the clients' update."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.family.cohorts import cohort_moments
from fedscaffold.theory.prediction.family.family_setting import FamilySetting
from fedscaffold.theory.prediction.family.local_law import Linearisation, RoundStart
from fedscaffold.theory.prediction.family.step_kernels import StepKernels, step_kernels


@dataclass(frozen=True, eq=False)
class FamilyRound:
    """A round of a method around a linearisation.

    Attributes
    ----------
    inputs
        θ and −γ(∇f_c(θ*) + ξ_c) of every client, in its eigenbasis, from z̃: (2, N d, size).
    kernels
        How local models at the end of the round depend on them.
    rotation
        From the clients' eigenbases to the original one, block-diagonal, (N d, N d).
    """

    s: FamilySetting
    lin: Linearisation
    inputs: Array
    kernels: StepKernels
    rotation: Array

    def round_start(self, second: Array) -> RoundStart:
        """Mean and covariance of the inputs of local steps, for a second moment of z̃."""
        N, d = self.s.gradients.shape
        mean = self.inputs @ second[0]
        cov = np.empty((2, 2, N, d, d))
        centred = second - np.outer(second[0], second[0])
        by_client = self.inputs.reshape(2, N, d, -1)
        for a in range(2):
            right = by_client[a] @ centred
            for b in range(2):
                cov[a, b] = right @ np.swapaxes(by_client[b], 1, 2)
        if self.s.linear.noisy_exchange:
            noise = self.exchange_noise().reshape(N, d, N, d)
            cov[1, 1] += np.stack([noise[c, :, c] for c in range(N)])
        return RoundStart(mean.reshape(2, N, d), cov)

    def exchange_noise(self) -> Array:
        """Covariance of −γ times the noise of exchanged gradients in ξ, in the eigenbases, (N d, N d)."""
        s, own = self.s, self.lin.exchange_noise
        (N, d), w = s.gradients.shape, s.problem.weights
        mixed = np.eye(N) * s.linear.correction_own + s.linear.correction_mean * w[None, :]
        full = np.einsum("ac,cij,bc->aibj", mixed, own, mixed).reshape(N * d, N * d)
        return s.linear.gamma**2 * (self.rotation.T @ full @ self.rotation)

    def messages(self, second: Array) -> Array:
        """Second moment of (z̃, messages), for a second moment of z̃; messages in the original basis."""
        s, kernels = self.s, self.kernels
        (N, d), size = s.gradients.shape, s.size
        seen = self.inputs @ second  # (2, N d, size)
        push = -self.lin.push(s).ravel()
        with_state = np.einsum("an,anz->nz", kernels.mean, seen) + push[:, None] * second[0]
        ends = np.zeros((N * d, N * d))
        for a in range(2):
            for b in range(2):
                ends += kernels.pairs[a, b] * (seen[a] @ self.inputs[b].T)
        if s.linear.noisy_exchange:
            ends += kernels.pairs[1, 1] * self.exchange_noise()
        before = np.einsum("an,an->n", kernels.mean, seen[:, :, 0])
        ends += np.outer(before, push) + np.outer(push, before) + np.outer(push, push)
        noise = s.linear.gamma**2 * self.lin.round_noise
        for c in range(N):
            at = slice(c * d, (c + 1) * d)
            ends[at, at] += noise[c]
        local = np.zeros((size + N * d, size + N * d))
        local[:size, :size] = second
        local[size:, :size] = self.rotation @ with_state
        local[:size, size:] = local[size:, :size].T
        local[size:, size:] = self.rotation @ ends @ self.rotation.T
        turn = self.sending()
        return turn @ local @ turn.T

    def sending(self) -> Array:
        """(z̃, local models) → (z̃, messages): θ + a_c (θ_c − θ)."""
        s = self.s
        (N, d), size = s.gradients.shape, s.size
        share = np.repeat(s.linear.message_local, d)
        turn = np.eye(size + N * d)
        turn[size:, size:] = np.diag(share)
        turn[size:, s.server(0)] = (1.0 - share)[:, None] * np.tile(np.eye(d), (N, 1))
        return turn

    def mean_messages(self) -> Array:
        """(z̃, messages) in mean, from z̃: (size + N d, size)."""
        s = self.s
        size = s.size
        ends = np.einsum("an,anz->nz", self.kernels.mean, self.inputs)
        ends[:, 0] -= self.lin.push(s).ravel()
        return self.sending() @ np.concatenate([np.eye(size), self.rotation @ ends])

    def after(self, second: Array) -> Array:
        """E z̃z̃ᵀ one round later."""
        joint = self.messages(second)
        if self.s.linear.participants < self.s.problem.n_clients:
            return cohort_moments(self.s, joint)
        full = full_round(self.s)
        found = full @ joint @ full.T
        return 0.5 * (found + found.T)

    def mean_map(self) -> Array:
        """E z̃ one round later from E z̃, (size, size)."""
        return mean_round(self.s) @ self.mean_messages()


def round_map(s: FamilySetting, lin: Linearisation) -> FamilyRound:
    """The map of a round around a linearisation."""
    (N, d), linear, w = s.gradients.shape, s.linear, s.problem.weights
    inputs = np.zeros((2, N * d, s.size))
    inputs[0][:, s.server(0)] = np.swapaxes(lin.cur.U, 1, 2).reshape(N * d, d)
    pull = np.zeros((N * d, s.size))
    for k in range(linear.n_server):
        pull[:, s.server(k)] += linear.correction_server[k] * np.tile(np.eye(d), (N, 1))
    for j in range(linear.n_client):
        pull[:, s.clients(j)] += linear.correction_client[j] * np.eye(N * d)
    pull[:, 0] += s.gradients.ravel()
    if linear.correction_own != 0.0:
        mixed = np.eye(N) * linear.correction_own + linear.correction_mean * w[None, :]
        pull[:, 0] += (mixed @ lin.exchange_offset).ravel()
        pull[:, s.server(0)] += np.tensordot(mixed, lin.exchange_hessian, axes=1).reshape(N * d, d)
    rotation = np.zeros((N * d, N * d))
    for c in range(N):
        at = slice(c * d, (c + 1) * d)
        rotation[at, at] = lin.cur.U[c]
    inputs[1] = -linear.gamma * (rotation.T @ pull)
    return FamilyRound(s, lin, inputs, step_kernels(lin.cur.g, linear.steps, linear.probabilities), rotation)


def full_round(s: FamilySetting) -> Array:
    """(z̃, messages) → z̃ one round later when all clients take part, (size, size + N d)."""
    return _round(s, 1.0, np.repeat(s.problem.weights, s.problem.dim), 0.0)


def mean_round(s: FamilySetting) -> Array:
    """The same in mean over cohorts of S of N clients: E I_c m̄ = (1/S) {π₂ Σ_j m_j + (π₁ − π₂) m_c}."""
    N, S = s.problem.n_clients, s.linear.participants
    if S == N:
        return full_round(s)
    one, two = S / N, S * (S - 1) / (N * (N - 1))
    return _round(s, one, np.full(N * s.problem.dim, two / S), (one - two) / S)


def _round(s: FamilySetting, taking: float, others: Array, own: float) -> Array:
    """One round; a client takes part with probability `taking` and sees the mean Σ others m + own m_c."""
    (N, d), size, linear = s.gradients.shape, s.size, s.linear
    found = np.zeros((size, size + N * d))
    found[0, 0] = 1.0
    eye, stacked = np.eye(d), np.tile(np.eye(d), (N, 1))
    mean = (np.repeat(s.problem.weights, d)[:, None] * stacked).T
    seen = np.zeros((N * d, N * d)) + stacked @ (others[:, None] * stacked).T + own * np.eye(N * d)
    for k in range(linear.n_server):
        for i in range(linear.n_server):
            found[s.server(k), s.server(i)] += linear.aggregate_server[k, i] * eye
        found[s.server(k), size:] += linear.aggregate_mean[k] * mean
    for j in range(linear.n_client):
        rows = s.clients(j)
        found[rows, rows] += (1.0 - taking) * np.eye(N * d)
        for i in range(linear.n_client):
            found[rows, s.clients(i)] += taking * linear.update_client[j, i] * np.eye(N * d)
        found[rows, size:] += taking * linear.update_sent[j] * np.eye(N * d)
        from_server = linear.update_before[j] + linear.update_after[j] @ linear.aggregate_server
        for i in range(linear.n_server):
            found[rows, s.server(i)] += taking * from_server[i] * stacked
        found[rows, size:] += (linear.update_after[j] @ linear.aggregate_mean) * seen
    return found

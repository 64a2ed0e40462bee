"""Rounds of the method itself with drawn records, for many replicas side by side.

Arrays have the replicas as their last axis, so that every operation runs over thousands of numbers that lie side
by side, and a step costs tens of nanoseconds per client. Copies of a replica draw the same records: two copies
that began differently come ever closer, which says what is left of the beginning with hardly any noise.
"""

from typing import NamedTuple

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.prediction.setting import Setting

PER_STEP = 2.5  # nanoseconds, about, of a local step for each feature
PER_RECORD, PER_FEATURE = 15.0, 1.8  # and of a record of its batch, and for each of its features
PER_CHOICE = 10.0  # and of drawing it without replacement, besides a nanosecond for each record drawn before


class Replicas(NamedTuple):
    """Models and control variates of C copies of R replicas."""

    theta: Array  # (C, d, R)
    xi: Array | None  # (C, d, N, R); None for FedAvg

    @classmethod
    def at(cls, s: Setting, theta: Array, xi: Array, count: int) -> "Replicas":
        """One copy of so many replicas, all at θ (d,) and ξ_c (N, d)."""
        models = np.repeat(theta[None, :, None], count, axis=2)
        return cls(models, np.repeat(xi.T[None, :, :, None], count, axis=3) if s.scaffold else None)

    @classmethod
    def joined(cls, parts: "list[Replicas]") -> "Replicas":
        """The replicas of all parts, one after another."""
        xi = [part.xi for part in parts if part.xi is not None]
        return cls(
            np.concatenate([part.theta for part in parts], axis=2), np.concatenate(xi, axis=3) if xi else None
        )

    def beside(self, other: "Replicas") -> "Replicas":
        """The copies of these replicas and those of others, which will draw the same records."""
        theta = np.concatenate([self.theta, other.theta])
        if self.xi is None or other.xi is None:
            return Replicas(theta, None)
        return Replicas(theta, np.concatenate([self.xi, other.xi]))

    def chosen(self, which: IntArray) -> "Replicas":
        """Some of the replicas."""
        return Replicas(self.theta[..., which], None if self.xi is None else self.xi[..., which])


class SampledRounds:
    """The rounds of a setting on tables of records, with draws that depend on the seed alone."""

    def __init__(self, s: Setting, *seed: int) -> None:
        assert isinstance(s.problem, GeneralisedLinear)
        assert s.batches.size is not None
        self.s, self.problem, self.batch = s, s.problem, s.batches.size
        self.rng = np.random.Generator(np.random.SFC64(seed))
        self.features = np.ascontiguousarray(s.problem.x.T)

    def __call__(self, now: Replicas) -> Replicas:
        """The replicas after a round."""
        s = self.s
        local = np.repeat(now.theta[:, :, None], s.problem.n_clients, axis=2)
        for _ in range(s.H):
            local -= s.gamma * self.gradient(local, now.xi)
        theta = s.problem.weights @ local
        xi = None if now.xi is None else now.xi + (local - theta[:, :, None]) / (s.gamma * s.H)
        return Replicas(theta, xi)

    def gradient(self, local: Array, xi: Array | None) -> Array:
        """Stochastic gradients and corrections at local models (C, d, N, R)."""
        problem = self.problem
        found = problem.penalty[:, None, None] * local
        if xi is not None:
            found += xi
        shape = local.shape[1:]
        for rows in self.records(shape[-1]):
            x = self.features.take(rows.ravel(), axis=1).reshape(shape)
            slopes = problem.d1((x * local).sum(axis=1), problem.y.take(rows)) / self.batch
            found += slopes[:, None] * x
        return found

    def records(self, count: int) -> IntArray:
        """Rows of the problem's table in a batch of every client and replica, (B, N, R).

        Without replacement by Floyd's rule: of the first j + 1 records any is drawn, and where it was drawn
        before, the last of them instead, for j = n − B, ..., n − 1.
        """
        sizes, begin = self.problem.sizes[:, None], self.problem.offsets[:-1, None]
        shape = (self.batch, sizes.size, count)
        if self.s.batches.sampling == "with_replacement":
            return (self.rng.random(shape) * sizes).astype(np.int64) + begin
        chosen = np.empty(shape, dtype=np.int64)
        for k in range(self.batch):
            last = sizes - self.batch + k
            drawn = (self.rng.random(shape[1:]) * (last + 1)).astype(np.int64)
            chosen[k] = np.where((chosen[:k] == drawn).any(axis=0), last, drawn)
        return chosen + begin


def nanoseconds(s: Setting) -> float:
    """About what a round of one replica takes."""
    batch, d = s.batches.size or 0, s.problem.dim
    each = PER_RECORD + PER_FEATURE * d
    if s.batches.sampling == "without_replacement":
        each += PER_CHOICE + batch
    return s.problem.n_clients * s.H * (PER_STEP * d + batch * each)

"""Some records of every client, which stand for all of them while a search goes on."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.supported import is_quadratic

ENOUGH = 3  # records for each feature, to tell how a sample's second moments differ from those of all


@dataclass(frozen=True, eq=False)
class RecordSample:
    """The same records of a problem every time, about so many, as many of each client or all that it has.

    Those of quadratic losses are turned a little, such that their second moments, and so the curvatures, are those
    of all records: with few steps the best step size depends on curvatures very much.
    """

    problem: GeneralisedLinear
    about: int

    @cached_property
    def rows(self) -> list[IntArray]:
        """Where each client's chosen records are among all."""
        problem, rng = self.problem, np.random.default_rng(0)
        each = -(-self.about // problem.n_clients)
        return [
            begin + (np.arange(size) if size <= each else np.sort(rng.choice(size, each, replace=False)))
            for begin, size in zip(problem.offsets[:-1].tolist(), problem.sizes.tolist(), strict=True)
        ]

    @cached_property
    def moments(self) -> Array:
        """E x xᵀ of every client, from all of its records, (N, d, d)."""
        x, offsets = self.problem.x, self.problem.offsets
        tables = [x[begin:end] for begin, end in pairwise(offsets.tolist())]
        return np.stack([own.T @ own / len(own) for own in tables])

    @cached_property
    def pooled(self) -> ClientBlock:
        """The records as one client's; each counts as much as those of its client that it stands for."""
        w, sizes = self.problem.weights, np.array([own.size for own in self.rows])
        share = np.repeat(w / sizes, sizes)
        x, y = self._turned(np.concatenate(self.rows), share, np.tensordot(w, self.moments, axes=1))
        return ClientBlock(np.zeros(1, dtype=np.int64), x[None], y[None], share[None])

    @cached_property
    def block(self) -> ClientBlock:
        """The records of the clients side by side."""
        N, n = len(self.rows), max(own.size for own in self.rows)
        x, y, share = np.zeros((N, n, self.problem.dim)), np.ones((N, n)), np.zeros((N, n))
        for c, own in enumerate(self.rows):
            share[c, : own.size] = 1.0 / own.size
            x[c, : own.size], y[c, : own.size] = self._turned(own, share[c, : own.size], self.moments[c])
        return ClientBlock(np.arange(N), x, y, share)

    def _turned(self, rows: IntArray, share: Array, moment: Array) -> tuple[Array, Array]:
        """Records, of a quadratic loss with given second moments; targets keep their distance from the model."""
        problem = self.problem
        x, y = problem.x[rows], problem.y[rows]
        if rows.size < ENOUGH * problem.dim or not is_quadratic(problem):
            return x, y
        try:
            own, all_of_them = np.linalg.cholesky((x.T * share) @ x), np.linalg.cholesky(moment)
        except np.linalg.LinAlgError:  # features that depend on each other, of which a sample tells nothing more
            return x, y
        turned = x @ np.linalg.solve(own.T, all_of_them.T)
        return turned, y + (turned - x) @ problem.optimum()

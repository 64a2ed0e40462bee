"""The predictor of `theory.predict` on a sample of records, to compare settings of private runs."""

from dataclasses import dataclass, field, replace

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.theory.client_blocks import ClientBlock, list_blocks
from fedscaffold.theory.planning.private.record_sample import RecordSample
from fedscaffold.theory.prediction.clouds.averages import Averages
from fedscaffold.theory.prediction.clouds.clipped import ClippedAverages
from fedscaffold.theory.prediction.moments.curve import small_curve
from fedscaffold.theory.prediction.moments.local_round import LocalRound
from fedscaffold.theory.prediction.setting import setting
from fedscaffold.theory.supported import is_quadratic

ABOUT, ABOUT_QUADRATIC = 2000, 6000  # records; averages of quadratic losses take less time


@dataclass(frozen=True, eq=False)
class MovedAverages(ClippedAverages):
    """Averages over a sample, with gradients moved such that at one point they are those of all records."""

    moved: Array = field(kw_only=True)  # (N, d)

    def over_clouds(self, block: ClientBlock, mean: Array, cov: Array, factors: Array) -> Averages:
        """E ∇f_c, E C_c and E ∇²f_c under θ ~ N(mean, cov), for mean (k, m, d) and cov (k, m, d, d)."""
        found = super().over_clouds(block, mean, cov, factors)
        return found._replace(gradient=found.gradient + self.moved[block.clients][:, None])


class Rehearsal:
    """Predicted errors of private runs of one problem, from a sample of its records."""

    def __init__(self, problem: GeneralisedLinear, batches: Batches) -> None:
        self.problem = problem
        self.blocks = list_blocks(problem)
        self.sample = RecordSample(problem, ABOUT_QUADRATIC if is_quadratic(problem) else ABOUT)
        self.counts = problem.sizes if batches.size is None else np.full(problem.n_clients, batches.size)
        plain = ClippedAverages(problem, False, 1.0, np.zeros(problem.n_clients))
        self.setting = setting(problem, Scaffold(step_size=1.0, local_steps=1), batches, None, plain)

    def error(self, clip: float, gamma: float, H: int, T: int, noise: float, rest: Array) -> float:
        """E‖θ_T − θ*‖² where all records' mean clipped gradient vanishes at `rest`.

        Scaffold with one local step moves θ as FedAvg does, whose state is smaller.
        """
        variances = np.square(noise * clip / self.counts)
        points, whole = rest[None, None], ClippedAverages(self.problem, False, clip, variances)
        gradients = np.empty((self.problem.n_clients, rest.size))
        for block in self.blocks:
            gradients[block.clients] = whole.gradients(block, np.repeat(points, block.clients.size, axis=0))[:, 0]
        gradients -= self.problem.weights @ gradients  # `rest` is known to a few digits
        own = whole.gradients(self.sample.block, np.repeat(points, len(gradients), axis=0))[:, 0]
        s = replace(
            self.setting, gamma=gamma, H=H, scaffold=H > 1, optimum=rest,
            averages=MovedAverages(self.problem, False, clip, variances, moved=gradients - own),
            at_optimum=self.setting.at_optimum._replace(gradients=gradients),
        )  # fmt: skip
        local = LocalRound(s, skew=False, blocks=[self.sample.block])
        return float(np.add(*small_curve(s, local, T, rest - self.problem.optimum()))[-1])

"""What a run on minibatches knows about its own error, without the optimum.

With a fixed step size γ the models end up walking about a point, the plateau. How well the mean over the plateau
is known follows from how the models walk (Lemma 5.1 turned round: it predicts the spread from the noise of
gradients, here the spread is seen). How far the point is from the optimum follows from a second plateau with γ/2
and twice the local steps: the bias is proportional to γ at equal γH, so that the two points are as far apart as
the second is from the optimum.

Neither sees an approach that is slower than the noise allows to notice, as where sites differ much and take many
local steps. So these are estimates: what is delivered is certified by sums over all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.types import Array
from fedscaffold.simulation.stages.stationarity import BATCHES, MIN_ROUNDS, truncation

GROUPS = 8  # of consecutive rounds, whose means are taken as independent
CLEAR = 2.0  # standard errors that a difference must have to be taken for bias


@dataclass(frozen=True, kw_only=True, eq=False)
class PlateauMean:
    """The mean of the models while a run was stationary.

    Parameters
    ----------
    mean
        The tail average, shape (dim,).
    variances
        Squared standard error of each entry of it, from means of consecutive rounds, shape (dim,).
    spread
        Variance of each entry of single models, shape (dim,).
    rounds
        Number of rounds in it.
    """

    mean: Array
    variances: Array
    spread: Array
    rounds: int


def find_plateau(models: Sequence[Array]) -> PlateauMean | None:
    """The plateau that the models of consecutive rounds end with; None while they still come closer.

    The first models are left out so that the mean of the others is known best; a run that would have to leave out
    more than half is not stationary.
    """
    n = len(models)
    if n < MIN_ROUNDS:
        return None
    series = np.array(models)
    width = max(1, n // BATCHES)
    left_out = truncation(series[n % width :].reshape(-1, width, series.shape[1]).mean(axis=1))
    if left_out is None:
        return None
    tail = series[n % width + left_out * width :]
    size = len(tail) // GROUPS
    if size == 0:
        return None
    groups = tail[len(tail) % GROUPS :].reshape(GROUPS, size, -1).mean(axis=1)
    drift = groups[GROUPS // 2 :].mean(axis=0) - groups[: GROUPS // 2].mean(axis=0)
    variances = groups.var(axis=0, ddof=1) / GROUPS
    if float(drift @ drift) > 4.0 * CLEAR**2 * float(variances.sum()):  # drift has four times the mean's variance
        return None
    return PlateauMean(mean=tail.mean(axis=0), variances=variances, spread=tail.var(axis=0), rounds=len(tail))


@dataclass(frozen=True, kw_only=True, eq=False)
class StageEstimate:
    """A model from one or two plateaus, and how far it may be from the optimum.

    Parameters
    ----------
    theta
        The model, shape (dim,).
    fluctuation
        Standard error of its length's part that comes from the models' walk, slopes alone.
    bias
        Length of the part that comes from the step size, slopes alone. After one plateau it is not known, and how
        far single models are from their mean stands in for it: the bias is of second order in that.
    bias_known
        Whether two plateaus were compared.
    """

    theta: Array
    fluctuation: float
    bias: float
    bias_known: bool

    @property
    def error(self) -> float:
        """√(fluctuation² + bias²), how far the model may be from the optimum."""
        return float(np.hypot(self.fluctuation, self.bias))


def estimate_stage(plateaus: Sequence[PlateauMean], slopes: NDArray[np.bool_]) -> StageEstimate:
    """The model after the newest plateau, extrapolated to γ = 0 where the last two differ clearly.

    Parameters
    ----------
    plateaus
        Of stages whose step size was halved and local steps doubled from one to the next.
    slopes
        Whether each entry of θ counts in lengths, shape (dim,).
    """
    last = plateaus[-1]
    noise = float(last.variances[slopes].sum())
    if len(plateaus) < 2:
        spread = float(last.spread[slopes].sum()) ** 0.5
        return StageEstimate(theta=last.mean, fluctuation=noise**0.5, bias=spread, bias_known=False)
    before = plateaus[-2]
    apart = last.mean - before.mean
    of_both = noise + float(before.variances[slopes].sum())
    bias = float(np.linalg.norm(apart[slopes]))
    if bias <= CLEAR * of_both**0.5:
        return StageEstimate(theta=last.mean, fluctuation=noise**0.5, bias=bias, bias_known=True)
    # 2θ̄(γ/2) − θ̄(γ): what is left of the bias is of the next order, at most as large as the correction's noise
    spread = (4.0 * noise + of_both - noise) ** 0.5
    return StageEstimate(theta=last.mean + apart, fluctuation=spread, bias=0.5 * bias, bias_known=True)

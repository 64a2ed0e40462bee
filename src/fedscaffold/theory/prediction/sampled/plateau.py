"""The plateau of a setting by drawn rounds."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.sampled.rounds import Replicas, SampledRounds, nanoseconds
from fedscaffold.theory.prediction.setting import Setting

BUDGET = 1e9  # nanoseconds of processor time
PRECISE = 0.005  # relative standard error at which no more rounds are drawn
FORGOTTEN = 4.0  # times the rounds to forget that are left out at the beginning
FEWEST = 40  # replicas
NUMBERS, MODELS = 65_536, 8_192  # numbers in local models, and such models, that are worth handling at once
MOST_NUMBERS = 4_000_000  # and that fit in memory
MOST_STAGES = 64


@dataclass(frozen=True, eq=False)
class SampledPlateau:
    """What drawn rounds say of the stationary law, and how precisely.

    Attributes
    ----------
    mse
        E‖θ − θ*‖².
    error
        Its standard error, over independent replicas, relative.
    drift
        By how much the later half of the rounds differs from the earlier, relative, beyond three standard errors.
    second
        E (θ − θ*)(θ − θ*)ᵀ, (d, d).
    mean, mean_error
        E θ − θ*, (d,), and the squared standard errors of its parts.
    ahead
        E ξ_c − ξ*_c, (N, d); zero for FedAvg.
    ends
        The replicas after each stage, some rounds apart.
    rounds
        How many were drawn for each replica.
    """

    mse: float
    error: float
    drift: float
    second: Array
    mean: Array
    mean_error: Array
    ahead: Array
    ends: list[Replicas]
    rounds: int

    @property
    def replicas(self) -> int:
        """How many runs were drawn."""
        return int(self.ends[0].theta.shape[2])


def sampled_plateau(s: Setting, forget: float, theta: Array, ahead: Array, seed: int) -> SampledPlateau | None:
    """The plateau by runs that begin at θ* + theta, ξ*_c + ahead_c; None where too few rounds can be afforded.

    The rounds come in stages, after each of which the standard error decides whether there is another.
    """
    N, d = s.gradients.shape
    left_out, count = beginning(forget), affordable_replicas(s, forget)
    if count == 0:
        return None
    length = left_out // 2
    draw, now = SampledRounds(s, seed), Replicas.at(s, s.optimum + theta, ahead - s.gradients, count)
    most = int(min(MOST_STAGES, (BUDGET / (nanoseconds(s) * count) - left_out) // length))
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(left_out):
            now = draw(now)
        squares, means, second, xi, ends = [], np.zeros((d, count)), np.zeros((d, d)), np.zeros((d, N)), []
        for stage in range(1, most + 1):
            square = np.zeros(count)
            for _ in range(length):
                now = draw(now)
                away = now.theta[0] - s.optimum[:, None]
                square += np.square(away).sum(axis=0)
                means += away
                second += away @ away.T
                if now.xi is not None:
                    xi += now.xi[0].mean(axis=2)
            squares.append(square / length)
            ends.append(now)
            mse, error = mean_and_error(np.mean(squares, axis=0))
            if not np.isfinite(mse) or (stage >= 2 and error <= PRECISE * mse):
                break
    if not np.isfinite(mse):
        return None
    done, half = stage * length, stage // 2
    change, noise = mean_and_error(np.mean(squares[half:], axis=0) - np.mean(squares[:half], axis=0))
    size, each = max(mse, np.finfo(float).tiny), means / done
    return SampledPlateau(
        mse=mse,
        error=error / size,
        drift=max(abs(change) - 3.0 * noise, 0.0) / size,
        second=second / (done * count),
        mean=each.mean(axis=1),
        mean_error=each.var(axis=1, ddof=1) / count,
        ahead=xi.T / done + s.gradients if s.scaffold else s.gradients,
        ends=ends,
        rounds=left_out + done,
    )


def beginning(forget: float) -> int:
    """How many rounds are left out."""
    return int(FORGOTTEN * forget) + 4


def affordable_replicas(s: Setting, forget: float) -> int:
    """How many replicas can be drawn beyond the beginning; 0 where that is too few to tell anything."""
    N, d = s.gradients.shape
    affordable = BUDGET / (nanoseconds(s) * 2 * beginning(forget))
    count = int(min(handled_at_once(s), affordable))
    return count if count >= FEWEST and count * N * d <= MOST_NUMBERS else 0


def handled_at_once(s: Setting) -> int:
    """How many replicas are best handled side by side."""
    N, d = s.gradients.shape
    return max(min(NUMBERS // (N * d), MODELS // N), FEWEST)


def mean_and_error(values: Array) -> tuple[float, float]:
    """The mean over replicas and its standard error."""
    return float(values.mean()), float(values.std(ddof=1)) / values.size**0.5

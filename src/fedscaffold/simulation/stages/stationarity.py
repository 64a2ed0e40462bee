"""From which round a run is stationary, and how precisely its plateau is known.

Truncation by MSER (K. P. White, "An effective truncation heuristic for bias reduction in simulation
output", Simulation 69, 1997): leave out the first rounds so that the standard error of the mean of the rest,
taken as if rounds were independent, is smallest. Standard errors by Geyer's initial monotone sequence
("Practical Markov chain Monte Carlo", Statistical Science 7, 1992), which accounts for autocorrelation.
"""

from typing import NamedTuple

import numpy as np

from fedscaffold.core.display import html_summary
from fedscaffold.core.types import Array

MIN_ROUNDS = 10  # shorter series are never called stationary
BATCHES = 40  # MSER works on the means of about so many groups of consecutive rounds


class MeanEstimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    standard_error: float


class Plateau(NamedTuple):
    """The mean of a series over its stationary rounds.

    Attributes
    ----------
    mean, standard_error
        The mean over rounds and repetitions, and its standard error, which accounts for autocorrelation.
    from_round
        The first round of the mean.
    effective_samples
        Number of independent observations that would give the same standard error.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> trace = fs.run(problem, fs.Scaffold(step_size=0.05, local_steps=20), rounds=200, batch_size=10)
    >>> plateau = trace.plateau()
    >>> bool(plateau.mean < trace.mse[0, 0])
    True
    """

    mean: float
    standard_error: float
    from_round: int
    effective_samples: float

    def __repr__(self) -> str:
        return (
            f"Plateau(mean={self.mean:.4g}, standard_error={self.standard_error:.2g}, "
            f"from_round={self.from_round}, effective_samples={self.effective_samples:.3g})"
        )

    def _repr_html_(self) -> str:
        facts = {
            "mean": f"{self.mean:.4g} ± {self.standard_error:.2g}",
            "from round": self.from_round,
            "effective samples": f"{self.effective_samples:.3g}",
        }
        return html_summary("Plateau", facts)


def stationary_from(series: Array) -> int | None:
    """Return the first round of the stationary part of (repetitions, rounds) series; None if it has none.

    It is also None when more than half of the rounds would have to be left out: then the run is too short.
    """
    mean = series.mean(axis=0)
    if mean.size < MIN_ROUNDS or not np.isfinite(mean).all():
        return None
    width = max(1, mean.size // BATCHES)
    first = truncation(mean[mean.size % width :].reshape(-1, width).mean(axis=1)[:, None])
    if first is None:
        return None
    return first * width + mean.size % width if first else 0


def truncation(batches: Array) -> int | None:
    """Return argmin_k Σ_{i ≥ k} ‖x_i − mean(x_k, x_{k+1}, ...)‖² / (n − k)², of n vectors x_i, (n, dim).

    It is MSER for vectors: how many to leave out so that the mean of the rest is most precise. None when that
    would be more than half of them.
    """
    centred = batches - batches.mean(axis=0)  # against cancellation
    kept = np.arange(len(batches), 0, -1)
    tail_mean = np.cumsum(centred[::-1], axis=0)[::-1] / kept[:, None]
    tail_square = np.cumsum(np.square(centred[::-1]).sum(axis=1))[::-1] / kept
    statistic = np.maximum(tail_square - np.square(tail_mean).sum(axis=1), 0.0) / kept
    first = int(statistic[: max(1, 3 * len(batches) // 4)].argmin())
    return None if first > len(batches) // 2 else first


def autocorrelation_time(series: Array) -> float:
    """Return τ = 1 + 2 Σ_k ρ_k ≥ 1 of (repetitions, rounds) series, by Geyer's initial monotone sequence."""
    length = series.shape[1]
    centred = series - series.mean()
    spectrum = np.fft.rfft(centred, 2 * length, axis=1)
    autocovariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :length].mean(axis=0) / length
    if autocovariance[0] <= 0.0:
        return 1.0
    rho = autocovariance / autocovariance[0]
    pairs = rho[: length // 2 * 2].reshape(-1, 2).sum(axis=1)
    positive = pairs[: int(np.argmax(pairs <= 0))] if (pairs <= 0).any() else pairs
    return max(1.0, 2.0 * float(np.minimum.accumulate(positive).sum()) - 1.0)


def plateau(series: Array, from_round: int) -> Plateau:
    """Return the mean of (repetitions, rounds) series from a round on, with its standard error."""
    late = series[:, from_round:]
    effective = late.size / autocorrelation_time(late)
    return Plateau(float(late.mean()), float(late.std() / np.sqrt(effective)), from_round, float(effective))

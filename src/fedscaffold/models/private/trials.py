"""Noisy gradient descent on simulated rows with many settings side by side: what each would come to.

Simulated rows are public, so that looking at what clipping and noise make of them costs nothing of a budget.
Numbers are of single precision, whose rounding is far below the noise.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.machine import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.problems.base import OFFSET, TARGET, plain_columns, softmax
from fedscaffold.problems.multinomial import Multinomial


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """Settings of runs, one entry per run in each array.

    Attributes
    ----------
    clip, step_size, steps
        C, γ and the number of steps.
    noise
        Standard deviation of the noise in every coordinate of a step's mean gradient.
    """

    clip: Array
    step_size: Array
    steps: NDArray[np.int64]
    noise: Array

    def take(self, which: Any) -> "Trials":
        """Some of the settings, in this order."""
        return replace(self, **{name: getattr(self, name)[which] for name in self.__dataclass_fields__})


@one_blas_thread
def relative_errors(problem: Any, trials: Trials, *, repetitions: int, seed: int) -> Array:
    """Mean of ‖θ − θ*‖² / ‖θ*‖² over repetitions after each run from θ = 0, (runs,); infinite where one overflows.

    Parameters
    ----------
    problem
        A generalised linear or multinomial problem; all of its records count alike.
    trials
        The runs' settings.
    repetitions
        How often each run is made, an even number: half of them with noise of the other sign. All runs of one
        repetition get the same noise, each times its own size.
    seed
        Of the noise.
    """
    order = np.argsort(-trials.steps, kind="stable")
    last = _descents(problem, trials.take(order), repetitions, np.random.default_rng(seed))
    best = problem.optimum()
    squares = np.square(centred(last, problem.vectors) - best).sum(axis=2).mean(axis=1) / (best @ best)
    found = np.empty(order.size)
    found[order] = np.where(np.isfinite(squares), squares, np.inf)
    return found


def gradient_norms(problem: Any, theta: Array) -> Array:
    """Norms of the records' gradients at a model, penalty left out, (records,)."""
    slopes = np.reshape(_slopes(problem, _margins(problem.x, theta[None])), (problem.vectors, -1))
    found: Array = np.linalg.norm(slopes, axis=0) * np.linalg.norm(problem.x, axis=1)
    return found


def centred(theta: Array, vectors: int) -> Array:
    """θ of several classes minus the mean over the classes, which no prediction depends on; else θ as it is.

    The minimiser has mean 0; noise moves it, since no gradient pulls it back.
    """
    if vectors == 1:
        return theta
    parts = theta.reshape(*theta.shape[:-1], vectors, -1)
    return np.asarray((parts - parts.mean(axis=-2, keepdims=True)).reshape(theta.shape))


def _descents(problem: Any, trials: Trials, repetitions: int, rng: np.random.Generator) -> Array:
    """θ at the end of each run, (runs, repetitions, dim); runs come with the longest first."""
    x, penalty = problem.x.astype(np.float32), problem.penalty.astype(np.float32)
    theta = np.zeros((trials.steps.size, repetitions, problem.dim), dtype=np.float32)
    gamma = trials.step_size.astype(np.float32)[:, None, None]
    spread = gamma * trials.noise.astype(np.float32)[:, None, None]
    largest = (trials.clip[:, None] / np.linalg.norm(problem.x, axis=1)).astype(np.float32)  # of the slopes
    most = np.repeat(largest, repetitions, axis=0)
    for k in range(int(trials.steps.max(initial=0))):
        m = int(np.searchsorted(-trials.steps, -k, side="left"))  # those with more than k steps
        half = rng.standard_normal((repetitions // 2, problem.dim), dtype=np.float32)
        drawn = np.concatenate([half, -half])
        slopes = _slopes(problem, _margins(x, theta[:m].reshape(-1, problem.dim)))
        slopes = _clipped(slopes.reshape(m * repetitions, problem.vectors, -1), most[: m * repetitions])
        mean = (slopes.reshape(-1, len(x)) @ x).reshape(theta[:m].shape) / np.float32(len(x))
        theta[:m] -= gamma[:m] * (mean + penalty * theta[:m]) + spread[:m] * drawn
    return theta


def _margins(x: Array, theta: Array) -> Array:
    """Margins of records under (m, dim) models, (m · vectors, records)."""
    found: Array = theta.reshape(-1, x.shape[1]) @ x.T
    return found


def _slopes(problem: Any, margins: Array) -> Array:
    """Derivatives of the records' losses in their margins, of the margins' shape."""
    if isinstance(problem, Multinomial):
        chances = softmax(margins.reshape(-1, problem.vectors, len(problem.x)))
        chances[:, problem.y.astype(np.int64), np.arange(len(problem.x))] -= 1.0
        return chances.reshape(margins.shape)
    y = plain_columns(problem.y).astype(margins.dtype)
    with np.errstate(over="ignore"):  # a slope that is infinite is clipped
        return np.asarray(problem.d1(margins + y[:, OFFSET], y[:, TARGET]))


def _clipped(slopes: Array, largest: Array) -> Array:
    """Slopes (m, vectors, records) of norm at most `largest`, (m, records)."""
    if slopes.shape[1] == 1:
        return np.clip(slopes, -largest[:, None, :], largest[:, None, :])
    return slopes * (largest / np.maximum(np.sqrt(np.square(slopes).sum(axis=1)), largest))[:, None, :]

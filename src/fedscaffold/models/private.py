"""Fit a model under a privacy budget: all that is given away is covered by the budget, or was public before."""

import os
from typing import Any

import numpy as np

from fedscaffold.core.display import Progress, progress_bar
from fedscaffold.core.types import Array
from fedscaffold.data.files import read_table
from fedscaffold.data.public import Bounds
from fedscaffold.data.settings import DETECTED, CsvFormat, Penalty
from fedscaffold.data.tables import frame_source, pick_all
from fedscaffold.inference.closing import Certificate
from fedscaffold.inference.sums import slope_mask
from fedscaffold.inference.training import Trained
from fedscaffold.models.coding import Coding
from fedscaffold.models.fit import Fit, SavedSettings
from fedscaffold.privacy.grid import clipped_sum, discrete_gaussian
from fedscaffold.privacy.plan import PrivacySettings, PrivatePlan, public_plan


def private_fit(
    data: Any,
    *,
    client: str,
    settings: PrivacySettings,
    bounds: Bounds,
    l2: Penalty = "auto",
    text: CsvFormat = DETECTED,
    progress: Progress = None,
) -> Fit:
    """Fit a model by gradient descent on clipped gradients with noise from the operating system's generator.

    Parameters
    ----------
    data, client, l2, progress
        As for `fedscaffold.fit`.
    bounds
        Public ranges and values of the target and every feature.
    settings
        The budget, and settings of the training that should not be chosen for it.
    text
        The format of a .csv file.
    """
    table = read_table(data, text) if isinstance(data, str | os.PathLike) else data
    pick_all(frame_source(table).names, [client, *bounds.columns])
    problem = bounds.problem(table, client, l2)
    public = bounds.public_target
    plan = public_plan(public, bounds.levels, problem.sizes.tolist(), settings, l2=problem.l2)
    theta = run_privately(problem, plan, progress)
    return Fit(
        coding=Coding.of_problem(problem, target_shift=public.shift, target_scale=public.scale),
        trained=trained_privately(theta, problem.vectors, problem.n_unpenalised, plan),
        sites=tuple(map(str, problem.client_names)),
        n_rows=problem.n_records,
        settings=SavedSettings(vars(settings)),
        privacy=plan,
    )


def trained_privately(theta: Array, vectors: int, n_intercepts: int, plan: PrivatePlan) -> Trained:
    """Return θ after a plan's rounds as a trained model, whose distance to the pooled one is unknown."""
    unknown = np.full(theta.size, np.nan)
    slopes = slope_mask(vectors, theta.size // vectors, n_intercepts)
    certificate = Certificate(theta=theta, loss=np.nan, step=unknown, decrement=np.nan, slopes=slopes)
    return Trained(
        theta=theta, certificate=certificate, reached=False, rounds=plan.rounds, trainer="noisy gradients",
        notes=(plan.explain(),),
    )  # fmt: skip


def run_privately(problem: Any, plan: PrivatePlan, progress: Progress = None) -> Array:
    """Return θ after the plan's rounds, (dim,); every client adds its noise to the sum over its rows."""
    theta = velocity = np.zeros(problem.dim)
    rows = np.arange(int(problem.sizes.sum()))
    with progress_bar("Private fit", progress) as advance:
        for done in range(plan.rounds):
            noise = discrete_gaussian(plan.noise, problem.n_clients * theta.size).reshape(-1, theta.size)
            total = clipped_sum(problem, theta, rows, plan.clip) + noise.sum(axis=0)
            theta, velocity = plan.step(theta, velocity, total, problem.penalty)
            advance(done + 1, plan.rounds)
    return centred(theta, problem.vectors)


def centred(theta: Array, vectors: int) -> Array:
    """Return θ of several classes minus its mean over them, which noise moves and no prediction depends on."""
    parts = theta.reshape(vectors, -1)
    return theta if vectors == 1 else np.asarray((parts - parts.mean(axis=0)).ravel())

"""From a table of any kind to a fit in one call: the command line's `fit` in Python."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict, Unpack, overload

from fedscaffold.core.checks import suggest_names
from fedscaffold.core.display import Progress
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.files import read_table
from fedscaffold.data.open import open_problem
from fedscaffold.data.public import Bounds
from fedscaffold.data.settings import FitTableSettings, Penalty, TableKeywords, shared_parameters
from fedscaffold.data.tables import frame_source, pick_all
from fedscaffold.inference.closing import Dispersion
from fedscaffold.models.fit import Fit, run_fit
from fedscaffold.models.planning.planned import TOLERANCE, BatchSize, FitSettings, plan_fit
from fedscaffold.models.private import PrivateFit, private_fit
from fedscaffold.privacy.settings import PrivacySettings, refuse_beside_epsilon
from fedscaffold.problems.families import Kind


class FitKeywords(TableKeywords, total=False):
    """The further parameters of `fit` without a privacy budget."""

    tolerance: float | str
    close: bool
    batch_size: BatchSize
    step_size: float | None
    local_steps: int | None
    rounds: int | None
    seed: int
    client_intercepts: bool
    dispersion: Dispersion
    checkpoint: str | os.PathLike[str] | None
    progress: Progress


class PrivateKeywords(TypedDict, total=False):
    """The further parameters of `fit` with a privacy budget."""

    kind: Kind | None
    l2: Penalty
    delta: float | None
    clip: float | None
    bounds: Required[Mapping[str, Sequence[Any]]]
    categorical: Sequence[str]
    step_size: float | None
    rounds: int | None
    progress: Progress


@overload
def fit(data: Any, *, target: str, client: str, epsilon: None = None, **options: Unpack[FitKeywords]) -> Fit: ...


@overload
def fit(
    data: Any, *, target: str, client: str, epsilon: float, **options: Unpack[PrivateKeywords]
) -> PrivateFit: ...


@suggest_names
@shared_parameters(FitTableSettings, leave_out=("target", "client"))
def fit(
    data: Any,
    *,
    target: str,
    client: str,
    tolerance: float | str = TOLERANCE,
    close: bool = True,
    batch_size: BatchSize = "auto",
    step_size: float | None = None,
    local_steps: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    client_intercepts: bool = False,
    dispersion: Dispersion = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = None,
    epsilon: float | None = None,
    delta: float | None = None,
    clip: float | None = None,
    bounds: Mapping[str, Sequence[Any]] | None = None,
    **settings: Unpack[TableKeywords],
) -> Fit | PrivateFit:
    """Fit one model to a table whose rows belong to clients, as `fedscaffold fit` does.

    By default features are standardised, there is an intercept, a client's weight is its number of rows, `l2` is
    "auto", and `kind` follows from the target. With a privacy budget, `epsilon`, the result is a `PrivateFit`: a
    differentially private model, and nothing that the budget does not cover.

    Parameters
    ----------
    data
        A pandas or polars DataFrame or a pyarrow Table; or the path of a .csv or .parquet file, or of a folder of
        the latter.
    target, client
        Names of the column to predict, and of the column that says to which client a row belongs.
    tolerance, close, batch_size, step_size, local_steps, rounds, seed, client_intercepts, dispersion
        As in `fedscaffold.models.FitSettings`.
    checkpoint, progress
        As in `fedscaffold.models.fit`.
    epsilon
        ε of a privacy budget of every row. Gradients of rows are then clipped and every step gets noise from the
        operating system's generator; the columns are coded by `bounds`, there are no Newton steps, standard errors
        or comparisons, and of the other options only `kind`, `l2`, `categorical`, `step_size`, `rounds` and
        `progress` can be given. Unless `kind` is given, a target with a range makes it ridge, one
        with values logistic.
    delta
        δ of the budget, below one over the rows of every client; a tenth of that for the largest unless given.
    clip
        The largest norm of a row's gradient under a budget; chosen unless given.
    bounds
        Under a budget, the public range (low, high) or the possible values of the target and of every feature;
        other columns are not used. Numbers beyond their range count as its end, other values of a category as
        none of those known. Counts need whole numbers from 0 on, positive amounts a low end above 0.
    {FitTableSettings}

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> visits = pd.DataFrame({"age": rng.normal(60, 10, 300), "hospital": rng.choice(list("ABC"), 300)})
    >>> visits["ill"] = np.where(rng.random(300) < 1 / (1 + np.exp(6 - 0.1 * visits["age"])), "yes", "no")
    >>> fitted = fs.fit(visits, target="ill", client="hospital", l2=0)
    >>> fitted.summary().ratios().loc["age"].round(2).tolist()
    [1.11, 1.08, 1.15]
    """
    if epsilon is not None:
        allowed = {name: value for name, value in settings.items() if name in ("kind", "l2", "categorical")}
        refuse_beside_epsilon(
            {
                "tolerance": tolerance, "close": close, "batch_size": batch_size, "seed": seed,
                "client_intercepts": client_intercepts, "dispersion": dispersion, "checkpoint": checkpoint,
                "local_steps": local_steps, **settings,
            },
            {
                "tolerance": TOLERANCE, "close": True, "batch_size": "auto", "seed": 0, "client_intercepts": False,
                "dispersion": None, "checkpoint": None, "local_steps": None, **allowed,
            },
        )  # fmt: skip
        budget = PrivacySettings(epsilon=epsilon, delta=delta, clip=clip, step_size=step_size, rounds=rounds)
        categorical = settings.get("categorical", ())
        known = Bounds.parse(bounds, target=target, kind=settings.get("kind"), categorical=categorical)
        table = read_table(data) if isinstance(data, str | os.PathLike) else data
        pick_all(frame_source(table).names, [client, *known.columns])
        l2 = settings.get("l2", "auto")
        return private_fit(table, bounds=known, client=client, settings=budget, l2=l2, progress=progress)
    for name, value in (("delta", delta), ("clip", clip), ("bounds", bounds)):
        if value is not None:
            raise InvalidInput(f"{name} requires epsilon=...")
    chosen = FitSettings(
        tolerance=tolerance, close=close, batch_size=batch_size, step_size=step_size, local_steps=local_steps,
        rounds=rounds, seed=seed, client_intercepts=client_intercepts, dispersion=dispersion,
    )  # fmt: skip
    problem = open_problem(data, target=target, client=client, **settings)
    return run_fit(plan_fit(problem, chosen), chosen, checkpoint=checkpoint, progress=progress)

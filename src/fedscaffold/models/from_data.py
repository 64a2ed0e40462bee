"""From a table of any kind to a fit in one call: the command line's `fit` in Python."""

import os
from typing import Any, Unpack

from fedscaffold.core.display.progress import Progress
from fedscaffold.core.docs import shared_parameters
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.arrow import frame_source
from fedscaffold.data.columns import check_names
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.frame import from_frame
from fedscaffold.data.open import guess_kind, open_problem
from fedscaffold.data.options import FileKeywords, Penalty, TableOptions
from fedscaffold.inference.closing import Dispersion
from fedscaffold.models.fit import Fit, run_fit
from fedscaffold.models.planning.planned import TOLERANCE, BatchSize, FitSettings, plan_fit
from fedscaffold.problems.families import Kind


@shared_parameters(
    TableOptions,
    leave_out=("target", "client", "kind", "l2", "weights", "standardize", "intercept"),
)
def fit(
    data: Any,
    *,
    target: str,
    client: str,
    kind: Kind | None = None,
    l2: Penalty = "auto",
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
    **options: Unpack[FileKeywords],
) -> Fit:
    """Fit one model to a table whose rows belong to clients, as `fedscaffold fit` does.

    Features are standardised, there is an intercept, and a client's weight is its number of rows.

    Parameters
    ----------
    data
        A pandas or polars DataFrame or a pyarrow Table; or the path of a .csv or .parquet file, or of a folder of
        the latter.
    target, client
        Names of the column to predict, and of the column that says to which client a row belongs.
    kind
        "ridge", "logistic", "poisson" (counts) or "gamma" (positive amounts); by default ridge for numbers with
        more than 20 different values, else logistic.
    l2
        Strength of the penalty l2/2 ‖θ‖² on the mean loss; the intercept is not penalised. "auto": 1 divided by
        the number of rows. 0 for coefficients without shrinkage.
    tolerance, close, batch_size, step_size, local_steps, rounds, seed, client_intercepts, dispersion
        As in `fedscaffold.models.FitSettings`.
    checkpoint, progress
        As in `fedscaffold.models.fit`.
    {TableOptions}

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
    settings = FitSettings(
        tolerance=tolerance, close=close, batch_size=batch_size, step_size=step_size, local_steps=local_steps,
        rounds=rounds, seed=seed, client_intercepts=client_intercepts, dispersion=dispersion,
    )  # fmt: skip
    problem = problem_from(data, target=target, client=client, kind=kind, l2=l2, **options)
    return run_fit(plan_fit(problem, settings), settings, checkpoint=checkpoint, progress=progress)


def problem_from(
    data: Any, *, target: str, client: str, kind: Kind | None, l2: Penalty, **options: Unpack[FileKeywords]
) -> EncodedProblem:
    """The problem of a frame, a file or a folder."""
    if isinstance(data, EncodedProblem):
        raise InvalidInput("this is a problem already; give it to fedscaffold.models.fit")
    if isinstance(data, str | os.PathLike):
        return open_problem(data, target=target, client=client, kind=kind, l2=l2, **options)
    same: Any = {
        "target": target, "client": client, "l2": l2, "weights": "rows", "standardize": True, "intercept": True,
        **options,
    }  # fmt: skip
    TableOptions(kind="ridge" if kind is None else kind, **same)  # refused before the table is read
    if kind is None:
        source = frame_source(data)
        check_names(source.names)
        kind = "ridge"
        if target in source.names:
            kind = guess_kind([batch.column(0) for batch in source.open([target])([target])])
    return from_frame(data, kind=kind, **same)

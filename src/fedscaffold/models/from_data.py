"""Fit a model to a table of any kind in one call: the command line's `fit` in Python."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeVar, Unpack, cast

from fedscaffold.core.checks import suggest_names
from fedscaffold.core.display import Progress
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Engine
from fedscaffold.data.open import open_problem
from fedscaffold.data.public import Bounds
from fedscaffold.data.settings import FitTableSettings, TableKeywords, shared_parameters
from fedscaffold.inference.closing import Dispersion
from fedscaffold.inference.training import Trainer
from fedscaffold.models.fit import Fit, FitSettings
from fedscaffold.models.fit import fit as fit_problem
from fedscaffold.models.private import private_fit
from fedscaffold.privacy.plan import PrivacySettings, refuse_beside_epsilon

T = TypeVar("T", bound=Callable[..., Any])
DROPPED = {
    "batch_size": "a fit uses all rows of each client in every step; fs.run takes batches",
    "checkpoint": "a fit takes seconds and is not interrupted; fs.run takes checkpoints",
    "local_steps": "the trainer finds it; fs.run takes a method with given local steps",
    "close": "every fit ends with Newton steps and a certificate; fs.run stops without them",
    "seed": "a fit draws nothing; fs.run draws batches",
}


def reject_dropped(function: T) -> T:
    """Make a function raise for keywords that it no longer has, with a sentence about what replaced them."""

    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name in DROPPED:
                raise InvalidInput(f"fit has no {name}: {DROPPED[name]}")
        return function(*args, **keywords)

    return cast(T, checked)


class FitKeywords(TableKeywords, total=False):
    """The settings of a table and of a fit as keyword arguments, for type checkers."""

    trainer: Trainer
    tolerance: float | str
    max_exchanges: int
    client_intercepts: bool | Literal["random"]
    dispersion: Dispersion
    engine: str | Engine


@reject_dropped
@suggest_names
@shared_parameters(FitTableSettings, leave_out=("target", "client"))
@shared_parameters(FitSettings)
def fit(
    data: Any,
    *,
    target: str | tuple[str, str],
    client: str,
    progress: Progress = None,
    epsilon: float | None = None,
    delta: float | None = None,
    clip: float | None = None,
    bounds: Mapping[str, Sequence[Any]] | None = None,
    step_size: float | None = None,
    rounds: int | None = None,
    **settings: Unpack[FitKeywords],
) -> Fit:
    """Fit one model to a table whose rows belong to clients, as `fedscaffold fit` does.

    By default features are standardised, there is an intercept, a client's weight is its number of rows, `l2` is
    "auto", and `kind` follows from the target. A fit is a study in one process: for few coefficients it takes
    Newton steps on sums over clients, for many it runs Scaffold. With a privacy budget, `epsilon`, the model is
    differentially private, and nothing is computed that the budget does not cover.

    Parameters
    ----------
    data
        A pandas or polars DataFrame or a pyarrow Table; or the path of a .csv or .parquet file, or of a folder of
        the latter.
    target, client
        Names of the column to predict, and of the column that says to which client a row belongs. For times until
        events the target is two columns, ("time", "status").
    {FitSettings}
    progress
        With `epsilon`, as in `fedscaffold.run`.
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
    step_size, rounds
        γ, H and T under a budget; chosen unless given.
    {FitTableSettings}

    Returns
    -------
    Fit

    Raises
    ------
    InvalidInput
        If the table or a setting cannot be used, or the rows do not determine the coefficients.

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
    given: dict[str, Any] = dict(settings)
    training = {each.name: each.default for each in fields(FitSettings)}
    if epsilon is None:
        for name, value in {"delta": delta, "clip": clip, "bounds": bounds}.items():
            if value is not None:
                raise InvalidInput(f"{name} requires epsilon=...")
        for name, value in {"step_size": step_size, "rounds": rounds}.items():
            if value is not None:
                raise InvalidInput(f"{name} requires epsilon=...; without a budget the trainer finds it")
        chosen = FitSettings(**{name: given.pop(name) for name in training if name in given})
        return fit_problem(open_problem(data, target=target, client=client, **given), settings=chosen)
    if not isinstance(target, str) or given.get("kind") == "cox":
        raise InvalidInput("a privacy budget does not cover kind='cox'")
    allowed = {name: value for name, value in given.items() if name in ("kind", "l2", "categorical")}
    refuse_beside_epsilon(given, {**training, **allowed})
    budget = PrivacySettings(epsilon=epsilon, delta=delta, clip=clip, step_size=step_size, rounds=rounds)
    l2 = allowed.pop("l2", "auto")
    known = Bounds.parse(bounds, target=target, **allowed)
    return private_fit(data, client=client, settings=budget, bounds=known, l2=l2, progress=progress)

"""Shared parts of the estimators: parameters, tables of clients, training, and summaries.

Means and variances come from what clients would send: counts, sums and sums of squares, never rows. Under a
privacy budget public bounds take their place, and noisy steps alone read the rows.
"""

import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import DataWarning, InvalidInput
from fedscaffold.core.machine import check_memory
from fedscaffold.core.types import Array
from fedscaffold.data.public import LIMIT, PublicTarget
from fedscaffold.inference import Coordinates, Summary, summarise_sums
from fedscaffold.inference.closing import Covariance
from fedscaffold.inference.sums import MOST_COEFFICIENTS
from fedscaffold.inference.training import ErrorPoint, Trained, Trainer, parse_tolerance, train
from fedscaffold.models.fit import UNCOVERED, FitSettings, LocalSums
from fedscaffold.models.private import run_privately
from fedscaffold.privacy.plan import PrivacySettings, PrivatePlan, public_plan, refuse_beside_epsilon
from fedscaffold.problems.families import Kind

FLOATS = (np.float64, np.float32)
ROUNDING = 1e-6  # relative distance that is not warned of: standard errors are 0 if rows are fitted perfectly
WITHOUT_ERRORS = 1e-4  # relative tolerance in place of one in standard errors, which need Hessians
WITHOUT = ("standardize", "trainer", "tolerance", "dispersion", "warm_start")  # at their defaults under a budget
TOO_MANY = f"standard errors are there for at most {MOST_COEFFICIENTS:,} coefficients"


class Scale(NamedTuple):
    """Mean and spread of each feature, (dim,); the spread of a feature that does not vary is 1."""

    mean: Array
    spread: Array

    def apply(self, X: Array) -> Array:
        """Return (X − mean)/spread for rows X."""
        return (X - self.mean) / self.spread

    def to_rows(self, vectors: Array) -> tuple[Array, Array]:
        """Return slopes (k, dim) and intercepts (k,) in the rows' units of k vectors with or without intercept."""
        d = self.mean.size
        coef = vectors[:, :d] / self.spread
        return coef, vectors[:, d:].sum(axis=1) - coef @ self.mean

    def from_rows(self, coef: Array, intercept: Array, *, with_intercept: bool) -> Array:
        """Return vectors for standardised rows, (k, dim), or (k, dim + 1) with an intercept; undo `to_rows`."""
        slopes = coef * self.spread
        return np.column_stack([slopes, intercept + coef @ self.mean]) if with_intercept else slopes


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientTables:
    """Rows of each client as they are fitted."""

    features: list[Array]  # centred and standardised if asked for; the last column may be the intercept's
    scale: Scale  # means and spreads that were taken off
    rows: list[NDArray[np.int64]]  # positions of each client's rows
    weight: Array | None  # of all rows, (rows,); None for weights of one
    dtype: np.dtype[Any]  # of the rows as they were given

    def split(self, values: Array) -> list[Array]:
        """Return values of all rows as one array per client."""
        return [values[own] for own in self.rows]


def federated_scale(tables: list[Array], weights: list[Array] | None = None) -> Scale:
    """Merge each client's (n_c, mean_c, Σ(x − mean_c)²) into one scale (Chan, Golub & LeVeque 1979).

    With weights of the rows, their sum takes the place of n_c, and all means and sums are weighted.
    """
    if weights is None:
        weights = [np.ones(len(table)) for table in tables]
    own = [(table[a > 0], a[a > 0]) for table, a in zip(tables, weights, strict=True) if a.any()]
    sizes = np.array([a.sum() for _, a in own])
    means = np.stack([a @ table / a.sum() for table, a in own])
    squares = sum(a @ np.square(table - mean) for (table, a), mean in zip(own, means, strict=True))
    mean = sizes @ means / sizes.sum()
    variance = (squares + sizes @ np.square(means - mean)) / sizes.sum()
    largest = np.max([np.abs(table).max(axis=0) for table, _ in own], axis=0)
    varies = variance > (10.0 * np.finfo(np.float64).eps * largest) ** 2
    return Scale(mean, np.where(varies, np.sqrt(variance), 1.0))


def rows_of_clients(clients: Any, n_rows: int, min_rows: int) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
    """Return ids of the clients in ascending order, and the positions of each one's rows.

    Raise if an id is missing, ids are neither all text nor all numbers, or a client has less than `min_rows` rows.
    """
    ids = check_array(clients, ensure_2d=False, dtype=None, input_name="clients", ensure_all_finite="allow-nan")
    if ids.ndim != 1:
        raise InvalidInput(f"clients must be one id per row, got an array of shape {ids.shape}")
    check_consistent_length(ids, np.empty(n_rows))
    missing = sum(each is None or each != each for each in ids.tolist())
    if missing:
        raise InvalidInput(f"clients holds None or NaN in {missing} of {n_rows} rows; name a client for each row")
    try:
        names, index = np.unique(ids, return_inverse=True)
    except TypeError:
        raise InvalidInput("clients must be all text or all numbers, not some of each") from None
    sizes = np.bincount(index)
    small = np.flatnonzero(sizes < min_rows)
    if small.size:
        others = f" ({small.size} clients are that small)" if small.size > 1 else ""
        rows = int(sizes[small[0]])
        few = f"client {names[small[0]]!s} has only {rows} row{'s' * (rows > 1)}{others}"
        raise InvalidInput(f"{few}; leave out the rows of such clients, or accept them with min_rows={rows}")
    return names, np.split(np.argsort(index, kind="stable"), np.cumsum(sizes)[:-1])


def public_target(kind: Kind, bounds: Any) -> PublicTarget:
    """Return a numeric target by its public range; raise if that does not fit the kind."""
    low, high = _ends("target_bounds", bounds, 1)
    try:
        return PublicTarget(kind=kind, ends=(float(low[0]), float(high[0])))
    except InvalidInput as error:
        raise InvalidInput(f"target_bounds: {error}") from None


def public_scale(name: str, bounds: Any, length: int, *, centred: bool) -> Scale:
    """Return middle and sixth of ranges; if nothing may be shifted, 0 and a third of the further end."""
    low, high = _ends(name, bounds, length)
    if centred:
        return Scale(low + 0.5 * (high - low), (high - low) / (2.0 * LIMIT))
    return Scale(np.zeros_like(low), np.maximum(np.abs(low), np.abs(high)) / LIMIT)


def _ends(name: str, bounds: Any, length: int) -> tuple[Array, Array]:
    """Return the lower and upper ends of ranges, (length,) each."""
    try:
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), length) for end in bounds)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be (low, high): two numbers, or two arrays of {length} numbers") from None
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise InvalidInput(f"{name} must be finite, with low < high")
    return low, high


class Fitted(NamedTuple):
    """The model of one target."""

    theta: Array
    trained: Trained | None  # None under a privacy budget
    privacy: PrivatePlan | None  # how the budget was spent
    report: Callable[..., Summary] | str  # returns a summary; or why there is none


@dataclass(kw_only=True, eq=False, repr=False)
class Federated(BaseEstimator):
    """Base of the estimators: a fit is a study in one process, whose clients reveal sums alone.

    Parameters
    ----------
    fit_intercept
        Whether b is fitted; it is not penalised.
    standardize
        Whether features are scaled to mean 0 and variance 1 before the penalty applies, with means and variances
        merged from the clients'.
    trainer
        "newton" (up to 1,000 coefficients), "scaffold", which Newton steps finish, or "auto": newton if possible.
    tolerance
        "se:0.05": every coefficient is within 5 % of its standard error of the optimum. A number such as 0.001:
        the distance to the optimum relative to its norm, in standardised units, intercept left out. Up to 1,000
        coefficients are usually far closer, by the last Newton step; more have no standard errors, and "se:0.05"
        is 0.0001 for them.
    dispersion
        The factor of the variance in `summary_`: None for the family's, which is 1 for classes and counts;
        "pearson" to estimate it (quasi-Poisson regression); or a number.
    warm_start
        Whether a further fit starts from the coefficients of the last one.
    min_rows
        Smallest number of rows that a client may have; clients with fewer are usually a mistake in the ids.
    verbose
        Whether to print the distance to the optimum after each exchange.
    epsilon
        ε of a privacy budget of every row; None for none. Under a budget Scaffold clips gradients of rows and adds
        noise from the operating system's generator to every step; there are no Newton steps, no standard errors,
        and `trained_` is None.
    delta
        δ of the budget, below one over the rows of every client; by default a tenth of that for the largest.
    clip
        Largest norm of a row's gradient under a budget; chosen by default.
    bounds
        Under a budget, the public ranges of the features, (low, high): two numbers, or two arrays with one number
        per column. They take the place of means and variances; values outside count as the range's end.
    target_bounds
        Under a budget, the public range (low, high) of y, or its classes.

    Attributes
    ----------
    clients_
        Ids of the clients, sorted.
    trained_
        The training with its certificate, history and notes; of several targets, a tuple with one for each.
    n_iter_
        Number of exchanges with all clients.
    privacy_
        Noise, clip and steps of a fit under a privacy budget, which `privacy_.explain()` says in words; or None.
    n_features_in_, feature_names_in_
        Number of columns of X, and their names if X has some.
    summary_
        Coefficients with standard errors, tests and intervals, a `fedscaffold.inference.Summary`; `summary(cov)`
        returns other standard errors.
    """

    fit_intercept: bool = True
    standardize: bool = True
    trainer: Trainer = "auto"
    tolerance: str | float = "se:0.05"
    dispersion: Any = None
    warm_start: bool = False
    min_rows: int = 2
    verbose: bool = False
    epsilon: Any = None
    delta: Any = None
    clip: Any = None
    bounds: Any = None
    target_bounds: Any = None

    _penalty: ClassVar[str] = "alpha"  # name of the penalty here, which problems call l2

    def __init_subclass__(cls, **options: Any) -> None:
        """Append the parameters and attributes of the base class to the docstring."""
        super().__init_subclass__(**options)
        own, base = (_sections(each.__doc__) for each in (cls, cls.__bases__[-1]))
        for name in ("Parameters", "Attributes"):
            own[name] = "\n".join(part for part in (own[name], base[name]) if part)
        parts = [f"{name}\n{'-' * len(name)}\n{text}" if name else text for name, text in own.items() if text]
        cls.__doc__ = "\n\n".join(parts)

    def _check_settings(self, **beside: Any) -> None:
        """Raise if parameters are wrong, or cannot be combined with a privacy budget, as `beside` cannot."""
        whole_number("min_rows", self.min_rows, least=1)
        FitSettings(trainer=self.trainer, tolerance=self.tolerance, dispersion=self.dispersion)
        if self.epsilon is None:
            for name in ("delta", "clip", "bounds", "target_bounds"):
                if getattr(self, name) is not None:
                    raise InvalidInput(f"{name} requires epsilon=...")
            return
        usual = {name: type(self).__dataclass_fields__[name].default for name in WITHOUT}
        given = {name: getattr(self, name) for name in WITHOUT}
        refuse_beside_epsilon({**given, **beside}, {**usual, **dict.fromkeys(beside)})
        for name, what in (("bounds", "ranges of the features"), ("target_bounds", "range or classes of y")):
            if getattr(self, name) is None:
                raise InvalidInput(f"epsilon requires {name}=..., the public {what}")
        PrivacySettings(epsilon=self.epsilon, delta=self.delta, clip=self.clip)

    def _tables(self, X: Any, clients: Any, weight: Array | None) -> ClientTables:
        """Return the rows of each client, dense; set clients_. `weight` is from `_weights`."""
        n, d = X.shape
        if sparse.issparse(X):
            check_memory("a dense table of the sparse X, of which two copies are needed,", 16 * n * (d + 1))
        if clients is None:
            text = "all rows belong to one client, for which scikit-learn is faster; pass clients=... to fit"
            warnings.warn(DataWarning(text), stacklevel=3)
            self.clients_, rows = np.array([0]), [np.arange(n)]
        else:
            self.clients_, rows = rows_of_clients(clients, n, self.min_rows)
        parts = (X[own] for own in rows)
        features = [np.asarray(x.toarray() if sparse.issparse(x) else x, dtype=np.float64) for x in parts]
        scale = Scale(np.zeros(d), np.ones(d))
        if self.epsilon is not None:
            scale = public_scale("bounds", self.bounds, d, centred=self.fit_intercept)
        elif self.standardize or self.fit_intercept:
            scale = federated_scale(features, None if weight is None else [weight[own] for own in rows])
        if not self.standardize:  # with an intercept, which has no penalty, centring changes conditioning alone
            scale = Scale(scale.mean, np.ones(d))
        features = [scale.apply(table) for table in features]
        if self.epsilon is not None:
            features = [np.clip(table, -LIMIT, LIMIT) for table in features]
        if self.fit_intercept:
            features = [np.column_stack([table, np.ones(len(table))]) for table in features]
        return ClientTables(features=features, scale=scale, rows=rows, weight=weight, dtype=X.dtype)

    def _weights(self, sample_weight: Any, X: Array) -> Array | None:
        """Return weights of the rows, (rows,); None for weights of one."""
        if sample_weight is None:
            return None
        try:
            return np.asarray(_check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True))
        except OverflowError:
            raise InvalidInput("sample_weight holds numbers that are too large for a 64-bit float") from None

    def _train(
        self, kind: Any, tables: ClientTables, y: Array, *, l2: float, target: PublicTarget | None, shift: float,
        start: Array | None = None, classes: Sequence[Any] | None = None, **more: Any,
    ) -> Fitted:  # fmt: skip
        """Return the model of one target on these tables.

        `target` is public under a privacy budget, else None; summaries need `shift`, which was taken off the
        intercept, and more than two classes.
        """
        if tables.weight is not None:
            more["sample_weight"] = tables.split(tables.weight)
        names, n_intercepts = self._feature_names(), int(self.fit_intercept)
        try:
            problem = kind(
                tables.features, tables.split(y), l2=l2, weights=[len(own) for own in tables.rows],
                n_unpenalised=n_intercepts, **more,
            )  # fmt: skip
            if target is not None:
                budget = PrivacySettings(epsilon=self.epsilon, delta=self.delta, clip=self.clip)
                plan = public_plan(
                    target, [0] * len(tables.scale.mean), problem.sizes.tolist(), budget, l2=problem.l2,
                    intercept=bool(n_intercepts),
                )  # fmt: skip
                return Fitted(run_privately(problem, plan, self.verbose or False), None, plan, UNCOVERED)
            sums = LocalSums(problem, names=names, n_intercepts=n_intercepts)
            in_errors = parse_tolerance(self.tolerance)[0] == "se"
            found = train(
                sums, trainer=self.trainer, start=None if start is None else start.ravel(), look=self._show,
                tolerance=WITHOUT_ERRORS if in_errors and not sums.hessians else self.tolerance,
            )  # fmt: skip
        except InvalidInput as error:
            raise InvalidInput(re.sub(r"\bl2\b(=\.\.\.)?", self._penalty, str(error))) from None
        self._warn_if_far(found)
        if found.certificate.sums is None:
            return Fitted(found.theta, found, None, TOO_MANY)
        ends = np.zeros(n_intercepts)
        coordinates = Coordinates.of_features(
            names, n_intercepts=n_intercepts, classes=classes, target_shift=shift,
            shift=np.append(tables.scale.mean, ends), scale=np.append(tables.scale.spread, 1.0 + ends),
        )  # fmt: skip
        penalty = sums.penalty(found.certificate.sums)
        report = partial(summarise_sums, found.certificate.sums, penalty, coordinates, feature_names=names)
        return Fitted(found.theta, found, None, report)

    def _show(self, point: ErrorPoint) -> None:
        if self.verbose:
            print(f"exchange {point.exchange}, {point.method}: {point.relative:.1e} of the norm from the optimum")

    def _warn_if_far(self, found: Trained) -> None:
        relative, errors = found.certificate.relative_error, found.certificate.error_in_standard_errors
        if found.reached or relative <= ROUNDING:
            return
        far = f"{relative:.2g} of their norm" if errors is None else f"{errors:.2g} standard errors"
        advice = "" if self.standardize else "pass standardize=True or scale the features first, or "
        advice += f"pass a larger penalty {self._penalty}"
        text = f"coefficients are about {far} away from the optimum, after {found.rounds:,} exchanges; {advice}"
        warnings.warn(text, ConvergenceWarning, stacklevel=4)

    def _start(self, tables: ClientTables, shift: Array) -> Array | None:
        """Return vectors θ of the last fit if `warm_start` is set and they fit, less a shift of each intercept."""
        coef = np.atleast_2d(getattr(self, "coef_", ()))
        if not self.warm_start or coef.shape != (shift.size, tables.scale.mean.size):
            return None
        intercept = np.atleast_1d(self.intercept_).astype(np.float64) - shift
        return tables.scale.from_rows(coef.astype(np.float64), intercept, with_intercept=self.fit_intercept)

    def _keep(self, fitted: Sequence[Fitted]) -> None:
        """Set the attributes of a fit besides coefficients."""
        self._fitted = tuple(fitted)
        self.privacy_: Any = fitted[0].privacy
        trained = tuple(each.trained for each in fitted)
        self.trained_: Any = trained if len(trained) > 1 else trained[0]
        runs: list[Any] = [each.trained or each.privacy for each in fitted]
        self.n_iter_: Any = np.array([each.rounds for each in runs])

    def _feature_names(self) -> tuple[str, ...]:
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        return (*map(str, names), "intercept") if self.fit_intercept else tuple(map(str, names))

    def _margins(self, X: Any) -> Array:
        """Return Xw + b of rows, which may be sparse."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=FLOATS, reset=False)
        return np.asarray(X @ self.coef_.T + self.intercept_)

    @property
    def summary_(self) -> Summary:
        """Coefficients in the units of the rows with standard errors, tests and intervals."""
        return self.summary()

    def summary(
        self, cov: Covariance = "nonrobust", *, level: float = 0.95, dispersion: float | str | None = None,
        target: int | None = None,
    ) -> Summary:  # fmt: skip
        """Return coefficients with standard errors; see `fedscaffold.inference.summarise`.

        Parameters
        ----------
        cov, level
            Kind of standard errors, and level of the intervals.
        dispersion
            Factor of the variance; the estimator's by default.
        target
            Column of y, required after a fit to several.
        """
        check_is_fitted(self, "n_iter_")
        if target is None and len(self._fitted) > 1:
            raise InvalidInput(f"y had {len(self._fitted)} targets; pass target=0 for the first")
        last = len(self._fitted) - 1
        fitted = self._fitted[0 if target is None else whole_number("target", target, least=0, most=last)]
        if isinstance(fitted.report, str):
            raise InvalidInput(fitted.report)
        factor = self.dispersion if dispersion is None else dispersion
        return fitted.report(cov=cov, level=level, dispersion=factor)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _sections(doc: str | None) -> dict[str, str]:
    """Return the sections of a docstring by their names; the first has none."""
    intro, *rest = re.split(r"\n\n(Parameters|Attributes|Examples)\n-+\n", inspect.cleandoc(doc or ""))
    empty = dict.fromkeys(("Parameters", "Attributes", "Examples"), "")
    return {"": intro, **empty, **dict(zip(rest[::2], rest[1::2], strict=True))}

"""Shared parts of the estimators: parameters, tables of clients, training, and summaries."""

import inspect
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from fedscaffold.core.checks import choice, whole_number
from fedscaffold.core.errors import DataWarning, InvalidInput
from fedscaffold.core.machine import check_memory
from fedscaffold.core.types import Array
from fedscaffold.inference import Coordinates, Summary, summarise_sums
from fedscaffold.inference.closing import check_dispersion
from fedscaffold.inference.covariance import Covariance
from fedscaffold.inference.per_client import MOST_COEFFICIENTS
from fedscaffold.inference.tolerance import parse_tolerance
from fedscaffold.inference.training import ErrorPoint, Trained, Trainer, TrainingSettings, train
from fedscaffold.models.local_sums import LocalSums
from fedscaffold.sklearn.tables import ClientTables, Scale, dense, federated_scale, rows_of_clients

FLOATS = (np.float64, np.float32)
ROUNDING = 1e-6  # relative distance that is not warned of: standard errors are 0 if rows are fitted perfectly
ROUND_SECONDS = 1e-3  # duration of a round of Scaffold in this process apart from its steps


class Fitted(NamedTuple):
    """A trained target: coefficients θ, their training, the penalty in units of its sums, and what is reported."""

    theta: Array
    trained: Trained
    penalty: Array
    coordinates: Coordinates


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
        "newton" (at most 1,000 coefficients), "scaffold", or "auto": Newton's method if it is possible. Scaffold's
        last steps are Newton steps too.
    tolerance
        "se:0.05": every coefficient is within 5 % of its standard error of the optimum. A number such as 0.001: the
        distance to the optimum relative to its norm, in standardised units, intercept left out. Up to 1,000
        coefficients are usually far closer, by the last Newton step.
    dispersion
        The factor of the variance in `summary_`: None for the family's, which is 1 for classes and counts;
        "pearson" to estimate it (quasi-Poisson regression); or a number.
    warm_start
        Whether a further fit starts from the coefficients of the last one.
    min_rows
        Smallest number of rows that a client may have; clients with fewer are usually a mistake in the ids.
    verbose
        Whether to print the distance to the optimum after each exchange.

    Attributes
    ----------
    clients_
        Ids of the clients, sorted.
    trained_
        The training with its certificate, history and notes; of several targets, a tuple with one for each.
    n_iter_
        Number of exchanges with all clients.
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

    _names: ClassVar[dict[str, str]] = {}  # names here of parameters of problems

    def __init_subclass__(cls, **options: Any) -> None:
        """Append the parameters and attributes of the base class to the docstring."""
        super().__init_subclass__(**options)
        own, base = (_sections(each.__doc__) for each in (cls, cls.__bases__[-1]))
        for name in ("Parameters", "Attributes"):
            own[name] = "\n".join(part for part in (own[name], base[name]) if part)
        parts = [f"{name}\n{'-' * len(name)}\n{text}" if name else text for name, text in own.items() if text]
        cls.__doc__ = "\n\n".join(parts)

    def _spell(self, message: object) -> str:
        """Return a message with parameters of problems under the names that they have here."""
        return re.sub(
            r"\b([a-z]\w*)(=\.\.\.)?",
            lambda found: self._names[found[1]] if found[1] in self._names else found[0],
            str(message),
        )

    @contextmanager
    def _own_words(self) -> Iterator[None]:
        """Raise errors of the block with the names of the estimator's parameters."""
        try:
            yield
        except InvalidInput as error:
            raise InvalidInput(self._spell(error)) from None

    def _check_settings(self) -> None:
        whole_number("min_rows", self.min_rows, least=1)
        choice("trainer", self.trainer, get_args(Trainer))
        parse_tolerance(self.tolerance)
        check_dispersion(self.dispersion)

    def _clients(self, clients: Any, n_rows: int) -> list[NDArray[np.int64]]:
        """Return positions of each client's rows, clients in the order of their ids; set clients_."""
        if clients is None:
            warnings.warn(
                DataWarning(
                    "all rows belong to one client, for which scikit-learn's own estimators are faster; pass "
                    "clients=... to fit"
                ),
                stacklevel=4,
            )
            self.clients_ = np.array([0])
            return [np.arange(n_rows)]
        self.clients_, rows = rows_of_clients(clients, n_rows, self.min_rows)
        return rows

    def _tables(self, X: Any, clients: Any, weight: Array | None) -> ClientTables:
        """Return the rows of each client, dense; set clients_. Weights are those of `_weights`."""
        n, d = X.shape
        if sparse.issparse(X):
            check_memory("a dense table of the sparse X, of which two copies are needed,", 16 * n * (d + 1))
        rows = self._clients(clients, n)
        features = [dense(X[own]) for own in rows]
        scale = Scale(np.zeros(d), np.ones(d))
        if self.standardize or self.fit_intercept:
            scale = federated_scale(features, None if weight is None else [weight[own] for own in rows])
        if not self.standardize:  # with an intercept, which has no penalty, centring changes conditioning alone
            scale = Scale(scale.mean, np.ones(d))
        features = [scale.apply(table) for table in features]
        if self.fit_intercept:
            features = [np.column_stack([table, np.ones(len(table))]) for table in features]
        return ClientTables(features=features, scale=scale, rows=rows, weight=weight, dtype=X.dtype)

    def _weights(self, sample_weight: Any, X: Array) -> Array | None:
        """Return weights of the rows, (rows,); None for weights of one."""
        if sample_weight is None:
            return None
        try:
            checked = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        except OverflowError:
            raise InvalidInput("sample_weight holds numbers that are too large for a 64-bit float") from None
        return np.asarray(checked)

    def _train(
        self, kind: Any, tables: ClientTables, y: Array, *, l2: float, start: Array | None, shift: float = 0.0,
        classes: Sequence[Any] | None = None, **more: Any,
    ) -> Fitted:  # fmt: skip
        """Return the model of one target on these tables; summaries add `shift` to its intercept."""
        if tables.weight is not None:
            more["sample_weight"] = tables.split(tables.weight)
        names, n_intercepts = self._feature_names(), int(self.fit_intercept)
        with self._own_words():
            problem = kind(
                tables.features, tables.split(y), l2=l2, weights=[len(own) for own in tables.rows],
                n_unpenalised=n_intercepts, **more,
            )  # fmt: skip
            sums = LocalSums(problem, names=names, n_intercepts=n_intercepts)
            found = train(sums, self._training(sums), start=start, look=self._show)
        self._warn_if_far(found)
        coordinates = tables.scale.coordinates(names, n_intercepts=n_intercepts, shift=shift, classes=classes)
        return Fitted(found.theta, found, problem.n_records * problem.penalty, coordinates)

    def _training(self, sums: LocalSums) -> TrainingSettings:
        """Return the settings; without Hessians with costs, for the number of local steps."""
        settings = TrainingSettings(trainer=self.trainer, tolerance=self.tolerance)
        if sums.hessians:
            return settings
        return replace(
            settings, exchange_seconds=sums.step_seconds + ROUND_SECONDS, step_seconds=sums.step_seconds
        )

    def _show(self, point: ErrorPoint) -> None:
        if self.verbose:
            print(f"exchange {point.exchange}, {point.method}: {point.relative:.1e} of the norm from the optimum")

    def _warn_if_far(self, found: Trained) -> None:
        last = found.certificate
        if found.reached or last.relative_error <= ROUNDING:
            return
        errors = last.error_in_standard_errors
        far = f"{last.relative_error:.2g} of their norm" if errors is None else f"{errors:.2g} standard errors"
        advice = "" if self.standardize else "pass standardize=True or scale the features first, or "
        text = (
            f"coefficients are about {far} away from the optimum, after {found.rounds:,} exchanges; {advice}"
            "pass a larger penalty l2=..."
        )
        warnings.warn(self._spell(text), ConvergenceWarning, stacklevel=4)

    def _start(self, tables: ClientTables, shift: Array) -> Array | None:
        """Return vectors θ of the last fit if `warm_start` is set and they fit, less a shift of each intercept."""
        if not self.warm_start or not hasattr(self, "coef_"):
            return None
        coef = np.atleast_2d(self.coef_).astype(np.float64)
        if coef.shape != (shift.size, tables.scale.mean.size):
            return None
        intercept = np.atleast_1d(self.intercept_).astype(np.float64) - shift
        return tables.scale.from_rows(coef, intercept, with_intercept=self.fit_intercept)

    def _keep(self, fitted: Sequence[Fitted]) -> None:
        """Set the attributes of a fit besides coefficients."""
        self._fitted = tuple(fitted)
        trained = tuple(each.trained for each in fitted)
        self.trained_: Any = trained if len(trained) > 1 else trained[0]
        self.n_iter_: Any = np.array([each.rounds for each in trained])

    def _feature_names(self) -> tuple[str, ...]:
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        return (*map(str, names), "intercept") if self.fit_intercept else tuple(map(str, names))

    def _margins(self, X: Any) -> Array:
        """Return Xw + b of rows, which may be sparse."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=FLOATS, reset=False)
        coef = self.coef_ if sparse.issparse(self.coef_) else np.asarray(self.coef_)
        return np.asarray(safe_sparse_dot(X, coef.T, dense_output=True) + self.intercept_)

    @property
    def summary_(self) -> Summary:
        """Coefficients in the units of the rows with standard errors, tests and intervals."""
        return self.summary()

    def summary(
        self,
        cov: Covariance = "nonrobust",
        *,
        level: float = 0.95,
        dispersion: float | str | None = None,
        target: int | None = None,
    ) -> Summary:
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
        sums = fitted.trained.certificate.sums
        if sums is None:
            raise InvalidInput(f"standard errors are there for at most {MOST_COEFFICIENTS:,} coefficients")
        return summarise_sums(
            sums, fitted.penalty, fitted.coordinates, cov=cov, level=level,
            dispersion=self.dispersion if dispersion is None else dispersion, feature_names=self._feature_names(),
        )  # fmt: skip

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _sections(doc: str | None) -> dict[str, str]:
    """Return the sections of a docstring by their names; the first has none."""
    intro, *rest = re.split(r"\n\n(Parameters|Attributes|Examples)\n-+\n", inspect.cleandoc(doc or ""))
    return {
        "": intro,
        "Parameters": "",
        "Attributes": "",
        "Examples": "",
        **dict(zip(rest[::2], rest[1::2], strict=True)),
    }

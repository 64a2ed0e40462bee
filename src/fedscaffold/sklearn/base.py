"""What all estimators share: parameters, rows of each client, standardisation, a run, and summaries."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import DataWarning, InvalidInput
from fedscaffold.core.machine import check_memory
from fedscaffold.core.types import Array
from fedscaffold.inference import Coordinates, Summary, summarise_sums
from fedscaffold.inference.closing import check_dispersion
from fedscaffold.inference.covariance import Covariance
from fedscaffold.inference.per_client import MOST_COEFFICIENTS
from fedscaffold.sklearn.clients import rows_of_clients
from fedscaffold.sklearn.running import RunSettings, Solution, far_from_optimum, solve
from fedscaffold.sklearn.scale import Scale, federated_scale

FLOATS = (np.float64, np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientTables:
    """Each client's rows as they are fitted.

    Attributes
    ----------
    features
        Of each client, standardised where that is set, with a column of ones where an intercept is fitted.
    scale
        Means and spreads that were taken off.
    rows
        Positions of each client's rows.
    weight
        Weights of all rows, (rows,); None for weights of one.
    dtype
        Type of the rows as they were given.
    """

    features: list[Array]
    scale: Scale
    rows: list[NDArray[np.int64]]
    weight: Array | None
    dtype: np.dtype[Any]

    def split(self, values: Array) -> list[Array]:
        """Values of all rows, as one array per client."""
        return [values[own] for own in self.rows]


@dataclass(kw_only=True, eq=False, repr=False)
class Federated(BaseEstimator):
    """Base of the estimators, which fit with Scaffold to rows that belong to clients.

    Parameters
    ----------
    fit_intercept
        Whether b is fitted; it is not penalised.
    standardize
        Whether features are scaled to mean 0 and variance 1 before the penalty applies, with means and variances
        merged from the clients' own.
    step_size, local_steps, rounds
        γ, H and T, or "auto": planned so that the tolerance is reached. What is given replaces the plan's.
    batch_size
        Rows in a stochastic gradient, None for all of a client's; "auto": all where clients have at most 512
        rows on average, else what is predicted to take the least time, of all rows and batches of 64, 512 and
        4,096.
    tolerance
        Distance to the pooled model to plan for: ‖w − w*‖ ≤ tolerance · ‖w*‖, with w* what pooled rows would give,
        in standardised units, intercept left out. It is not an error of prediction. Where it is out of reach, the
        run comes as close as it can when `close` is set, and is refused otherwise.
    close
        Whether at most two Newton steps, from sums of gradients and Hessians over clients, take the run's last θ
        to the optimum. A ConvergenceWarning says where they end more than 5 % of a standard error away from it.
    dispersion
        The factor of the variance in `summary_`: None for the family's own, which is 1 for classes and counts;
        "pearson" to estimate it (quasi-Poisson regression); or a number.
    warm_start
        Whether a further fit starts from the coefficients of the last one, and so takes fewer rounds.
    min_rows
        Clients with fewer rows are refused: such a client is more often a slip in the ids.
    random_state
        Seed of the rows drawn.
    verbose
        Whether to show progress.

    Attributes
    ----------
    clients_
        Ids of the clients, sorted.
    plan_
        The `fedscaffold.Plan`, or None when nothing was planned.
    trace_
        The `fedscaffold.Trace` of the run.
    n_iter_
        Number of rounds that were run.
    n_features_in_, feature_names_in_
        Number of columns of X, and their names where X has some.
    summary_
        Coefficients with standard errors, tests and intervals, a `fedscaffold.inference.Summary`; `summary(cov)`
        gives those with other standard errors.
    """

    fit_intercept: bool = True
    standardize: bool = True
    step_size: Any = "auto"
    local_steps: Any = "auto"
    rounds: Any = "auto"
    batch_size: Any = "auto"
    tolerance: float = 5e-3
    close: bool = True
    dispersion: Any = None
    warm_start: bool = False
    min_rows: int = 2
    random_state: Any = None
    verbose: bool = False

    _names: ClassVar[dict[str, str]] = {}  # what parameters of problems and plans are called here

    def _spell(self, message: object) -> str:
        """Return a message with parameters of problems and plans under the names that they have here."""
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

    def _settings(self) -> RunSettings:
        whole_number("min_rows", self.min_rows, least=1)
        check_dispersion(self.dispersion)
        return RunSettings(**{field.name: getattr(self, field.name) for field in fields(RunSettings)})

    def _clients(self, clients: Any, n_rows: int) -> list[NDArray[np.int64]]:
        """Positions of each client's rows, clients in the order of their ids; sets clients_."""
        if clients is None:
            warnings.warn(
                DataWarning(
                    "all rows belong to one client, for which Scaffold is gradient descent; pass "
                    "clients=... to fit"
                ),
                stacklevel=4,
            )
            self.clients_ = np.array([0])
            return [np.arange(n_rows)]
        self.clients_, rows = rows_of_clients(clients, n_rows, self.min_rows)
        return rows

    def _tables(self, X: Any, clients: Any, weight: Array | None) -> ClientTables:
        """The rows of each client, dense; sets clients_. Weights are those of `_weights`."""
        n, d = X.shape
        if sparse.issparse(X):
            check_memory("a dense table of the sparse X, of which two copies are needed,", 16 * n * (d + 1))
        rows = self._clients(clients, n)
        features = [dense(X[own]) for own in rows]
        scale = Scale(np.zeros(d), np.ones(d))
        if self.standardize or self.fit_intercept:
            scale = federated_scale(features, None if weight is None else [weight[own] for own in rows])
        if (
            not self.standardize
        ):  # with an intercept, which has no penalty, centring changes the conditioning alone
            scale = Scale(scale.mean, np.ones(d))
        features = [scale.apply(table) for table in features]
        if self.fit_intercept:
            features = [np.column_stack([table, np.ones(len(table))]) for table in features]
        return ClientTables(features=features, scale=scale, rows=rows, weight=weight, dtype=X.dtype)

    def _weights(self, sample_weight: Any, X: Array) -> Array | None:
        """Weights of the rows, (rows,); None for weights of one."""
        if sample_weight is None:
            return None
        try:
            checked = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        except OverflowError:
            raise InvalidInput("sample_weight holds numbers that are too large for a 64-bit float") from None
        return np.asarray(checked)

    def _solve(
        self, kind: Any, tables: ClientTables, y: Array, *, l2: float, start: Array | None = None, **more: Any
    ) -> Solution:
        """Coefficients of one problem on these tables."""
        settings = self._settings()
        if tables.weight is not None:
            more["sample_weight"] = tables.split(tables.weight)
        with self._own_words():
            problem = kind(
                tables.features, tables.split(y), l2=l2, weights=[len(own) for own in tables.rows],
                n_unpenalised=int(self.fit_intercept), **more,
            )  # fmt: skip
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            solution = solve(problem, settings, seed=seed, names=self._feature_names(), start=start)
        far = far_from_optimum(solution, settings, self._feature_names())
        if far is not None:
            warnings.warn(self._spell(far), ConvergenceWarning, stacklevel=3)
        return solution

    def _start(self, tables: ClientTables, vectors: int, shift: float = 0.0) -> Array | None:
        """θ of the last fit for these tables where `warm_start` is set; None where there is none that fits."""
        if not self.warm_start or not hasattr(self, "coef_"):
            return None
        coef = np.atleast_2d(self.coef_).astype(np.float64)
        if coef.shape != (vectors, tables.scale.mean.size):
            return None
        intercept = np.atleast_1d(self.intercept_).astype(np.float64) - shift
        return tables.scale.from_rows(coef, intercept, with_intercept=self.fit_intercept).ravel()

    def _keep(self, solutions: Sequence[Solution], coordinates: Sequence[Coordinates]) -> None:
        """Set what a fit leaves besides coefficients; of several targets, tuples of plans and traces."""
        self._solutions, self._coordinates = tuple(solutions), tuple(coordinates)
        plans, traces = tuple(each.plan for each in solutions), tuple(each.trace for each in solutions)
        several = len(solutions) > 1
        self.plan_: Any = plans if several else plans[0]
        self.trace_: Any = traces if several else traces[0]
        self.n_iter_: Any = np.array([trace.rounds for trace in traces])

    def _own_coordinates(
        self, tables: ClientTables, *, shift: float = 0.0, classes: Sequence[Any] | None = None
    ) -> Coordinates:
        return tables.scale.coordinates(
            self._feature_names(), n_intercepts=int(self.fit_intercept), shift=shift, classes=classes
        )

    def _feature_names(self) -> tuple[str, ...]:
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        return (*map(str, names), "intercept") if self.fit_intercept else tuple(map(str, names))

    def _margins(self, X: Any) -> Array:
        """Xw + b of rows, which may be sparse."""
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
        """Coefficients with standard errors of another kind; see `fedscaffold.inference.summarise`.

        `dispersion` is the estimator's where it is None. After a fit to several targets, `target` says for which
        one, as its column of y.
        """
        check_is_fitted(self, "n_iter_")
        solutions = self._solutions
        if target is None and len(solutions) > 1:
            raise InvalidInput(f"y had {len(solutions)} targets; pass target=0 for the first")
        which = 0 if target is None else whole_number("target", target, least=0, most=len(solutions) - 1)
        closed = solutions[which].closed
        if closed is None:
            raise InvalidInput(f"standard errors are there for at most {MOST_COEFFICIENTS:,} coefficients")
        return summarise_sums(
            closed.sums, solutions[which].penalty, self._coordinates[which], cov=cov, level=level,
            dispersion=self.dispersion if dispersion is None else dispersion, feature_names=self._feature_names(),
        )  # fmt: skip

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def dense(X: Any) -> Array:
    """Rows as an array, whether they were sparse or not."""
    return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)

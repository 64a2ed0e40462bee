"""What both estimators share: rows of each client, standardisation, a plan and a run."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_array, check_consistent_length, check_is_fitted

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import DataWarning, InvalidInput, Option
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.inference import Closed, Coordinates, Summary, close, summarise_sums
from fedscaffold.inference.covariance import Covariance
from fedscaffold.inference.diagnosis import refuse_undetermined
from fedscaffold.inference.per_client import MOST_COEFFICIENTS, closing_sums
from fedscaffold.methods import Scaffold
from fedscaffold.models.planning.batches import candidate_batches, fastest_plan
from fedscaffold.models.planning.distance import slope_length
from fedscaffold.models.planning.planned import automatic_batch, out_of_reach
from fedscaffold.problems.newton import NoMinimiser
from fedscaffold.simulation import Mse
from fedscaffold.simulation.run import run
from fedscaffold.sklearn.moments import Scale, federated_scale
from fedscaffold.theory import Plan

MAX_SCALE_RATIO = 1000.0  # of features that are not standardised: the condition number is about its square
FLOATS = (np.float64, np.float32)


@dataclass(kw_only=True, eq=False, repr=False)
class Federated(BaseEstimator):
    """Base of the estimators, which fit with Scaffold to rows that belong to clients."""

    fit_intercept: bool = True
    standardize: bool = True
    step_size: Any = "auto"
    local_steps: Any = "auto"
    rounds: Any = "auto"
    batch_size: Any = "auto"
    tolerance: float = 5e-3
    close: bool = True
    min_rows: int = 2
    random_state: Any = None
    verbose: bool = False

    _names: ClassVar[dict[str, str]] = {}  # what parameters of problems and plans are called here

    @contextmanager
    def _own_words(self) -> Iterator[None]:
        """Refusals raised inside name the estimator's parameters, and no others."""
        known = self.get_params()

        def spell(option: Option) -> str | None:
            name = self._names.get(option.name, option.name)
            return str(Option(name, option.value)) if name in known else None

        try:
            yield
        except InvalidInput as error:
            raise InvalidInput(error.told(spell)) from None

    def _check_parameters(self) -> None:
        whole_number("min_rows", self.min_rows, least=1)
        for name in ("step_size", "tolerance"):
            if getattr(self, name) != "auto":
                positive(name, getattr(self, name))
        for name in ("local_steps", "rounds", "batch_size"):
            value = getattr(self, name)
            if value != "auto" and not (name == "batch_size" and value is None):
                whole_number(name, value, least=1)

    def _clients(self, clients: Any, n_rows: int) -> list[NDArray[np.int64]]:
        """Positions of each client's rows, clients in the order of their ids; sets clients_."""
        if clients is None:
            warnings.warn(
                DataWarning(
                    "all rows were taken as those of one client, for which Scaffold is gradient descent",
                    remedies=[("say to which client each row belongs with ", Option("clients"), " of fit")],
                ),
                stacklevel=3,
            )
            self.clients_ = np.array([0])
            return [np.arange(n_rows)]
        ids = check_array(
            clients, ensure_2d=False, dtype=None, input_name="clients", ensure_all_finite="allow-nan"
        )
        if ids.ndim != 1:
            raise InvalidInput(f"clients must be one id per row, got an array of shape {ids.shape}")
        check_consistent_length(ids, np.empty(n_rows))
        missing = sum(each is None or each != each for each in ids.tolist())
        if missing:
            raise InvalidInput(
                f"clients holds None or NaN in {missing} of {n_rows} rows; name a client for each row, or give no "
                "clients at all for one"
            )
        try:
            self.clients_, index = np.unique(ids, return_inverse=True)
        except TypeError:
            raise InvalidInput("clients must be all text or all numbers, not some of each") from None
        sizes = np.bincount(index)
        small = np.flatnonzero(sizes < self.min_rows)
        if small.size:
            others = f" ({small.size} clients are that small)" if small.size > 1 else ""
            rows = int(sizes[small[0]])
            raise InvalidInput(
                f"client {self.clients_[small[0]]!s} has only {rows} row{'s' * (rows > 1)}{others}",
                remedies=["leave out the rows of such clients", ("accept them with ", Option("min_rows", rows))],
            )
        order = np.argsort(index, kind="stable")
        return np.split(order, np.cumsum(np.bincount(index))[:-1])

    def _weights(self, sample_weight: Any, X: Array) -> Array | None:
        """Weights of the rows, (rows,); None for weights of one."""
        if sample_weight is None:
            return None
        return np.asarray(_check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True))

    def _tables(
        self, X: Array, rows: list[NDArray[np.int64]], weights: list[Array] | None
    ) -> tuple[list[Array], Scale]:
        """Features of each client, standardised and with a column for the intercept where that is set."""
        tables = [X[own] for own in rows]
        unchanged = Scale(np.zeros(X.shape[1]), np.ones(X.shape[1]))
        scale = federated_scale(tables, weights) if self.standardize else unchanged
        tables = [scale.apply(table) for table in tables]
        if self.fit_intercept:
            tables = [np.column_stack([table, np.ones(len(table))]) for table in tables]
        return tables, scale

    def _fit(
        self, kind: Any, X: Array, y: Array, rows: list[NDArray[np.int64]], *, l2: float,
        sample_weight: Array | None, target_shift: float = 0.0, **more: Any,
    ) -> tuple[Array, Scale]:  # fmt: skip
        """θ of a kind of problem and the scale of its features; sets plan_, trace_, n_iter_ and more.

        `target_shift` was subtracted from the target, or is a part of every row's offset.
        """
        own_weights = None if sample_weight is None else [sample_weight[own] for own in rows]
        tables, scale = self._tables(X, rows, own_weights)
        weights, unpenalised = [len(own) for own in rows], int(self.fit_intercept)
        if own_weights is not None:
            more["sample_weight"] = own_weights
        targets = [y[own] for own in rows]
        problem = kind(tables, targets, l2=l2, weights=weights, n_unpenalised=unpenalised, **more)
        with self._own_words():
            self._check_scales(X)
            theta = self._run(problem)
            self._closed = self._close(problem, theta)
        self._penalty = problem.n_records * problem.penalty
        self._coordinates = self._own_units(scale, target_shift, problem.vectors)
        return theta if self._closed is None else self._closed.theta, scale

    def _close(self, problem: Any, theta: Array) -> Closed | None:
        """Closing sums, after at most two Newton steps where `close` is set; None with too many coefficients."""
        if problem.dim > MOST_COEFFICIENTS:
            return None
        return close(problem, theta, max_steps=2 if self.close else 0, names=self._feature_names())

    def _feature_names(self) -> tuple[str, ...]:
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        return (*map(str, names), "intercept") if self.fit_intercept else tuple(map(str, names))

    def _own_units(self, scale: Scale, target_shift: float, vectors: int) -> Coordinates:
        """Coefficients for rows as they are; with more than two classes, of each class against the first."""
        names = self._feature_names()
        matrix, shift = np.eye(len(names)), np.zeros(len(names))
        d = scale.spread.size
        matrix[:d, :d] = np.diag(1.0 / scale.spread)
        if self.fit_intercept:
            matrix[-1, :d] = -scale.mean / scale.spread
            shift[-1] = target_shift
        many = vectors > 1
        plain = Coordinates.of_features(
            names, n_intercepts=int(self.fit_intercept), classes=list(self.classes_) if many else None
        )
        blocks = vectors - 1 if many else 1
        return plain.then(np.kron(np.eye(blocks), matrix).astype(np.float64), np.tile(shift, blocks))

    @property
    def summary_(self) -> Summary:
        """Coefficients in the units of the rows with standard errors, tests and intervals."""
        return self.summary()

    def summary(
        self, cov: Covariance = "nonrobust", *, level: float = 0.95, dispersion: float | str | None = None
    ) -> Summary:
        """Coefficients with standard errors of another kind; see `fedscaffold.inference.summarise`."""
        check_is_fitted(self, "n_iter_")
        if self._closed is None:
            raise InvalidInput(f"standard errors are there for at most {MOST_COEFFICIENTS:,} coefficients")
        return summarise_sums(
            self._closed.sums, self._penalty, self._coordinates, cov=cov, level=level, dispersion=dispersion,
            feature_names=self._feature_names(),
        )  # fmt: skip

    def _check_scales(self, X: Array) -> None:
        """Refuse features of very different sizes where they are not standardised and a plan is wanted."""
        if self.standardize or "auto" not in (self.step_size, self.local_steps, self.rounds):
            return
        sizes = np.sqrt(np.mean(np.square(X), axis=0))
        sizes = sizes[sizes > 0.0]
        ratio = float(sizes.max() / sizes.min()) if sizes.size else 1.0
        if ratio > MAX_SCALE_RATIO:
            raise InvalidInput(
                f"the largest feature is {ratio:,.0f} times as large as the smallest, and gradients would need "
                "millions of steps",
                remedies=[("take ", Option("standardize", True)), "scale the features before"],
            )

    def _run(self, problem: Any) -> Array:
        """Plan and run, and return θ; sets plan_, trace_ and n_iter_."""
        try:
            optimum = problem.optimum()
        except NoMinimiser as error:
            sums = closing_sums(problem, error.theta, scores=False)
            refuse_undetermined(sums, problem.n_records * problem.penalty, self._feature_names())
            raise
        batch_size, self.plan_ = self._plan(problem, optimum)
        if self.plan_ is None:  # 1/L: gradient descent does not diverge
            method, rounds = Scaffold(step_size=1.0 / problem.smoothness(Batches(batch_size)), local_steps=1), 1
        else:
            method, rounds = self.plan_.method, self.plan_.rounds
        given = {"step_size": self.step_size, "local_steps": self.local_steps}
        method = replace(method, **{name: value for name, value in given.items() if value != "auto"})
        self.n_iter_ = rounds if self.rounds == "auto" else self.rounds
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.trace_ = run(
            problem,
            method,
            rounds=self.n_iter_,
            batch_size=batch_size,
            seed=seed,
            record=(Mse(optimum),),
            progress=self.verbose,
        )
        return self.trace_.theta[0]

    def _plan(self, problem: Any, optimum: Array) -> tuple[int | None, Plan | None]:
        """Batch size and plan for the tolerance; no plan where γ, H and T are given, or θ* is 0."""
        automatic = self.batch_size == "auto"
        usual = automatic_batch(problem.sizes) if automatic else self.batch_size
        if "auto" not in (self.step_size, self.local_steps, self.rounds):
            return usual, None
        target_mse = (self.tolerance * slope_length(problem, optimum)) ** 2
        if target_mse == 0.0 or float(optimum @ optimum) <= target_mse:
            return usual, None
        sizes = candidate_batches(problem.sizes) if automatic else [usual]
        try:
            return fastest_plan(problem, sizes, optimum=optimum, target_mse=target_mse)
        except InvalidInput as error:
            raise out_of_reach(error, self.tolerance) from None

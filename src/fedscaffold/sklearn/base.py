"""What both estimators share: rows of each client, standardisation, a plan and a run."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_consistent_length

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.models.planned import automatic_batch, first_order_plan
from fedscaffold.simulation import Mse
from fedscaffold.simulation.run import run
from fedscaffold.sklearn.moments import Scale, federated_scale
from fedscaffold.theory import Plan


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
    random_state: Any = None
    verbose: bool = False

    def _check_parameters(self) -> None:
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
            self.clients_ = np.array([0])
            return [np.arange(n_rows)]
        ids = check_array(clients, ensure_2d=False, dtype=None, input_name="clients")
        if ids.ndim != 1:
            raise InvalidInput(f"clients must be one id per row, got an array of shape {ids.shape}")
        check_consistent_length(ids, np.empty(n_rows))
        self.clients_, index = np.unique(ids, return_inverse=True)
        order = np.argsort(index, kind="stable")
        return np.split(order, np.cumsum(np.bincount(index))[:-1])

    def _tables(self, X: Array, rows: list[NDArray[np.int64]]) -> tuple[list[Array], Scale]:
        """Features of each client, standardised and with a column for the intercept where that is set."""
        tables = [X[own] for own in rows]
        unchanged = Scale(np.zeros(X.shape[1]), np.ones(X.shape[1]))
        scale = federated_scale(tables) if self.standardize else unchanged
        tables = [scale.apply(table) for table in tables]
        if self.fit_intercept:
            tables = [np.column_stack([table, np.ones(len(table))]) for table in tables]
        return tables, scale

    def _fit(
        self, kind: Any, X: Array, y: Array, rows: list[NDArray[np.int64]], *, l2: float, **more: Any
    ) -> tuple[Array, Scale]:
        """θ of a kind of problem and the scale of its features; sets plan_, trace_ and n_iter_."""
        tables, scale = self._tables(X, rows)
        weights, unpenalised = [len(own) for own in rows], int(self.fit_intercept)
        targets = [y[own] for own in rows]
        problem = kind(tables, targets, l2=l2, weights=weights, n_unpenalised=unpenalised, **more)
        return self._run(problem), scale

    def _run(self, problem: Any) -> Array:
        """Plan and run, and return θ; sets plan_, trace_ and n_iter_."""
        batch_size = self.batch_size
        if batch_size == "auto":
            batch_size = automatic_batch(problem.sizes)
        optimum = problem.optimum()
        self.plan_ = self._plan(problem, batch_size, optimum)
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

    def _plan(self, problem: Any, batch_size: int | None, optimum: Array) -> Plan | None:
        """Plan for the tolerance; None where step size, local steps and rounds are given, or θ* is 0."""
        if "auto" not in (self.step_size, self.local_steps, self.rounds):
            return None
        start = float(optimum @ optimum)
        target_mse = self.tolerance**2 * start
        if start <= target_mse:
            return None
        return first_order_plan(problem, optimum=optimum, target_mse=target_mse, batch_size=batch_size)

"""What both estimators share: clients from rows, a plan, a run, and coefficients in the rows' own units."""

from dataclasses import replace
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
from fedscaffold.models.fit import ENGINE, MOST_ROUNDS, automatic_batch
from fedscaffold.simulation import Mse
from fedscaffold.simulation.run import run
from fedscaffold.sklearn.moments import Scale, federated_scale, no_scale
from fedscaffold.theory import Plan, plan


class Federated(BaseEstimator):
    """Fits by Scaffold on rows that belong to clients."""

    def _check_parameters(self) -> None:
        for name in ("step_size", "tol"):
            if getattr(self, name) != "auto":
                positive(name, getattr(self, name))
        for name in ("local_steps", "rounds", "batch_size"):
            value = getattr(self, name)
            if value != "auto" and not (name == "batch_size" and value is None):
                whole_number(name, value, least=1)
        if self.target_mse is not None:
            positive("target_mse", self.target_mse)

    def _clients(self, clients: Any, n_rows: int) -> list[NDArray[np.int64]]:
        """Rows of each client, clients in the order of their ids."""
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
        """Each client's features, standardised and with an intercept's column as asked for."""
        tables = [X[own] for own in rows]
        scale = federated_scale(tables) if self.standardize else no_scale(X.shape[1])
        tables = [scale.apply(table) for table in tables]
        if self.fit_intercept:
            tables = [np.column_stack([table, np.ones(len(table))]) for table in tables]
        return tables, scale

    def _run(self, problem: Any) -> Array:
        """θ after a planned run; sets plan_, trace_ and n_iter_."""
        batch_size = self.batch_size
        if batch_size == "auto":
            batch_size = automatic_batch(problem.sizes)
        optimum = problem.optimum()
        self.plan_ = self._plan(problem, batch_size, optimum)
        method, rounds = Scaffold(step_size=problem_step(problem, batch_size), local_steps=1), 1
        if self.plan_ is not None:
            method, rounds = self.plan_.method, self.plan_.rounds
        if self.step_size != "auto":
            method = replace(method, step_size=self.step_size)
        if self.local_steps != "auto":
            method = replace(method, local_steps=self.local_steps)
        self.n_iter_ = rounds if self.rounds == "auto" else self.rounds
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.trace_ = run(
            problem,
            method,
            rounds=self.n_iter_,
            batch_size=batch_size,
            seed=seed,
            engine=ENGINE,
            record=(Mse(optimum),),
            progress=self.verbose,
        )
        return self.trace_.theta[0]

    def _plan(self, problem: Any, batch_size: int | None, optimum: Array) -> Plan | None:
        """For the target, or None where nothing is to be planned: all is given, or θ = 0 is good enough."""
        if "auto" not in (self.step_size, self.local_steps, self.rounds):
            return None
        start = float(optimum @ optimum)
        wanted = self.tolerance**2 * start if self.target_mse is None else self.target_mse
        if start <= wanted:
            return None
        return plan(
            problem, target_mse=wanted, batch_size=batch_size, mode="first_order", max_rounds=MOST_ROUNDS,
            optimum=optimum,
        )  # fmt: skip


def problem_step(problem: Any, batch_size: int | None) -> float:
    """A step size that does no harm."""
    return 1.0 / problem.smoothness(Batches(batch_size))

"""Adapter to declearn's Scaffold: the optimizer modules of its clients and of its server, and its aggregator."""

import copy
from typing import Any

import numpy as np
from declearn.aggregator import AveragingAggregator
from declearn.model.sklearn import NumpyVector
from declearn.optimizer.modules import ScaffoldClientModule, ScaffoldServerModule

from fedscaffold.conformance.adapters import LoopAdapter
from fedscaffold.conformance.task import Array, Task


class DeclearnScaffold(LoopAdapter):
    """Clients that take plain gradient steps through `ScaffoldClientModule`."""

    equal_weights = "its Scaffold modules have no weights of clients"
    equal_local_steps = ""

    def _begin(self, task: Task) -> None:
        self.theta = NumpyVector({"theta": task.theta0})
        self.clients = [ScaffoldClientModule() for _ in range(task.n_clients)]
        self.server, self.aggregator = ScaffoldServerModule(), AveragingAggregator()

    def _round(self, cohort: tuple[int, ...], lost: tuple[int, ...]) -> None:
        aux = self.server.collect_aux_var()
        replies = {c: self._trained(c, aux) for c in cohort}
        heard = [replies[c] for c in cohort if c not in lost]
        updates, variates = heard[0]
        for other_updates, other_variates in heard[1:]:
            updates, variates = updates.aggregate(other_updates), variates.aggregate(other_variates)
        self.server.process_aux_var(variates)
        self.theta = self.theta - self.aggregator.finalize_updates(updates)

    def _trained(self, client: int, aux: Any) -> tuple[Any, Any]:
        module, theta, steps = self.clients[client], self.theta, self.task.local_steps[client]
        module.process_aux_var(aux)
        for _ in range(steps):
            gradient = NumpyVector({"theta": self.task.gradient(client, theta.coefs["theta"])})
            theta = theta - module.run(gradient) * self.task.step_size
        return self.aggregator.prepare_for_sharing(self.theta - theta, steps), module.collect_aux_var()

    def _model(self) -> Array:
        return np.asarray(self.theta.coefs["theta"])

    def _variates(self, client: int) -> tuple[Any, Any]:
        server, own = (
            np.asarray(state.coefs["theta"]) if isinstance(state, NumpyVector) else np.zeros(self.task.dim)
            for state in (self.server.collect_aux_var().state, self.clients[client].state)
        )
        return server, own

    def save(self, client: int) -> Any:
        """Return the state of a client's module, as declearn saves it."""
        return copy.deepcopy(self.clients[client].get_state())

    def restart(self, client: int, saved: Any) -> None:
        """Start a new module with that state."""
        self.clients[client] = ScaffoldClientModule()
        self.clients[client].set_state(copy.deepcopy(saved))

    def save_server(self) -> Any:
        """Return the model and the state of the server's module."""
        return copy.deepcopy((self.model(), self.server.get_state()))

    def restart_server(self, saved: Any) -> None:
        """Start a new server with that model and state."""
        self.theta, self.server = NumpyVector({"theta": saved[0].copy()}), ScaffoldServerModule()
        self.server.set_state(copy.deepcopy(saved[1]))

"""Adapter to declearn's Scaffold: the optimizer modules of its clients and of its server, and its aggregator."""

import copy
from typing import Any

import numpy as np
from declearn.aggregator import AveragingAggregator
from declearn.model.sklearn import NumpyVector
from declearn.optimizer.modules import ScaffoldClientModule, ScaffoldServerModule

from fedscaffold.conformance.task import Array, NotSupported, Task


class DeclearnScaffold:
    """Clients that take plain gradient steps through `ScaffoldClientModule`."""

    def __init__(self, task: Task) -> None:
        if not task.has_equal_weights:
            raise NotSupported("its Scaffold modules have no weights of clients")
        self.task, self.theta = task, NumpyVector({"theta": task.theta0})
        self.clients = [ScaffoldClientModule() for _ in range(task.n_clients)]
        self.server, self.aggregator = ScaffoldServerModule(), AveragingAggregator()

    def reconfigure(self, task: Task) -> None:
        """Take the step size and the local steps of another task."""
        self.task = task

    def round(self, cohort: tuple[int, ...]) -> None:
        """Run one communication round with these clients."""
        self.round_with_lost_replies(cohort, ())

    def round_with_lost_replies(self, cohort: tuple[int, ...], lost: tuple[int, ...]) -> None:
        """Run one round in which the clients of `lost` train, but their replies do not reach the server."""
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

    def model(self) -> Array:
        """Return the server's model θ."""
        return np.asarray(self.theta.coefs["theta"])

    def correction(self, client: int) -> Array:
        """Return the correction c − c_i."""
        difference = self.server.collect_aux_var().state - self.clients[client].state
        return (
            np.asarray(difference.coefs["theta"])
            if isinstance(difference, NumpyVector)
            else np.zeros(self.task.dim)
        )

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

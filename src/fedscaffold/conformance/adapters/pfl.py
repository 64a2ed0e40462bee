"""Adapter to pfl-research's SCAFFOLD, option II: its algorithm, driven user by user as its backend does."""

from dataclasses import replace
from typing import Any

import torch
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.exception import UserNotFoundError
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from fedscaffold.conformance.adapters import Adapter
from fedscaffold.conformance.adapters.torch_records import TorchLinearModel, as_array, half_squared_error, records
from fedscaffold.conformance.task import Array, Task


class WithLoss(TorchLinearModel):
    """The linear model with the functions that pfl asks of a module."""

    def loss(self, x: Any, y: Any, **unused: Any) -> Any:
        """Return ½‖Xθ − y‖² of all records."""
        return half_squared_error(self(x), y)

    def metrics(self, x: Any, y: Any, **unused: Any) -> dict[str, Any]:
        """Return no metrics, which pfl asks for when it evaluates."""
        return {}


class PflResearchScaffold(Adapter):
    """One model on which users train in turn; each user's c_i is in a storage."""

    def _begin(self, task: Task) -> None:
        self.iteration, self.algorithm, module = 0, SCAFFOLD(), WithLoss(task.theta0)
        server = torch.optim.SGD(module.parameters(), lr=1.0)
        self.local_model = PyTorchModel(module, torch.optim.SGD, server)
        self.users = [Dataset(records(task, c), user_id=str(c)) for c in range(task.n_clients)]
        self.storage = InMemoryUserStateStorage()
        self.params = SCAFFOLDParams(
            central_num_iterations=10**9, evaluation_frequency=10**9, train_cohort_size=task.n_clients,
            val_cohort_size=0, population=task.n_clients, use_gradient_as_control_variate=False,
            user_state_storage=self.storage,
        )  # fmt: skip

    def _round(self, cohort: tuple[int, ...]) -> None:
        training = NNTrainHyperParams(
            local_num_epochs=self.task.local_steps[0], local_learning_rate=self.task.step_size,
            local_batch_size=None,
        )  # fmt: skip
        params = replace(self.params, train_cohort_size=len(cohort))
        contexts, model, _ = self.algorithm.get_next_central_contexts(
            self.local_model, self.iteration, params, training, training
        )
        start, total = model.get_parameters().apply_elementwise(torch.clone), None
        for c in cohort:
            model.set_parameters(start)
            update, _ = self.algorithm.train_one_user(start, model, self.users[c], contexts[0])
            update = update.apply_elementwise(torch.clone)
            total = update if total is None else total + update
        model.set_parameters(start)
        self.algorithm.process_aggregated_statistics(contexts[0], Metrics(), model, total)
        self.iteration += 1

    def _model(self) -> Array:
        return as_array(self.local_model.get_parameters()["theta"])

    def _variates(self, client: int) -> tuple[Array, Any]:
        server = as_array(self.algorithm._server_c["theta"]) if self.iteration else 0.0 * self.task.theta0
        try:
            return server, as_array(self.storage.load_state(str(client), "local_c")["theta"])
        except UserNotFoundError:
            return server, 0.0

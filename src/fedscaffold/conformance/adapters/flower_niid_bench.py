"""Adapter to the Scaffold of Flower's niid_bench baseline: its client, its strategy and its server's round."""

import tempfile
import typing
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import flwr.common.typing
import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from torch.utils.data import DataLoader, TensorDataset

from fedscaffold.conformance.adapters import Adapter
from fedscaffold.conformance.adapters import torch_records as common
from fedscaffold.conformance.task import Array, Task

for name in ("Callable", "Dict", "List", "Optional", "Tuple", "Union"):  # gone in releases that know NumPy 2
    setattr(flwr.common.typing, name, getattr(typing, name))

from niid_bench import models, server_scaffold  # noqa: E402
from niid_bench.client_scaffold import FlowerClientScaffold  # noqa: E402
from niid_bench.strategy import ScaffoldStrategy  # noqa: E402


class FlowerNiidBenchScaffold(Adapter):
    """Clients weighted by their numbers of records; their control variates are files of a temporary folder."""

    equal_weights = ""

    def _begin(self, task: Task) -> None:
        self.folder, settings = tempfile.TemporaryDirectory(), (task.local_steps[0], task.step_size, 0.0, 0.0)
        self.clients = []
        for c, table in enumerate(common.weighted_records(task)):
            data = DataLoader(TensorDataset(*table), batch_size=len(table[0]))
            parts = (c, common.TorchLinearModel(task.theta0), data, data, torch.device("cpu"), *settings)
            self.clients.append(FlowerClientScaffold(*parts, save_dir=self.folder.name))
        manager: Any = SimpleClientManager()
        manager.clients = {str(c): object() for c in range(task.n_clients)}
        with patch.object(server_scaffold, "instantiate", lambda model: model):
            self.server = server_scaffold.ScaffoldServer(ScaffoldStrategy(), None, manager)
        first = SimpleNamespace(get_parameters=lambda ins, timeout: _reply(self.clients[0].get_parameters({})))
        with patch.object(manager, "sample", lambda count: [first]):
            self.server.parameters = self.server._get_initial_parameters(None)

    def _round(self, cohort: tuple[int, ...]) -> None:
        def fit(client: Any, ins: Any, timeout: Any) -> Any:
            arrays, count, _ = self.clients[client].fit(parameters_to_ndarrays(ins.parameters), {})
            return client, FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), count, {})

        def configure(server_round: int, parameters: Any, client_manager: Any) -> Any:
            return [(c, SimpleNamespace(parameters=parameters)) for c in cohort]

        with (
            patch.object(models.nn, "CrossEntropyLoss", lambda: common.half_squared_error),
            patch.object(server_scaffold, "fit_client", fit),
            patch.object(self.server.strategy, "configure_fit", configure),
        ):
            done = self.server.fit_round(1, None)
        if len(done[2][0]) < len(cohort):
            raise done[2][1][0]
        self.server.parameters = done[0]

    def _model(self) -> Array:
        return parameters_to_ndarrays(self.server.parameters)[0].astype(float)

    def _variates(self, client: int) -> tuple[Array, Array]:
        try:
            saved = torch.load(f"{self.clients[client].dir}/client_cv_{client}.pt", weights_only=True)[0]
        except FileNotFoundError:  # then `fit` takes the model
            saved = torch.tensor(self._model())
        return common.as_array(self.server.server_cv[0]), common.as_array(saved)


def _reply(arrays: Any) -> Any:
    return SimpleNamespace(parameters=ndarrays_to_parameters(arrays))

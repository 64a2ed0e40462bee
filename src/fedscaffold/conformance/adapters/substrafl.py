"""Adapter to SubstraFL's Scaffold: its algorithm for PyTorch at each organisation, and its strategy's averages."""

from typing import Any

import numpy as np
import torch
from substrafl.algorithms.pytorch import TorchScaffoldAlgo
from substrafl.index_generator import NpIndexGenerator
from substrafl.strategies import Scaffold

from fedscaffold.conformance.adapters import Adapter
from fedscaffold.conformance.adapters import torch_records as common
from fedscaffold.conformance.task import Array, NotSupported, Task


class Records(torch.utils.data.Dataset):
    """A client's records as a data set of PyTorch."""

    def __init__(self, data_from_opener: Any, is_inference: bool) -> None:
        self.x, self.y = data_from_opener

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.x[index], self.y[index]


class SubstraFLScaffold(Adapter):
    """Organisations that train on all of their records in each step; their weights are numbers of records."""

    equal_weights = equal_local_steps = ""

    def _begin(self, task: Task) -> None:
        self.averages: Any = None
        self.theta, clients = task.theta0.copy(), range(task.n_clients)
        self.records = (
            [common.records(task, c) for c in clients] if task.has_equal_weights else common.weighted_records(task)
        )
        self.algorithms = [self._algorithm(c) for c in clients]
        self.strategy = Scaffold(algo=self.algorithms[0], aggregation_lr=1)

    def _algorithm(self, client: int) -> Any:
        model = common.TorchLinearModel(self.task.theta0)
        batches = NpIndexGenerator(
            batch_size=len(self.records[client][0]), num_updates=self.task.local_steps[client], shuffle=False
        )
        return TorchScaffoldAlgo(
            model=model, criterion=common.half_squared_error, index_generator=batches, dataset=Records,
            disable_gpu=True, optimizer=torch.optim.SGD(model.parameters(), lr=self.task.step_size),
        )  # fmt: skip

    def _round(self, cohort: tuple[int, ...]) -> None:
        """Take local steps from the last averages, then new averages."""
        if len(cohort) < self.task.n_clients:
            raise NotSupported("all organisations take part in every round")
        states = [
            algorithm.train(data_from_opener=data, shared_state=self.averages, _skip=True)
            for algorithm, data in zip(self.algorithms, self.records, strict=True)
        ]
        self.averages = self.strategy.avg_shared_states(shared_states=states, _skip=True)
        self.theta = self.theta + self.averages.avg_parameters_update[0]

    def _model(self) -> Array:
        return np.asarray(self.theta)

    def _variates(self, client: int) -> tuple[Array, Any]:
        own = self.algorithms[client]._client_control_variate
        if own is None or self.averages is None:  # before the first round
            return np.zeros(self.task.dim), 0.0
        return self.averages.server_control_variate[0], common.as_array(own[0])

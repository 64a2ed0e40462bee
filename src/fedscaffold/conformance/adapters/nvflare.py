"""Adapter to NVFlare's Scaffold: its helper for PyTorch clients, and its controller's aggregation."""

import copy
from typing import Any

import numpy as np
import torch
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.scaffold import scaffold_aggregate_fn
from nvflare.app_opt.pt.scaffold import PTScaffoldHelper

from fedscaffold.conformance.adapters.torch_records import TorchLinearModel, as_array, half_squared_error, records
from fedscaffold.conformance.task import Array, NotSupported, Task

DIFFERENCE = AlgorithmConstants.SCAFFOLD_CTRL_DIFF


class NVFlareScaffold:
    """Clients that train as NVFlare's examples do, with plain gradient steps."""

    def __init__(self, task: Task) -> None:
        if not (task.has_equal_weights and task.has_equal_local_steps):
            raise NotSupported("its weights are numbers of local steps; weights of clients are not among them")
        self.task, self.theta, self.c = task, task.theta0.copy(), np.zeros(task.dim)
        self.models = [TorchLinearModel(task.theta0) for _ in range(task.n_clients)]
        self.helpers = [PTScaffoldHelper() for _ in self.models]
        for helper, model in zip(self.helpers, self.models, strict=True):
            helper.init(model)

    def reconfigure(self, task: Task) -> None:
        """Take the step size and the local steps of another task."""
        self.task = task

    def round(self, cohort: tuple[int, ...]) -> None:
        """Run one round, with the controller's rule for model and server variate."""
        self.round_with_lost_replies(cohort, ())

    def round_with_lost_replies(self, cohort: tuple[int, ...], lost: tuple[int, ...]) -> None:
        """Run one round in which the clients of `lost` train, but their replies do not reach the server."""
        replies = {c: self._trained(c) for c in cohort}
        heard = scaffold_aggregate_fn([replies[c] for c in cohort if c not in lost])
        updated = FLModelUtils.update_model(FLModel(params={"theta": self.theta}), heard)
        self.theta = np.asarray(updated.params["theta"])
        self.c = self.c + heard.meta[DIFFERENCE]["theta"]

    def _trained(self, client: int) -> FLModel:
        model, helper, start = self.models[client], self.helpers[client], TorchLinearModel(self.theta)
        model.load_state_dict(start.state_dict())
        helper.load_global_controls({"theta": self.c})
        server, own = helper.get_params()
        sgd = torch.optim.SGD(model.parameters(), lr=self.task.step_size)
        x, y = records(self.task, client)
        for _ in range(self.task.local_steps[client]):
            sgd.zero_grad()
            half_squared_error(model(x), y).backward()
            sgd.step()
            helper.model_update(model, self.task.step_size, server, own)
        helper.terms_update(model, self.task.step_size, server, own, start)
        meta = {
            DIFFERENCE: helper.get_delta_controls(),
            FLMetaKey.NUM_STEPS_CURRENT_ROUND: self.task.local_steps[client], "client_name": str(client),
        }  # fmt: skip
        change = {"theta": as_array(model.theta) - self.theta}
        return FLModel(params=change, params_type=ParamsType.DIFF, meta=meta, current_round=0)

    def model(self) -> Array:
        """Return the server's model θ."""
        return self.theta

    def correction(self, client: int) -> Array:
        """Return the correction c − c_i."""
        return self.c - as_array(self.helpers[client].c_local.state_dict()["theta"])

    def save(self, client: int) -> Any:
        """Return a client's control variate."""
        return copy.deepcopy(self.helpers[client].c_local.state_dict())

    def restart(self, client: int, saved: Any) -> None:
        """Start a new helper with that control variate."""
        self.helpers[client] = PTScaffoldHelper()
        self.helpers[client].init(self.models[client])
        self.helpers[client].c_local.load_state_dict(copy.deepcopy(saved))

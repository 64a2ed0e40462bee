"""Adapter to NVFlare's Scaffold: its helper for PyTorch clients, and its controller's aggregation."""

import copy
from typing import Any

import numpy as np
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.scaffold import scaffold_aggregate_fn
from nvflare.app_opt.pt.scaffold import PTScaffoldHelper

from fedscaffold.conformance.adapters import LoopAdapter
from fedscaffold.conformance.adapters.torch_records import TorchLinearModel, as_array, sgd_steps
from fedscaffold.conformance.task import Array, Task

DIFFERENCE = AlgorithmConstants.SCAFFOLD_CTRL_DIFF


class NVFlareScaffold(LoopAdapter):
    """Clients that train as NVFlare's examples do, with plain gradient steps."""

    equal_weights = equal_local_steps = (
        "its weights are numbers of local steps; weights of clients are not among them"
    )

    def _begin(self, task: Task) -> None:
        self.theta, self.c = task.theta0.copy(), np.zeros(task.dim)
        self.models = [TorchLinearModel(task.theta0) for _ in range(task.n_clients)]
        self.helpers = [PTScaffoldHelper() for _ in self.models]
        for helper, model in zip(self.helpers, self.models, strict=True):
            helper.init(model)

    def _round(self, cohort: tuple[int, ...], lost: tuple[int, ...]) -> None:
        replies = {c: self._trained(c) for c in cohort}
        heard = scaffold_aggregate_fn([replies[c] for c in cohort if c not in lost])
        updated = FLModelUtils.update_model(FLModel(params={"theta": self.theta}), heard)
        self.theta = np.asarray(updated.params["theta"])
        self.c = self.c + heard.meta[DIFFERENCE]["theta"]

    def _trained(self, client: int) -> FLModel:
        model, helper, start = self.models[client], self.helpers[client], TorchLinearModel(self.theta)
        model.load_state_dict(start.state_dict())
        helper.load_global_controls({"theta": self.c})
        settings = (self.task.step_size, *helper.get_params())
        sgd_steps(self.task, client, model, after=lambda moved: helper.model_update(moved, *settings))
        helper.terms_update(model, *settings, start)
        meta = {
            DIFFERENCE: helper.get_delta_controls(),
            FLMetaKey.NUM_STEPS_CURRENT_ROUND: self.task.local_steps[client], "client_name": str(client),
        }  # fmt: skip
        change = {"theta": as_array(model.theta) - self.theta}
        return FLModel(params=change, params_type=ParamsType.DIFF, meta=meta, current_round=0)

    def _model(self) -> Array:
        return self.theta

    def _variates(self, client: int) -> tuple[Array, Array]:
        return self.c, as_array(self.helpers[client].c_local.state_dict()["theta"])

    def save(self, client: int) -> Any:
        """Return a client's control variate."""
        return copy.deepcopy(self.helpers[client].c_local.state_dict())

    def restart(self, client: int, saved: Any) -> None:
        """Start a new helper with that control variate."""
        self.helpers[client] = PTScaffoldHelper()
        self.helpers[client].init(self.models[client])
        self.helpers[client].c_local.load_state_dict(copy.deepcopy(saved))

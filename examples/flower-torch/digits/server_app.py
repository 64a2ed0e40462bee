"""The server: the strategy, the accuracy after each round, and the network in a file."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import fedscaffold as fs
from digits import task
from fedscaffold import flower

app = ServerApp()
LOG = logging.getLogger("flwr.digits")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or continue after a stop, and write the network's weights."""
    config: Any = context.run_config
    if not Path(config["folder"]).is_absolute():
        raise ValueError("say where the server's files go: --run-config 'folder=\"/a/folder\"', from the root")
    model = task.network(config["seed"])

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        found = task.accuracy(model)
        LOG.info("round %d: accuracy %.3f", round, found)
        return MetricRecord({"accuracy": found})

    method: Any = {"Scaffold": fs.Scaffold, "FedAvg": fs.FedAvg}[config["method"]]
    folder = Path(config["folder"]) / config["method"]
    strategy = flower.Strategy(
        method(step_size=config["step-size"], local_steps=config["local-steps"]), n_clients=config["clients"],
        folder=folder, name=config["method"], seed=config["seed"], batch_size=config["batch-size"],
        outlier_factor=None,  # clients trust each other
    )  # fmt: skip
    start = ArrayRecord(model.state_dict())
    result = strategy.start(grid, start, num_rounds=config["rounds"], evaluate_fn=evaluate)
    weights: Any = {name: array.numpy() for name, array in result.arrays.items()}
    np.savez(folder / "network.npz", **weights)

"""The server: the strategy, and the model in a file."""

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedscaffold import flower
from hospital import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or continue after a stop, and write the model."""
    config: Any = context.run_config
    if not Path(config["folder"]).is_absolute():
        raise ValueError("say where the server's files go: --run-config 'folder=\"/a/folder\"', from the root")
    folder = Path(config["folder"]) / "server"
    strategy = flower.Strategy(
        task.method(config), n_clients=config["clients"], folder=folder, seed=config["seed"],
        batch_size=config["batch-size"], outlier_factor=None,  # the hospitals trust each other
    )  # fmt: skip
    start = ArrayRecord([np.zeros(task.AGREEMENT.dim)])
    result = strategy.start(grid, start, num_rounds=config["rounds"])
    task.model(result.arrays.to_numpy_ndarrays()[0]).save(folder / "model.json")

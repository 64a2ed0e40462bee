"""Ridge regression on made-up data; clients can be slow, or send corrupted updates, as the run asks."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp

import fedscaffold as fs
from fedscaffold import flower

DIM, BATCH, POISONED = 4, 5, 1


def problem(n_clients: int) -> fs.problems.Ridge:
    """Clients with models and scales of their own."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n_clients, 40, DIM)) * rng.uniform(0.7, 1.3, size=(n_clients, 1, 1))
    own = rng.normal(size=(n_clients, DIM, 1))
    return fs.problems.Ridge(x, (x @ own)[..., 0] + rng.normal(size=(n_clients, 40)), l2=0.1)


def method(cohort: int = 0) -> fs.Scaffold:
    """Fast: the error falls to a third in every round."""
    return fs.Scaffold(step_size=0.05, local_steps=20, cohort=cohort or None)


def load(context: Context) -> Any:
    """This node's data; a file marks that the client is at work."""
    pause: Any = context.run_config["pause"]
    n_clients: Any = context.run_config["clients"]
    client = flower.client_of(context)
    if pause:
        folder = Path(str(context.node_config["state-dir"])).parent
        folder.mkdir(exist_ok=True)
        (folder / f"working-{client}").touch()
        time.sleep(pause)
    return problem(n_clients).subset([client])


def poison(message: Message, context: Context, call: Callable[[Message, Context], Message]) -> Message:
    """One client corrupts what it sends, in runs that are called so."""
    reply = call(message, context)
    kind = str(context.run_config["name"]).removeprefix("poison-")
    if kind in ("nan", "large") and flower.client_of(context) == POISONED:
        for record in reply.content.array_records.values():
            factor = {"nan": np.nan, "large": 1e6}[kind]
            record["vector"] = Array(record["vector"].numpy() * factor)
    return reply


client = flower.client_app(load, engine="reference", mods=[poison], policy=flower.SitePolicy.for_simulation())
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the strategy, and leave its process number where a test finds it."""
    config: Any = context.run_config
    folder = Path(config["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pid").write_text(str(os.getpid()))
    keys = {client: Path(file).read_text() for client, file in enumerate(config["keys"].split(";")) if file}
    poisoned = config["name"].startswith("poison")
    strategy = flower.Strategy(
        method(config["cohort"]), n_clients=config["clients"], folder=folder, name=config["name"],
        batch_size=BATCH, seed=config["seed"], keys=keys or None, connect_timeout=120.0, attempts=20,
        min_clients=config["min-clients"], outlier_factor=1.75 if poisoned else None,
    )  # fmt: skip
    strategy.start(grid, ArrayRecord([np.zeros(DIM)]), num_rounds=config["rounds"], timeout=config["timeout"])

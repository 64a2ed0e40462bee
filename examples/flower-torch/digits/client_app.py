"""A client: its images, the network, and the client app."""

from functools import partial

import torch
from flwr.app import Context

from digits import task
from fedscaffold import flower
from fedscaffold.flower.torch import Training

torch.set_num_threads(1)  # simulated clients share the machine


def load(context: Context) -> Training:
    """Return the client's images and the training loop; its parameters come from the server."""
    data = task.data_of(flower.client_of(context), context.run_config)
    return Training(task.network(seed=0), partial(task.train, data=data), n_rows=len(data[1]))


def state_dir(context: Context) -> str:
    """Return the folder for the client state: from the node's configuration, or inside the run's folder."""
    return str(context.node_config.get("state-dir", f"{context.run_config['folder']}/state"))


# Batches drawn with the run's seed reproduce the numbers of the README; real sites leave this out.
app = flower.client_app(load, state_dir=state_dir, policy=flower.SitePolicy(draws="seed"))

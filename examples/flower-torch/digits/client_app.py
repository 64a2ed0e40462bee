"""A client: its images, the network, and the client app."""

import torch
from flwr.app import Context

import fedscaffold as fs
from digits import task
from fedscaffold import flower

torch.set_num_threads(1)  # simulated clients share the machine


def load(context: Context) -> fs.problems.Torch:
    """Return the client's images and network; its parameters come from the server."""
    return task.problem_of(task.data_of(flower.client_of(context), context.run_config))


def state_dir(context: Context) -> str:
    """Return the folder for the client state: from the node's configuration, or inside the run's folder."""
    return str(context.node_config.get("state-dir", f"{context.run_config['folder']}/state"))


# Batches drawn with the run's seed reproduce the numbers of the README; real sites leave this out.
app = flower.client_app(load, state_dir=state_dir, policy=flower.SitePolicy(draws="seed"))

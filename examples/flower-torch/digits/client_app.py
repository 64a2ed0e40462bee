"""A client: its images, the network, and our client app."""

from functools import partial

import torch
from flwr.app import Context

from digits import task
from fedscaffold import flower
from fedscaffold.flower.torch import Training

torch.set_num_threads(1)  # simulated clients share the machine


def load(context: Context) -> Training:
    """The client's images and the training loop; its parameters come from the server."""
    data = task.data_of(flower.client_of(context), context.run_config)
    return Training(task.network(seed=0), partial(task.train, data=data), records=len(data[1]))


def memory(context: Context) -> str:
    """Where the node keeps what it must not forget: what it was told, or a place in the run's folder."""
    return str(context.node_config.get("memory", f"{context.run_config['folder']}/memory"))


app = flower.client_app(load, memory=memory)

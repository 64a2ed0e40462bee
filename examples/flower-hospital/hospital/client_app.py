"""A hospital: its table, and our client app."""

from flwr.app import Context

from fedscaffold import flower
from fedscaffold.core.protocols import Problem
from hospital import task


def load(context: Context) -> Problem:
    """The hospital's table: what the node was told, or in a simulation one of those in the run's folder."""
    inside = f"{context.run_config['folder']}/hospital-{flower.client_of(context)}.csv"
    return task.AGREEMENT.read(str(context.node_config.get("table", inside)))


def memory(context: Context) -> str:
    """Where the node keeps what it must not forget: what it was told, or a place in the run's folder."""
    return str(context.node_config.get("memory", f"{context.run_config['folder']}/memory"))


# A message starts a process: for a small table plain NumPy is done before the compiled engine is loaded.
app = flower.client_app(load, memory=memory, engine="reference")

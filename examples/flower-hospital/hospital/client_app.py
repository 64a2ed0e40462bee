"""A hospital: its table, and the client app."""

from flwr.app import Context

from fedscaffold import flower
from fedscaffold.core.protocols import Problem
from hospital import task


def load(context: Context) -> Problem:
    """Return the hospital's table: from the node's configuration, or in a simulation one in the run's folder."""
    inside = f"{context.run_config['folder']}/hospital-{flower.client_of(context)}.csv"
    return task.AGREEMENT.read(str(context.node_config.get("table", inside)))


def state_dir(context: Context) -> str:
    """Return the folder for the client state: from the node's configuration, or inside the run's folder."""
    return str(context.node_config.get("state-dir", f"{context.run_config['folder']}/state"))


# Batches drawn with the run's seed can be compared with a simulation. Leave this out if batches must stay secret,
# and let each node name its own policy, --node-config 'policy="/etc/federation/policy.toml"'.
POLICY = flower.SitePolicy(draws="seed")

# A message starts a process: for a small table plain NumPy is faster than loading the compiled engine.
app = flower.client_app(load, state_dir=state_dir, engine="reference", policy=POLICY)

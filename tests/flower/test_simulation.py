"""Flower's own simulation, in which Ray's actors play the nodes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core import npz
from tests.samples import make

SCRIPT = """
import sys
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from fedscaffold import flower
from tests.flower.test_simulation import METHOD, problem

folder = sys.argv[1]

def load(context):
    from tests.flower.test_simulation import problem
    return problem().subset([flower.client_of(context)])

server = ServerApp()

@server.main()
def main(grid, context):
    strategy = flower.Strategy(
        METHOD, n_clients=4, folder=folder + "/server", seed=3, batch_size=2, outlier_factor=None
    )
    strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=3, timeout=120.0)

policy = flower.SitePolicy.for_simulation()
client = flower.client_app(load, state_dir=folder + "/state", engine="reference", policy=policy)
resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2, "include_dashboard": False}}
run_simulation(server, client, num_supernodes=4, backend_config=resources)
"""
METHOD = fs.Scaffold(step_size=0.1, local_steps=4, cohort=3)


def problem() -> fs.problems.Ridge | fs.problems.Logistic:
    return make("logistic", (6, 9, 4, 7), 3, weights=(6, 9, 4, 7))


@pytest.mark.slow
def test_numbers_are_those_of_the_simulation(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=Path(__file__).parents[2], capture_output=True,
        text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    newest = max((tmp_path / "server" / "checkpoints").glob("round-*.npz"))
    assert newest.stem == "round-000003"
    found, _ = npz.read(newest)
    simulated = fs.run(problem(), METHOD, rounds=3, batch_size=2, seed=3, engine="reference", record=())
    np.testing.assert_allclose(found["server/theta"][0], simulated.theta[0], rtol=0, atol=1e-10)

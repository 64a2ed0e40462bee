"""Clients whose memory is in files: the same numbers, and only a cohort's rows are touched."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines import Native
from fedscaffold.simulation.rounds import open_rounds
from fedscaffold.simulation.setup import RunSetup
from tests.extras import optional
from tests.samples import make

METHODS: list[Any] = [
    fs.Scaffold(step_size=0.05, local_steps=4),
    fs.Scaffold(step_size=0.05, local_steps=4, cohort=2),
    fs.TwoSidedScaffold(step_size=0.05, local_steps=4, server_step_size=1.0, cohort=2),
    fs.ProxSkip(step_size=0.05, communication_probability=0.2),
    fs.FedLin(step_size=0.05, local_steps=4),
    fs.FedAvg(step_size=0.05, local_steps=4),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_memory_in_a_folder_gives_the_same_bits(method: Any, tmp_path: Path) -> None:
    settings: Any = {"rounds": 7, "batch_size": 2, "seed": 5, "repetitions": 2}
    here = fs.run(make("ridge"), method, **settings)
    away = fs.run(make("ridge"), method, **settings, client_state_dir=tmp_path / "memory")
    np.testing.assert_array_equal(away.theta, here.theta)
    np.testing.assert_array_equal(away.control_variates, here.control_variates)


def test_a_run_with_memory_in_a_folder_resumes(tmp_path: Path) -> None:
    settings: Any = {"batch_size": 2, "seed": 5, "checkpoint_every": 2}
    wanted = fs.run(make("ridge"), METHODS[1], rounds=6, **settings)
    for rounds in (3, 6):
        found = fs.run(
            make("ridge"), METHODS[1], rounds=rounds, **settings, client_state_dir=tmp_path / "memory",
            checkpoint=tmp_path / "checkpoint",
        )  # fmt: skip
    np.testing.assert_array_equal(found.mse, wanted.mse)
    np.testing.assert_array_equal(found.control_variates, wanted.control_variates)


def test_only_a_cohorts_rows_are_written(tmp_path: Path) -> None:
    problem, method = make("ridge", [5] * 40), fs.Scaffold(step_size=0.05, local_steps=4, cohort=3)
    setup = RunSetup(
        problem=problem, method=method, engine=Native(), theta=np.zeros((1, problem.dim)), batches=Batches(2),
        seed=5, folder=tmp_path,
    )  # fmt: skip
    with open_rounds(setup) as step:
        state = step.initial_state()
        now = step(state)
        xi = step.gather(now).client_state.xi
        assert isinstance(xi, np.memmap)
        cohort = step.round_info(state).cohort
        assert cohort is not None
        assert sorted(np.flatnonzero(xi[0].any(axis=1))) == cohort[0].tolist()
        assert not step.is_current(state)
        with pytest.raises(fs.InvalidInput, match="overwritten"):
            step(state)


def test_values_to_start_from_are_put_in_the_folder(tmp_path: Path) -> None:
    xi = np.array([[1.0, 0.0, 2.0], [-1.0, 0.0, 0.0], [0.0, 0.0, -2.0]])
    settings: Any = {"rounds": 2, "control_variates0": xi}
    here = fs.run(make("ridge"), METHODS[0], **settings)
    away = fs.run(make("ridge"), METHODS[0], **settings, client_state_dir=tmp_path)
    np.testing.assert_array_equal(away.theta, here.theta)


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(fs.InvalidInput, match="cannot make a folder"):
        fs.run(make("ridge"), METHODS[0], rounds=2, client_state_dir=tmp_path / "file")


@pytest.mark.slow
def test_a_thousand_networks_on_disk_take_little_memory(tmp_path: Path) -> None:
    """1,000 clients of 100,234 parameters, 0.8 GB of control variates, with cohorts of 20: below 1.5 GB in all."""
    optional("torch")
    code = f"""
import resource
import numpy as np, torch
import fedscaffold as fs
rng = np.random.default_rng(0)
clients = [(rng.normal(size=(20, 64)), rng.integers(0, 10, size=20)) for _ in range(1000)]
first, second = torch.nn.Linear(64, 512), torch.nn.Linear(512, 128)
module = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), torch.nn.Linear(128, 10))
problem = fs.problems.Torch(module, torch.nn.CrossEntropyLoss(reduction="none"), clients)
assert problem.dim == 100_234
method = fs.Scaffold(step_size=0.05, local_steps=3, cohort=20)
fs.run(problem, method, rounds=10, batch_size=10, record=(), client_state_dir={str(tmp_path)!r}, progress=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.5e6  # kilobytes

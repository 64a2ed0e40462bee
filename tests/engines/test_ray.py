"""Clients on Ray: the same bits as in one process, whatever the shards and whoever dies."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.sums import LEAF
from fedscaffold.engines import Jax, Native, Ray, Reference
from fedscaffold.engines.ray_ import split
from fedscaffold.problems import Ridge
from tests.simulation.test_checkpoint import StopAt, Stopped
from tests.simulation.test_interrupted import KINDS

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings(
    "ignore:os.fork:RuntimeWarning"
)  # JAX, where it is loaded, minds Ray's processes
N = 5 * LEAF + 7
SCAFFOLD = fs.Scaffold(step_size=0.02, local_steps=5)


@pytest.fixture(scope="module", autouse=True)
def _running() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


def problem(n_clients: int = N, records: int = 12) -> Ridge:
    rng = np.random.default_rng(1)
    weights = rng.random(n_clients)
    X, y = rng.standard_normal((n_clients, records, 7)), rng.standard_normal((n_clients, records))
    return Ridge(X, y, l2=0.1, weights=weights / weights.sum())


def same(found: fs.Trace, wanted: fs.Trace) -> None:
    np.testing.assert_array_equal(found.theta, wanted.theta)
    np.testing.assert_array_equal(found.mse, wanted.mse)
    np.testing.assert_array_equal(found.control_variates, wanted.control_variates)


@pytest.mark.parametrize(
    "method",
    [
        fs.Scaffold(step_size=0.02, local_steps=5, cohort=4),
        fs.FedLin(step_size=0.02, local_steps=5),
        *(
            pytest.param(method, marks=pytest.mark.slow)
            for method in (
                SCAFFOLD,
                fs.Scaffold(step_size=0.02, local_steps=[1 + c % 3 for c in range(N)]),
                fs.TwoSidedScaffold(step_size=0.02, local_steps=5, server_step_size=0.5, participation=0.3),
                fs.ProxSkip(step_size=0.02, communication_probability=0.3),
            )
        ),
    ],
)
def test_the_same_bits_as_in_one_process(method: Any) -> None:
    settings: Any = {"rounds": 8, "batch_size": 4, "seed": 3}
    same(
        fs.run(problem(), method, engine=Ray(shards=2, snapshot_every=3), **settings),
        fs.run(problem(), method, **settings),
    )


@pytest.mark.slow
def test_any_number_of_shards_and_repetitions() -> None:
    settings: Any = {"rounds": 4, "batch_size": 4, "seed": 3, "repetitions": 2}
    wanted = fs.run(problem(), SCAFFOLD, **settings)
    for shards in (1, 2, 6, None):
        same(fs.run(problem(), SCAFFOLD, engine=Ray(shards=shards), **settings), wanted)


@pytest.mark.slow
def test_jax_and_streams_within_shards() -> None:
    """JAX rounds as its chunks fall, so that its numbers agree rather than its bits."""
    settings: Any = {"rounds": 3, "batch_size": 4, "seed": 3}
    there = fs.run(problem(), SCAFFOLD, engine=Ray(shards=2, shard_engine=Jax()), **settings)
    np.testing.assert_allclose(
        there.theta, fs.run(problem(), SCAFFOLD, engine=Jax(), **settings).theta, rtol=1e-12
    )
    stream = fs.problems.LogisticStream(n_clients=N, dim=3)
    same(
        fs.run(stream, SCAFFOLD, engine=Ray(shards=2), **settings),
        fs.run(stream, SCAFFOLD, **settings),
    )


def workers() -> list[int]:
    """Processes of shards that this process's Ray has."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_text()
            if title.startswith("ray::Shard") and os.getpid() in ancestors(int(folder.name)):
                found.append(int(folder.name))
        except OSError:  # it has just ended
            continue
    return found


def ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def test_a_killed_worker_changes_nothing() -> None:
    """One is killed between two rounds, before any snapshot; one in the middle of a round, after a snapshot."""
    killed: list[int] = []

    def kill() -> None:
        killed.append(workers()[0])
        os.kill(killed[-1], signal.SIGKILL)

    def progress(done: int, rounds: int) -> None:
        if done == 2:
            kill()
        if done == 7:
            threading.Timer(0.03, kill).start()

    method = fs.Scaffold(step_size=1e-3, local_steps=12_000)
    settings: Any = {"rounds": 9, "batch_size": 4, "seed": 3}
    found = fs.run(
        problem(2 * LEAF), method, engine=Ray(shards=2, snapshot_every=3), progress=progress, **settings
    )
    assert len(set(killed)) == 2
    same(found, fs.run(problem(2 * LEAF), method, **settings))


def test_either_goes_on_from_the_others_checkpoint(tmp_path: Path) -> None:
    settings: Any = {"batch_size": 4, "seed": 3, "checkpoint": tmp_path / "checkpoint"}
    wanted = fs.run(problem(), SCAFFOLD, rounds=6, batch_size=4, seed=3)
    fs.run(problem(), SCAFFOLD, rounds=2, engine=Ray(shards=2), **settings)
    fs.run(problem(), SCAFFOLD, rounds=4, **settings)
    same(fs.run(problem(), SCAFFOLD, rounds=6, engine=Ray(shards=2), **settings), wanted)


@pytest.mark.slow
def test_control_variates_to_start_from_are_divided() -> None:
    xi = np.random.default_rng(0).standard_normal((N, 7))
    xi -= problem().weights @ xi
    settings: Any = {"rounds": 3, "batch_size": 4, "control_variates0": xi}
    same(fs.run(problem(), SCAFFOLD, engine=Ray(shards=2), **settings), fs.run(problem(), SCAFFOLD, **settings))


def test_divergence_names_the_client() -> None:
    method = fs.Scaffold(step_size=50.0, local_steps=20)
    with pytest.raises(fs.Diverged) as here:
        fs.run(problem(), method, rounds=9, batch_size=4)
    with pytest.raises(fs.Diverged) as there:
        fs.run(problem(), method, rounds=9, batch_size=4, engine=Ray(shards=2))
    assert str(there.value) == str(here.value)


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fs.InvalidInput, match="one repetition"):
        fs.run(
            problem(), fs.Scaffold(step_size=0.1, local_steps=2, cohort=4), rounds=2, repetitions=2,
            engine=Ray(shards=2),
        )  # fmt: skip
    with pytest.raises(fs.InvalidInput, match="client_state_dir"):
        fs.run(problem(), SCAFFOLD, rounds=2, engine=Ray(shards=2), client_state_dir=tmp_path / "memory")
    assert not (tmp_path / "memory").exists()


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(fs.InvalidInput, match="shards"):
        Ray(shards=0)
    with pytest.raises(fs.InvalidInput, match="shard_engine"):
        Ray(shard_engine=Ray())
    assert Ray(shard_engine=Reference()).name == "reference"
    assert Ray().name == Native().name


def test_shards_have_whole_leaves() -> None:
    assert split(10, 4) == [(0, 10)]
    assert split(5 * LEAF + 7, 4) == [(0, LEAF), (LEAF, 3 * LEAF), (3 * LEAF, 4 * LEAF), (4 * LEAF, 5 * LEAF + 7)]


@pytest.mark.parametrize("kind", ["staged", pytest.param("richardson_romberg", marks=pytest.mark.slow)])
def test_interrupted_stages_resume_to_the_bits_of_a_run_without(kind: str, tmp_path: Path) -> None:
    run, _ = KINDS[kind]
    path = tmp_path / "run.npz"
    with pytest.raises(Stopped):
        run(engine=Ray(shards=2), checkpoint=path, checkpoint_every=3, progress=StopAt(10))
    assert run(engine=Ray(shards=2), checkpoint=path, progress=False) == run(progress=False)

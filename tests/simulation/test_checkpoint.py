"""Checkpoints: the same bits after an interruption, and nobody else's checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.protocols import Watch
from fedscaffold.core.types import Array
from tests.samples import make

PROBLEM = make("ridge", weights=(1, 2, 3))
METHOD = fs.Scaffold(step_size=0.1, local_steps=4)
USUAL: dict[str, Any] = {"batch_size": 2, "seed": 9, "repetitions": 2, "record": ("mse", "loss", "average")}


class Stopped(Exception):
    """Raised by the tests to end a run."""


class StopAt:
    """A progress function that counts rounds and ends the run after some."""

    def __init__(self, round: int | None, error: type[BaseException] = Stopped) -> None:
        self.round, self.error, self.seen = round, error, list[int]()

    def __call__(self, done: int, rounds: int) -> None:
        self.seen.append(done)
        if done == self.round:
            raise self.error


def assert_same_bits(a: fs.Trace, b: fs.Trace) -> None:
    assert a.theta.tobytes() == b.theta.tobytes()
    assert a.control_variates.tobytes() == b.control_variates.tobytes()
    assert set(a.metrics) == set(b.metrics)
    for name, values in a.metrics.items():
        assert values.tobytes() == b.metrics[name].tobytes(), name


@pytest.mark.parametrize("method", [METHOD, fs.FedAvg(step_size=0.1, local_steps=4)])
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_resumes_to_the_same_bits(tmp_path: Path, method: Any, engine: str) -> None:
    path = tmp_path / "checkpoint"
    whole = fs.run(PROBLEM, method, rounds=12, engine=engine, **USUAL)
    with pytest.raises(Stopped):
        fs.run(
            PROBLEM, method, rounds=12, engine=engine, checkpoint=path, checkpoint_every=5,
            progress=StopAt(7), **USUAL,
        )  # fmt: skip
    watch = StopAt(None)
    resumed = fs.run(PROBLEM, method, rounds=12, engine=engine, checkpoint=path, progress=watch, **USUAL)
    assert watch.seen == list(range(5, 13))
    assert_same_bits(resumed, whole)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]


def test_a_finished_run_is_read_back_and_can_be_extended(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    short = fs.run(PROBLEM, METHOD, rounds=6, checkpoint=path, **USUAL)
    watch = StopAt(None)
    assert_same_bits(fs.run(PROBLEM, METHOD, rounds=6, checkpoint=path, progress=watch, **USUAL), short)
    assert watch.seen == [6]
    longer = fs.run(PROBLEM, METHOD, rounds=10, checkpoint=path, progress=watch, **USUAL)
    assert watch.seen == [6, 6, 7, 8, 9, 10]
    assert_same_bits(longer, fs.run(PROBLEM, METHOD, rounds=10, **USUAL))
    with pytest.raises(fs.CheckpointMismatch, match="at round 10, past the 6 asked for"):
        fs.run(PROBLEM, METHOD, rounds=6, checkpoint=path, **USUAL)


def test_threads_may_change_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fs.run(PROBLEM, METHOD, rounds=3, checkpoint=path, engine=fs.engines.Native(threads=1), **USUAL)
    again = fs.run(PROBLEM, METHOD, rounds=6, checkpoint=path, engine=fs.engines.Native(threads=3), **USUAL)
    assert_same_bits(again, fs.run(PROBLEM, METHOD, rounds=6, **USUAL))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"problem": make("ridge", weights=(1, 2, 4))}, "problem"),
        ({"problem": make("ridge", weights=(1, 2, 3), seed=1)}, "problem"),
        ({"method": fs.Scaffold(step_size=0.11, local_steps=4)}, "method"),
        ({"method": fs.Scaffold(step_size=0.1, local_steps=5)}, "method"),
        ({"method": fs.FedAvg(step_size=0.1, local_steps=4)}, "method"),
        ({"seed": 10}, "seed"),
        ({"batch_size": 3}, "batches"),
        ({"batch_size": None}, "batches"),
        ({"sampling": "without_replacement"}, "batches"),
        ({"repetitions": 3}, "repetitions"),
        ({"engine": "reference"}, "engine"),
        ({"engine": fs.engines.Native(dtype="float32")}, "engine"),
        ({"theta0": [0.0, 0.0, 1e-9]}, "start"),
        ({"control_variates0": [[3.0, 0, 0], [0, 0, 0], [-1.0, 0, 0]]}, "start"),
        ({"record": ("mse", "loss")}, "record"),
        ({"record": ("mse", "loss", fs.simulation.TailAverage(after=1))}, "record"),
    ],
)
def test_another_runs_checkpoint_is_refused_and_kept(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    path = tmp_path / "checkpoint"
    fs.run(PROBLEM, METHOD, rounds=2, checkpoint=path, **USUAL)
    before = path.read_bytes()
    arguments = {"problem": PROBLEM, "method": METHOD, **USUAL, **change}
    with pytest.raises(fs.CheckpointMismatch, match=f"belongs to another run: .*{named}"):
        fs.run(rounds=4, checkpoint=path, **arguments)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_what_is_no_checkpoint_is_refused_and_kept(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "checkpoint"
    if content is None:
        fs.run(PROBLEM, METHOD, rounds=1, **USUAL).save(path)
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(fs.CheckpointMismatch, match="is not a checkpoint"):
        fs.run(PROBLEM, METHOD, rounds=4, checkpoint=path, **USUAL)
    assert path.read_bytes() == before


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    """Anything but CheckpointMismatch, or other numbers, would be a fault; a byte in 40 is tried."""
    path = tmp_path / "checkpoint"
    wanted = fs.run(PROBLEM, METHOD, rounds=2, checkpoint=path, **USUAL)
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            assert_same_bits(fs.run(PROBLEM, METHOD, rounds=2, checkpoint=path, **USUAL), wanted)
        except fs.CheckpointMismatch:
            refused += 1
    assert refused > 0.8 * len(whole) / 40


@pytest.mark.parametrize("moment", [0, 1, 7])
def test_an_interruption_leaves_the_last_completed_round(tmp_path: Path, moment: int) -> None:
    """Ctrl-C while the progress function runs; the next checkpoint would have been far away."""
    path = tmp_path / "checkpoint"
    often: dict[str, Any] = {"rounds": 12, "checkpoint": path, "checkpoint_every": 100, **USUAL}
    with pytest.raises(KeyboardInterrupt):
        fs.run(PROBLEM, METHOD, progress=StopAt(moment, KeyboardInterrupt), **often)
    watch = StopAt(None)
    resumed = fs.run(PROBLEM, METHOD, progress=watch, **often)
    assert watch.seen[0] == moment
    assert_same_bits(resumed, fs.run(PROBLEM, METHOD, rounds=12, **USUAL))


@dataclass(frozen=True)
class Coordinates:
    """A user's observer with a field that JSON has no word for."""

    which: tuple[int, ...]
    name: str = "coordinates"
    keep: Literal["every"] = "every"

    def watch(self, problem: Any) -> Watch:
        def some(round: int, theta: Array, previous: Array | None) -> Array:
            return theta[:, list(self.which)]

        return some


def test_a_users_observer_is_resumed_too(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    record = ("mse", Coordinates((0, 2)))
    fs.run(PROBLEM, METHOD, rounds=2, record=record, checkpoint=path)
    resumed = fs.run(PROBLEM, METHOD, rounds=5, record=record, checkpoint=path)
    assert_same_bits(resumed, fs.run(PROBLEM, METHOD, rounds=5, record=record))
    assert resumed.metrics["coordinates"].shape == (1, 6, 2)
    with pytest.raises(fs.CheckpointMismatch, match="record"):
        fs.run(PROBLEM, METHOD, rounds=5, record=("mse", Coordinates((0, 1))), checkpoint=path)


def test_nothing_recorded_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fs.run(PROBLEM, METHOD, rounds=2, record=(), checkpoint=path)
    resumed = fs.run(PROBLEM, METHOD, rounds=5, record=(), checkpoint=path)
    np.testing.assert_array_equal(resumed.theta, fs.run(PROBLEM, METHOD, rounds=5).theta)

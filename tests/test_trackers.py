"""Trackers against the real stores of TensorBoard, MLflow and Weights & Biases."""

import math
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedscaffold as fs
from fedscaffold.cli.main import app
from fedscaffold.trackers import numbers_of
from tests.extras import optional
from tests.samples import make

METHOD = fs.Scaffold(step_size=0.05, local_steps=3)
RECORD = ("loss", "client_losses", "average")


def run(tracker: Any, **more: Any) -> fs.Trace:
    options = {"rounds": 4, "batch_size": 2, "repetitions": 2, "record": RECORD, "seed": 7, **more}
    return fs.run(make("ridge"), METHOD, track=[tracker], **options)


def expected(trace: fs.Trace) -> dict[str, Any]:
    """Series by name: means over repetitions, of every client's too; the average only after the last round."""
    clients = trace.metrics["client_losses"].mean(axis=0).T
    return {"loss": trace.loss.mean(axis=0), **{f"client_losses/{c}": own for c, own in enumerate(clients)}}


def events_of(folder: Path) -> Any:
    reader = optional("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder))
    found.Reload()
    return found


def test_tensorboard_reads_what_was_recorded(tmp_path: Path) -> None:
    optional("tensorboard")
    trace = run(fs.trackers.TensorBoard(tmp_path / "runs"))
    found = events_of(tmp_path / "runs")
    for name, values in expected(trace).items():
        events = found.Scalars(name)
        assert [event.step for event in events] == [0, 1, 2, 3, 4]
        np.testing.assert_allclose([event.value for event in events], values, rtol=1e-6)  # float32
    (settings,) = found.Tensors("settings")
    text = settings.tensor_proto.string_val[0].decode()
    assert "| method.step_size | 0.05 |" in text
    assert "| seed | 7 |" in text


def test_the_command_line_tracks_a_resumed_run(tmp_path: Path) -> None:
    optional("tensorboard")
    for rounds in (3, 5):
        command = f"run --clients 4 --local-steps 2 --rounds {rounds} --checkpoint {tmp_path / 'run.npz'}"
        done = CliRunner().invoke(app, [*command.split(), "--track", f"tensorboard:{tmp_path / str(rounds)}"])
        assert done.exit_code == 0, done.output
    assert [event.step for event in events_of(tmp_path / "3").Scalars("mse")] == [0, 1, 2, 3]
    assert [event.step for event in events_of(tmp_path / "5").Scalars("mse")] == [4, 5]


@pytest.mark.filterwarnings("ignore")  # of MLflow's own parts
def test_mlflow_reads_what_was_recorded(tmp_path: Path) -> None:
    mlflow = optional("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = fs.trackers.MLflow(uri, experiment="digits")
    trace = run(tracker)

    def stop(round: int, values: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tracker, callback=stop)
    client = mlflow.MlflowClient(tracking_uri=uri)
    failed, done = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert (failed.info.status, done.info.status) == ("FAILED", "FINISHED")
    assert done.data.params["method.local_steps"] == "3"
    assert done.data.params["engine"] == trace.provenance["engine"]
    for name, values in expected(trace).items():
        history = sorted(client.get_metric_history(done.info.run_id, name), key=lambda metric: metric.step)
        assert [metric.step for metric in history] == [0, 1, 2, 3, 4]
        np.testing.assert_allclose([metric.value for metric in history], values)
    with pytest.raises(fs.InvalidInput, match="cannot log to MLflow at 'nowhere:///x'"):
        run(fs.trackers.MLflow("nowhere:///x"))


def log_records(data: bytes) -> Iterator[bytes]:
    """Records of a log in LevelDB's format after 7 bytes: blocks of 32 kB, and 7 bytes before each part."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            yield whole
            whole = b""


def logged_losses(file: Path) -> list[float]:
    proto, losses = optional("wandb.proto.wandb_internal_pb2"), list[float]()
    for data in log_records(file.read_bytes()):
        record = proto.Record()
        record.ParseFromString(data)
        items = [item for item in record.history.item if "loss" in (item.key, *item.nested_key)]
        losses += [float(item.value_json) for item in items]
    return losses


@pytest.mark.filterwarnings("ignore")  # of wandb's own parts
def test_weights_and_biases_keeps_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optional("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    trace = run(fs.trackers.Wandb("digits", mode="offline", folder=str(tmp_path)))
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    end = time.monotonic() + 30.0  # seconds: another process writes the file
    while len(losses := logged_losses(file)) < trace.loss.shape[1] and time.monotonic() < end:
        time.sleep(0.2)
    np.testing.assert_allclose(losses, trace.loss.mean(axis=0))


def test_numbers_are_means_over_repetitions_and_long_vectors_are_left_out() -> None:
    found = numbers_of({"a": np.array([1.0, 3.0]), "b": np.array([[1.0, 2.0]]), "c": np.zeros((1, 101))})
    assert found == {"a": 2.0, "b/0": 1.0, "b/1": 2.0}
    assert math.isnan(numbers_of({"a": np.array([np.nan])})["a"])


@pytest.mark.parametrize("track", ["runs", ["runs"], [fs.trackers.TensorBoard], [3]])
def test_other_things_than_trackers_are_rejected(track: Any) -> None:
    with pytest.raises(fs.InvalidInput, match="track must hold trackers such as"):
        fs.run(make("ridge"), METHOD, rounds=1, track=track)


def test_unknown_trackers_on_the_command_line() -> None:
    for text in ("tensorboard", "comet:x"):
        done = CliRunner().invoke(app, ["run", "--track", text])
        assert done.exit_code == 2
        assert "--track must be tensorboard:DIR, mlflow:URI or wandb:PROJECT" in done.output.replace("\n", " ")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package, tracker in (
        ("tensorboard", fs.trackers.TensorBoard(tmp_path)),
        ("mlflow", fs.trackers.MLflow("x")),
        ("wandb", fs.trackers.Wandb("x")),
    ):
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(fs.MissingDependency, match=r"pip install 'fedscaffold\[track\]'"):
            run(tracker)

"""Trackers: send what a run records to TensorBoard, MLflow or Weights & Biases, round by round.

A tracker is opened before the first round and closed after the last one: see `core.protocols.Tracker`. Each
recorded number is sent under its observer's name, the mean over repetitions; of a vector, such as the clients'
losses, each entry under name/0, name/1 and so on, up to a hundred. Longer vectors are not sent.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.checks import suggest_names
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import folder_at
from fedscaffold.core.imports import load_optional
from fedscaffold.core.types import Array

__all__ = ["MLflow", "TensorBoard", "Wandb"]

MOST_ENTRIES = 100  # of a vector; pages of trackers draw a chart for each
Send = Callable[[int, Mapping[str, Array]], None]


@dataclass(frozen=True)
class TensorBoard:
    """Event files for TensorBoard, in a folder; the run's settings are under "text".

    Parameters
    ----------
    folder
        Where the files go; it is made if it is missing. `tensorboard --logdir FOLDER` shows them.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.trackers.TensorBoard("runs/scaffold")
    TensorBoard(folder='runs/scaffold')
    """

    folder: str | os.PathLike[str]

    @contextmanager
    def open(self, settings: Mapping[str, Any]) -> Iterator[Send]:
        """Write the settings, and yield a function that writes the values of a round."""
        needed = {"needed_by": "trackers.TensorBoard needs TensorBoard", "extra": "track"}
        events = load_optional("tensorboard.summary.writer.event_file_writer", **needed)
        proto = load_optional("tensorboard.compat.proto.event_pb2", **needed)
        summaries = load_optional("tensorboard.compat.proto.summary_pb2", **needed)
        tensors = load_optional("tensorboard.compat.proto.tensor_pb2", **needed)
        text = load_optional("tensorboard.plugins.text.metadata", **needed)
        writer = events.EventFileWriter(str(folder_at(self.folder)))

        def write(round: int, values: list[Any]) -> None:
            writer.add_event(
                proto.Event(wall_time=time.time(), step=round, summary=summaries.Summary(value=values))
            )
            writer.flush()

        try:
            table = "\n".join(
                ["| setting | value |", "|---|---|", *(f"| {k} | {v} |" for k, v in settings.items())]
            )
            tensor = tensors.TensorProto(dtype="DT_STRING", string_val=[table.encode()])
            about = text.create_summary_metadata(display_name="settings", description="")
            write(0, [summaries.Summary.Value(tag="settings", metadata=about, tensor=tensor)])
            yield lambda round, values: write(
                round, [summaries.Summary.Value(tag=tag, simple_value=x) for tag, x in numbers_of(values).items()]
            )
        finally:
            writer.close()


@dataclass(frozen=True)
class MLflow:
    """A run in an experiment of MLflow, with the settings as parameters and a metric for each recorded number.

    Parameters
    ----------
    uri
        Address of the tracking server, or of a store such as "sqlite:///mlflow.db".
    experiment
        Name of the experiment; it is made if it is missing.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.trackers.MLflow("sqlite:///mlflow.db")
    MLflow(uri='sqlite:///mlflow.db', experiment='fedscaffold')
    """

    uri: str
    experiment: str = "fedscaffold"

    @contextmanager
    def open(self, settings: Mapping[str, Any]) -> Iterator[Send]:
        """Start a run, and yield a function that logs the values of a round; an exception marks it as failed."""
        mlflow = load_optional("mlflow", "trackers.MLflow needs MLflow", extra="track")
        try:
            client = mlflow.MlflowClient(tracking_uri=self.uri)
            found = client.get_experiment_by_name(self.experiment)
            number = client.create_experiment(self.experiment) if found is None else found.experiment_id
            run = client.create_run(number).info.run_id
        except Exception as error:  # of MLflow, its database or its server
            why = " ".join(str(error).split())[:200]
            raise InvalidInput(f"cannot log to MLflow at {self.uri!r}: {why}") from None
        for name, value in settings.items():
            client.log_param(run, name, str(value)[:500])  # more is rejected by older servers

        def send(round: int, values: Mapping[str, Array]) -> None:
            now = int(1000 * time.time())
            metrics = [mlflow.entities.Metric(name, x, now, round) for name, x in numbers_of(values).items()]
            client.log_batch(run, metrics=metrics)

        status = "FAILED"
        try:
            yield send
            status = "FINISHED"
        finally:
            client.set_terminated(run, status=status)


@dataclass(frozen=True)
class Wandb:
    """A run of Weights & Biases, with the settings as its configuration.

    Parameters
    ----------
    project
        Name of the project.
    mode
        "online", "offline" (files for `wandb sync`), or None for what WANDB_MODE says.
    folder
        Where its files go; None for the working folder.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.trackers.Wandb("digits", mode="offline")
    Wandb(project='digits', mode='offline', folder=None)
    """

    project: str
    mode: str | None = None
    folder: str | None = None

    @contextmanager
    def open(self, settings: Mapping[str, Any]) -> Iterator[Send]:
        """Start a run, and yield a function that logs the values of a round; an exception marks it as failed."""
        wandb = load_optional("wandb", "trackers.Wandb needs wandb", extra="track")
        run = wandb.init(project=self.project, mode=self.mode, dir=self.folder, config=dict(settings))
        code = 1
        try:
            yield lambda round, values: run.log(numbers_of(values), step=round)
            code = 0
        finally:
            run.finish(exit_code=code)


def numbers_of(values: Mapping[str, Array]) -> dict[str, float]:
    """Return the numbers to send by name, means over repetitions."""
    found = {}
    for name, value in values.items():
        mean = np.asarray(value).mean(axis=0)
        if mean.ndim == 0:
            found[name] = float(mean)
        elif mean.ndim == 1 and mean.size <= MOST_ENTRIES:
            found |= {f"{name}/{i}": float(entry) for i, entry in enumerate(mean)}
    return found


for _tracker in (MLflow, TensorBoard, Wandb):
    suggest_names(_tracker)


def __dir__() -> list[str]:
    return __all__

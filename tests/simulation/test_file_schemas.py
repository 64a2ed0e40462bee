"""Checkpoints and traces with right digests that do not fit the run: refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core import npz

PROBLEM = fs.problems.RidgeStream(n_clients=3, dim=4)
METHOD = fs.Scaffold(step_size=0.05, local_steps=2)
OPTIONS: dict[str, Any] = {"batch_size": 2, "engine": "reference", "repetitions": 2}
Content = tuple[dict[str, Any], dict[str, Any]]
Change = Callable[[dict[str, Any], dict[str, Any]], object]


def rewritten(path: Path, change: Change) -> None:
    arrays, description = npz.read(path)
    change(arrays, description)
    npz.write(path, arrays, description)


def put(name: str, value: Callable[[Any], Any]) -> Change:
    return lambda arrays, description: arrays.update({name: value(arrays[name])})


WRONG: dict[str, Change] = {
    "xi cut": put("client/xi", lambda xi: xi[:1, :, :1]),
    "xi of other clients": put("client/xi", lambda xi: xi[:, :2]),
    "xi NaN": put("client/xi", lambda xi: xi * np.nan),
    "xi text": put("client/xi", lambda xi: xi.astype(str)),
    "xi single": put("client/xi", lambda xi: xi.astype(np.float32)),
    "theta infinite": put("server/theta", lambda theta: theta + np.inf),
    "theta of one repetition": put("server/theta", lambda theta: theta[:1]),
    "theta scalar": put("server/theta", lambda theta: np.array(1.0)),
    "mse short": put("metric/mse", lambda mse: mse[:, :1]),
    "mse deep": put("metric/mse", lambda mse: mse[:, :, None]),
    "no xi": lambda arrays, description: arrays.pop("client/xi"),
    "one more": lambda arrays, description: arrays.update({"client/other": np.ones(3)}),
    "one more metric": lambda arrays, description: arrays.update({"metric/other": np.ones((2, 3))}),
    "round -7": lambda arrays, description: description.update(round=-7),
    "round text": lambda arrays, description: description.update(round="2"),
    "round half": lambda arrays, description: description.update(round=1.5),
    "round past": lambda arrays, description: description.update(round=10**9),
    "round list": lambda arrays, description: description.update(round=[2]),
    "no round": lambda arrays, description: description.pop("round"),
    "identity list": lambda arrays, description: description.update(identity=[1]),
    "identity text": lambda arrays, description: description.update(identity="x"),
    "what number": lambda arrays, description: description.update(what=3),
}


@pytest.mark.parametrize("change", WRONG)
def test_checkpoints(change: str, tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    fs.run(PROBLEM, METHOD, rounds=2, checkpoint=file, **OPTIONS)
    rewritten(file, WRONG[change])
    with pytest.raises(fs.CheckpointMismatch, match=r"run\.npz"):
        fs.run(PROBLEM, METHOD, rounds=4, checkpoint=file, **OPTIONS)


def test_stages_and_chains(tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    for change in (
        put("extra/stages", lambda stages: stages * 7.0 + 3.0),
        put("extra/stages", lambda stages: -stages),
        put("extra/distances", lambda distances: distances[1:]),
        put("extra/start", lambda start: start[:, :1]),
        put("extra/min_rounds", lambda rounds: rounds * np.nan),
    ):
        file.unlink(missing_ok=True)
        fs.staged(PROBLEM, METHOD, rounds=8, checkpoint=file, **OPTIONS)
        rewritten(file, change)
        with pytest.raises(fs.CheckpointMismatch, match=r"run\.npz"):
            fs.staged(PROBLEM, METHOD, rounds=9, checkpoint=file, **OPTIONS)
    for change in (
        put("extra/chain", lambda chain: chain + 9),
        put("extra/chain", lambda chain: chain * 1.0),
        put("extra/sums", lambda sums: sums[:1]),
    ):
        file.unlink(missing_ok=True)
        chains: dict[str, Any] = {"rounds": 8, "discard": 2, "checkpoint": file, **OPTIONS}
        fs.richardson_romberg(PROBLEM, METHOD, **chains)
        rewritten(file, change)
        with pytest.raises(fs.CheckpointMismatch, match=r"run\.npz"):
            fs.richardson_romberg(PROBLEM, METHOD, **chains)


@pytest.mark.parametrize(
    "change",
    [
        put("theta", lambda theta: theta[0]),
        put("theta", lambda theta: theta * np.nan),
        put("control_variates", lambda xi: xi[:, :, :1]),
        put("vectors_per_client", lambda vectors: vectors[1:]),
        put("gradients_per_client", lambda gradients: gradients[:1]),
        put("metric/mse", lambda mse: mse[:1]),
        put("metric/mse", lambda mse: mse.astype(str)),
        lambda arrays, description: arrays.pop("theta"),
        lambda arrays, description: arrays.update(other=np.ones(2)),
        lambda arrays, description: description.update(rounds=-7),
        lambda arrays, description: description.update(rounds=[1]),
        lambda arrays, description: description.update(provenance=[1]),
        lambda arrays, description: description["provenance"].update(method=[1]),
        lambda arrays, description: description.update(extra=1),
    ],
)
def test_traces(change: Change, tmp_path: Path) -> None:
    file = tmp_path / "trace.npz"
    fs.run(PROBLEM, METHOD, rounds=2, **OPTIONS).save(file)
    fs.Trace.load(file)
    rewritten(file, change)
    with pytest.raises(fs.InvalidInput, match=r"trace\.npz"):
        fs.Trace.load(file)

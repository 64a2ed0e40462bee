"""Traces: frames, files, and files that are something else."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.simulation.trace import ARRAYS
from tests.samples import make


@pytest.fixture(scope="module")
def trace() -> fs.Trace:
    method = fs.Scaffold(step_size=0.1, local_steps=4)
    return fs.run(
        make("ridge"), method, rounds=5, batch_size=2, seed=2**63, repetitions=2, record=("mse", "loss", "average")
    )


def test_frame(trace: fs.Trace) -> None:
    frame = trace.to_frame()
    assert list(frame.columns) == [
        "repetition", "round", "gradients_per_client", "vectors_per_client", "bits_sent_per_client",
        "bits_received_per_client", "mse", "loss",
    ]  # fmt: skip
    assert frame["repetition"].tolist() == [0] * 6 + [1] * 6
    assert frame["round"].tolist() == [0, 1, 2, 3, 4, 5] * 2
    assert frame["gradients_per_client"].tolist() == [0, 4, 8, 12, 16, 20] * 2
    assert frame["vectors_per_client"].tolist() == [0, 2, 4, 6, 8, 10] * 2
    row = frame[(frame["repetition"] == 1) & (frame["round"] == 3)]
    assert row["mse"].item() == trace.mse[1, 3]
    assert row["loss"].item() == trace.loss[1, 3]


def test_provenance(trace: fs.Trace) -> None:
    told = trace.provenance
    assert told["method"] == {
        "name": "Scaffold",
        "step_size": 0.1,
        "local_steps": 4,
        "participation": 1.0,
        "cohort": None,
    }
    assert told["problem"]["kind"] == "ridge"
    assert (told["batch_size"], told["sampling"], told["seed"]) == (2, "with_replacement", 2**63)
    assert (told["repetitions"], told["engine"]) == (2, "native-float64")
    assert told["versions"]["numpy"] == np.__version__
    assert told["versions"]["fedscaffold"] == fs.__version__
    assert told["fingerprint"] == make("ridge").fingerprint()
    assert told["theta0"] == "zero"
    assert 0.0 < told["elapsed_seconds"] < 60.0


def test_provenance_tells_starting_points_and_data_apart() -> None:
    def told(problem: Any, **settings: Any) -> Any:
        return fs.run(problem, fs.FedAvg(step_size=0.1, local_steps=1), rounds=1, **settings).provenance

    problem = make("ridge")
    one, two = (told(problem, theta0=[1.0, 2.0, third])["theta0"] for third in (3.0, 4.0))
    assert len({"zero", one, two}) == 3
    assert told(problem, theta0=[1.0, 2.0, 3.0])["theta0"] == one
    part = problem.subset([0, 1])
    assert told(part)["fingerprint"] == part.fingerprint() != problem.fingerprint()


@pytest.mark.parametrize("x", ["rounds", "vectors", "gradients", "bits"])
def test_plots_by_rounds_or_costs(trace: fs.Trace, x: Any) -> None:
    per_round = {"rounds": 1, "vectors": 2, "gradients": 4, "bits": 2 * 64 * 3}[x]
    ax = trace.plot(x=x, label="mine", name="loss")
    (line,) = ax.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), per_round * np.arange(6))
    np.testing.assert_array_equal(line.get_ydata(), trace.loss.mean(axis=0))
    assert ax.get_legend_handles_labels()[1] == ["mine"]
    assert ax.get_xlabel() == "round" if x == "rounds" else x in ax.get_xlabel()
    with pytest.raises(fs.InvalidInput, match="x must be one of 'rounds', 'vectors'"):
        trace.plot(x="seconds")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["trace.npz", "no-suffix"])
def test_saved_and_loaded_is_the_same_to_the_bit(trace: fs.Trace, tmp_path: Path, name: str) -> None:
    trace.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    loaded = fs.Trace.load(tmp_path / name)
    assert loaded.provenance == trace.provenance
    assert (loaded.rounds, loaded.gradients_per_client[0, 1], loaded.vectors_per_client[1]) == (5, 4.0, 2.0)
    assert loaded.theta.tobytes() == trace.theta.tobytes()
    assert loaded.control_variates.tobytes() == trace.control_variates.tobytes()
    assert set(loaded.metrics) == {"mse", "loss", "average"}
    for key, values in trace.metrics.items():
        assert loaded.metrics[key].tobytes() == values.tobytes()
        assert loaded.metrics[key].shape == values.shape


class Boom:
    """Would run when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('a pickle was executed')",)


def described(description: object) -> Any:
    return np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)


TOLD = {
    "what": "fedscaffold trace",
    "rounds": 1,
    "provenance": {},
}
BOTH = sorted(ARRAYS)
FOREIGN = (
    "text", "empty", "npy", "pickle", "pickled npz", "undescribed npz", "not a dict", "no arrays",
    "an array too few", "an unknown field", "truncated", "checkpoint",
)  # fmt: skip


def foreign_file(folder: Path, trace: fs.Trace, name: str) -> Path:
    """A file that is not a trace, in more and less obvious ways."""
    path = folder / "file"
    both = {name: getattr(trace, name) for name in ARRAYS}
    npz: dict[str, dict[str, Any]] = {
        "pickled npz": {
            "theta": np.array([Boom()], dtype=object),
            "description": described({**TOLD, "arrays": BOTH}),
        },
        "undescribed npz": both,
        "not a dict": {**both, "description": described([1, 2])},
        "no arrays": {"description": described({**TOLD, "arrays": []})},
        "an array too few": {**both, "description": described({**TOLD, "arrays": [*BOTH, "record/mse"]})},
        "an unknown field": {**both, "description": described({**TOLD, "arrays": BOTH, "surplus": 1})},
    }
    if name in npz:
        with open(path, "wb") as file:
            np.savez(file, **npz[name])
    elif name == "npy":
        with open(path, "wb") as file:
            np.save(file, np.ones(3))
    elif name == "truncated":
        trace.save(path)
        path.write_bytes(path.read_bytes()[:-100])
    elif name == "checkpoint":
        fs.run(make("ridge"), fs.FedAvg(step_size=0.1, local_steps=1), rounds=1, checkpoint=path)
    else:
        path.write_bytes({"text": b"hello", "empty": b"", "pickle": pickle.dumps(Boom())}[name])
    return path


@pytest.mark.parametrize("name", FOREIGN)
def test_other_files_are_refused(trace: fs.Trace, tmp_path: Path, name: str) -> None:
    path = foreign_file(tmp_path, trace, name)
    with pytest.raises(fs.InvalidInput, match=str(path)):
        fs.Trace.load(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fs.InvalidInput, match="No such file"):
        fs.Trace.load(tmp_path / "nowhere.npz")
    with pytest.raises(fs.InvalidInput, match="cannot read"):
        fs.Trace.load(tmp_path)


def test_any_damaged_byte_is_refused_or_harmless(trace: fs.Trace, tmp_path: Path) -> None:
    """Every seventh byte turned over, one at a time: never another exception, never other numbers."""
    path = tmp_path / "trace.npz"
    trace.save(path)
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            loaded = fs.Trace.load(path)
        except fs.InvalidInput:
            refused += 1
        else:
            assert loaded.theta.tobytes() == trace.theta.tobytes()
            assert loaded.mse.tobytes() == trace.mse.tobytes()
            assert loaded.provenance == trace.provenance
    assert refused > 0.8 * len(whole) / 7


@pytest.mark.parametrize("place", ["missing/trace.npz", "."])
def test_saving_where_it_cannot_be_saved_is_refused(trace: fs.Trace, tmp_path: Path, place: str) -> None:
    with pytest.raises(fs.InvalidInput, match="cannot write"):
        trace.save(tmp_path / place)


def test_squared_errors_against_an_optimum_that_is_known(tmp_path: Path) -> None:
    """The same numbers, and checkpoints of one go on with the other; another optimum gives other numbers."""
    problem, method = make("ridge"), fs.Scaffold(step_size=0.1, local_steps=2)
    optimum, file = problem.optimum(), tmp_path / "run.npz"
    asked = fs.run(problem, method, rounds=4)
    fs.run(problem, method, rounds=2, checkpoint=file)
    told = fs.run(problem, method, rounds=4, checkpoint=file, record=(fs.simulation.Mse(optimum),))
    np.testing.assert_array_equal(told.mse, asked.mse)
    moved = fs.run(problem, method, rounds=4, record=(fs.simulation.Mse(optimum + 1.0),))
    assert (moved.mse != asked.mse).all()
    with pytest.raises(fs.InvalidInput, match=r"optimum must have shape \(3,\)"):
        fs.run(problem, method, rounds=4, record=(fs.simulation.Mse(np.zeros(2)),))


def test_the_final_value_has_the_standard_error_of_a_mean(trace: fs.Trace) -> None:
    last = trace.mse[:, -1]
    found = trace.final()
    assert found.mean == pytest.approx(last.mean())
    assert found.standard_error == pytest.approx(last.std() / np.sqrt(len(last)))
    assert len(last) > 1

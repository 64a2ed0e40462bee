"""The native engine checks everything before it hands an address to the compiled library."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines.native import library
from fedscaffold.engines.native.records import NativeRecords
from tests.samples import make, weighted


def broken(problem: Any, **fields: Any) -> Any:
    """The problem with arrays that no constructor would accept."""
    for name, value in fields.items():
        setattr(problem, name, value)
    return problem


def garnet() -> Any:
    return fs.problems.GarnetTD(n_clients=2, states=6, dim=3, sampling="markov")


def broken_chain() -> Any:
    problem = garnet()
    draws = problem.draws
    follows = draws.chain.follows + 5
    problem.draws = draws._replace(chain=draws.chain._replace(follows=follows))
    return problem


BROKEN: dict[str, Any] = {
    "offsets beyond the table": lambda: broken(make("ridge"), offsets=np.array([0, 6, 15, 30])),
    "offsets that do not begin at 0": lambda: broken(make("ridge"), offsets=np.array([1, 6, 15, 19])),
    "a client without records": lambda: broken(make("ridge"), offsets=np.array([0, 6, 6, 19])),
    "fewer targets than records": lambda: broken(make("ridge"), y=np.ones(5)),
    "fewer features than coordinates": lambda: broken(make("ridge"), x=np.ones((19, 2))),
    "a label beyond the classes": lambda: broken(weighted("multinomial"), y=np.full((19, 3), 7.0)),
    "a negative label": lambda: broken(weighted("multinomial"), y=np.full((19, 3), -1.0)),
    "ends of draws before 1": lambda: broken(
        garnet(), draws=garnet().draws._replace(ends=garnet().draws.ends - 1)
    ),
    "a chain that leaves the client's records": broken_chain,
    "laws of another length": lambda: broken(fs.problems.RidgeStream(n_clients=3, dim=4), tilt=np.ones(3)),
    "identities of other clients": lambda: broken(
        fs.problems.RidgeStream(n_clients=3, dim=4), client_ids=np.arange(2)
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_arrays_that_do_not_fit_each_other(name: str) -> None:
    with pytest.raises(fs.InvalidInput, match="do not fit each other"):
        NativeRecords(BROKEN[name](), Batches(2), "float64", seed=0)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a client that there is not": ({"clients": np.array([[0, 3]])}, "between 0 and 2"),
    "a negative client": ({"clients": np.array([[-1, 2]])}, "between 0 and 2"),
    "a model of another length": ({"theta": np.zeros((1, 4))}, "is needed"),
    "corrections of other clients": ({"correction": np.zeros((1, 2, 3))}, "is needed"),
    "negative steps": ({"local_steps": -1}, "not be negative"),
    "negative steps of one client": ({"local_steps": np.array([[3, -3, 9]])}, "not be negative"),
    "steps of other clients": ({"local_steps": np.array([[3, 3]])}, "is needed"),
    "an anchor of another length": ({"anchor": np.zeros((1, 2))}, "anchor"),
    "an anchor for each client": ({"anchor": np.zeros((3, 3))}, "anchor"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_of_a_round(name: str) -> None:
    arguments: dict[str, Any] = {"theta": np.zeros((1, 3)), "correction": np.zeros((1, 3, 3)), "local_steps": 2}
    changes, message = WRONG[name]
    arguments |= changes
    with (
        fs.engines.Native().open(make("ridge"), Batches(2), seed=0) as local_sgd,
        pytest.raises(fs.InvalidInput, match=message),
    ):
        local_sgd(arguments.pop("theta"), arguments.pop("correction"), step_size=0.1, round=0, **arguments)


def test_only_contiguous_arrays_have_an_address() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        library.address(np.ones((4, 4))[:, ::2])


def test_the_older_engine_names_its_successor() -> None:
    sentence = r"use engine='native' or engines\.Native"
    with pytest.raises(fs.InvalidInput, match=sentence):
        fs.run(make("ridge"), fs.FedAvg(step_size=0.1, local_steps=1), rounds=1, engine="numba")
    with pytest.raises(fs.InvalidInput, match=sentence):
        fs.engines.Numba(threads=2)


def _in_a_folder(folder: Path) -> str:
    """Run with the library of another folder in another process, and return what it prints."""
    code = (
        "import pathlib, sys\n"
        "from fedscaffold.engines.native import library\n"
        "library.FOLDER = pathlib.Path(sys.argv[1])\n"
        "import fedscaffold as fs\n"
        "problem, method = fs.problems.RidgeStream(n_clients=3, dim=2), fs.FedAvg(step_size=0.1, local_steps=1)\n"
        "for _ in range(2):\n"
        "    print(fs.run(problem, method, rounds=1, batch_size=1).provenance['engine'])\n"
        "fs.run(problem, method, rounds=1, batch_size=1, engine='native')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.stdout == "reference\nreference\n"
    assert done.stderr.count("RuntimeWarning") == 1
    assert "the slower reference engine is used instead" in done.stderr
    return done.stderr


def test_reference_serves_if_the_library_is_missing_damaged_or_another(tmp_path: Path) -> None:
    assert "is missing; install the package again" in _in_a_folder(tmp_path)
    name = next(path.name for path in library.FOLDER.iterdir() if path.name in library.NAMES)
    (tmp_path / name).write_bytes(b"not a library")
    assert "cannot be loaded" in _in_a_folder(tmp_path)

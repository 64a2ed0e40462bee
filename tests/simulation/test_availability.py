"""Who is available in which rounds, and what a run makes of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.simulation import AvailabilityTable, Markov, Periodic
from tests.samples import make

SCAFFOLD = fs.Scaffold(step_size=0.05, local_steps=3)


def run(availability: Any, method: Any = SCAFFOLD, **options: Any) -> fs.Trace:
    settings: dict[str, Any] = {"rounds": 6, "engine": "reference", "progress": False} | options
    return fs.run(make("ridge", (5,) * 8, 3), method, availability=availability, **settings)


def test_clients_take_turns() -> None:
    turns = [Periodic(3).available(t, 8).tolist() for t in range(4)]
    assert turns == [[0, 3, 6], [1, 4, 7], [2, 5], [0, 3, 6]]


def test_a_table_says_who_is_there() -> None:
    table = AvailabilityTable([[1, 0, 1], [0, 1, 1]])
    assert [table.available(t, 3).tolist() for t in range(3)] == [[0, 2], [1, 2], [0, 2]]
    hash(table)


def test_coming_and_going_has_its_probabilities_and_no_memory_of_who_asked() -> None:
    """20,000 chains: each count of leaving and entering within 5 standard errors."""
    n, leave, enter = 20_000, 0.2, 0.3
    chain, again = Markov(leave=leave, enter=enter, seed=4), Markov(leave=leave, enter=enter, seed=4)
    states = np.stack([np.isin(np.arange(n), chain.available(t, n)) for t in range(6)])
    before, after = states[4], states[5]
    assert abs(before.mean() - 0.6) < 5 * np.sqrt(0.24 / n)
    assert abs((~after[before]).mean() - leave) < 5 * np.sqrt(0.16 / before.sum())
    assert abs(after[~before].mean() - enter) < 5 * np.sqrt(0.21 / (~before).sum())
    np.testing.assert_array_equal(again.available(5, n), np.flatnonzero(after))  # not asked for earlier rounds
    np.testing.assert_array_equal(chain.available(2, n), np.flatnonzero(states[2]))  # and backwards


def test_only_available_clients_take_part() -> None:
    trace = run(AvailabilityTable([[1, 1, 1, 0, 0, 0, 0, 0]]))
    moved = np.abs(trace.control_variates[0]).max(axis=1) > 0
    assert moved.tolist() == [True] * 3 + [False] * 5
    np.testing.assert_allclose(trace.vectors_per_client, 2 * 3 / 8 * np.arange(7))
    np.testing.assert_allclose(trace.gradients_per_client[0], 3 * 3 / 8 * np.arange(7))


def test_of_the_available_as_many_as_the_method_takes() -> None:
    trace = run(Periodic(2), fs.Scaffold(step_size=0.05, local_steps=3, cohort=2), rounds=1)
    moved = np.flatnonzero(np.abs(trace.control_variates[0]).max(axis=1) > 0)
    assert moved.size == 2
    assert set(moved) <= {0, 2, 4, 6}


def test_everyone_available_is_as_without() -> None:
    plain, given = run(None), run(AvailabilityTable(np.ones((1, 8))))
    assert plain.theta.tobytes() == given.theta.tobytes()


def test_checkpoints_know_the_availability(tmp_path: Path) -> None:
    file, chain = tmp_path / "run.npz", Markov(leave=0.3, enter=0.6)
    whole = run(chain)
    run(chain, rounds=3, checkpoint=file)
    rest = run(Markov(leave=0.3, enter=0.6), checkpoint=file)
    assert rest.theta.tobytes() == whole.theta.tobytes()
    with pytest.raises(fs.CheckpointMismatch, match="availability"):
        run(Periodic(2), checkpoint=file)


def test_windows_survive_checkpoints_and_folders(tmp_path: Path) -> None:
    method = fs.AmplifiedScaffold(step_size=0.05, local_steps=3, window=4)
    whole = run(Periodic(2), method, rounds=9)
    run(Periodic(2), method, rounds=6, checkpoint=tmp_path / "run.npz")
    rest = run(Periodic(2), method, rounds=9, checkpoint=tmp_path / "run.npz")
    folder = run(Periodic(2), method, rounds=9, client_state_dir=tmp_path / "clients")
    assert whole.theta.tobytes() == rest.theta.tobytes() == folder.theta.tobytes()


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Periodic(0), "groups must be"),
        (lambda: Markov(leave=0.0, enter=0.5), "leave must be a positive number"),
        (lambda: Markov(leave=0.5, enter=1.5), "enter is a probability"),
        (lambda: AvailabilityTable([[1, 0], [0, 0]]), "someone in each row"),
        (lambda: AvailabilityTable("x"), "table must have a row"),
        (lambda: run(AvailabilityTable([[1, 1]])), "2 columns, but there are 8"),
        (lambda: run(Periodic(9)), "groups=9, but there are 8"),
        (lambda: run(Periodic), "availability must be one such as"),
        (lambda: run("periodic"), "availability must be one such as"),
        (
            lambda: run(Periodic(2), privacy=fs.privacy.ClientLevel(clip=1.0, noise_multiplier=1.0)),
            "give privacy or availability",
        ),
    ],
)
def test_refusals(make_it: Any, message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message):
        make_it()

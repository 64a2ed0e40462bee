"""Runs in stages and extrapolations: interrupted at any round, resumed to the same bits; what Ctrl-C saves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.simulation.rounds import run_rounds
from tests.samples import make
from tests.simulation.test_checkpoint import StopAt, Stopped

PROBLEM = make("ridge", weights=(1, 2, 3))
SCAFFOLD = fs.Scaffold(step_size=0.2, local_steps=4)
COMMON: dict[str, Any] = {"batch_size": 2, "seed": 9, "repetitions": 2}
ROUNDS = 24


def staged(**options: Any) -> list[bytes]:
    found = fs.staged(PROBLEM, SCAFFOLD, rounds=ROUNDS, record=("mse", "average"), **COMMON, **options)
    assert len(found.stages) >= 3  # so that rounds on both sides of a change are interrupted
    trace = found.trace
    arrays = (trace.theta, trace.control_variates, trace.mse, trace.average, np.array(found.stages))
    return [array.tobytes() for array in arrays]


def extrapolated(**options: Any) -> list[bytes]:
    found = fs.richardson_romberg(PROBLEM, SCAFFOLD, rounds=ROUNDS // 2, discard=4, **COMMON, **options)
    return [array.tobytes() for array in (found.theta, found.fine, found.coarse, found.standard_error)]


KINDS: dict[str, tuple[Callable[..., list[bytes]], int]] = {
    "staged": (staged, ROUNDS),
    "richardson_romberg": (extrapolated, 3 * ROUNDS // 2),  # three chains
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("error", "every"), [(Stopped, 5), (KeyboardInterrupt, 1000)])
def test_interrupted_at_any_round_it_resumes_to_the_same_bits(
    kind: str, error: type[BaseException], every: int, tmp_path: Path
) -> None:
    """Every round of every stage and chain; on Ctrl-C all rounds done are kept, else those of the last save."""
    run, total = KINDS[kind]
    whole = run(progress=False)
    for stop in range(1, total):
        path = tmp_path / f"{stop}.npz"
        with pytest.raises(error):
            run(checkpoint=path, checkpoint_every=every, progress=StopAt(stop, error))
        watch = StopAt(None)
        assert run(checkpoint=path, checkpoint_every=every, progress=watch) == whole
        if error is KeyboardInterrupt:
            assert watch.seen[0] == stop
        assert watch.seen[-1] == total


@pytest.mark.parametrize("call", [fs.run, fs.staged, fs.richardson_romberg])
def test_swapped_arguments_are_refused_with_a_sentence(call: Any) -> None:
    with pytest.raises(fs.InvalidInput, match=r"^[^\n]*method[^\n]*$") as refusal:
        call(SCAFFOLD, PROBLEM, rounds=3)
    assert "problem" in str(refusal.value)


class Steps:
    """Rounds that count. With `overwrites`, a round destroys the state of the one before, as in workers."""

    def __init__(self, *, fail_in: int | None = None, overwrites: bool = False) -> None:
        self.fail_in, self.overwrites, self.begun = fail_in, overwrites, 0

    def __call__(self, state: Any) -> Any:
        self.begun = state.round + 1
        if self.begun == self.fail_in:
            raise KeyboardInterrupt
        return Round(self.begun)

    def is_current(self, state: Any) -> bool:
        return not self.overwrites or bool(state.round == self.begun)


class Round:
    """A state that is its number."""

    def __init__(self, round: int) -> None:
        self.round = round


def saved_after_ctrl_c(step: Steps, record: Callable[[Any], bool] = lambda state: False) -> list[int]:
    saved: list[int] = []
    loop: Any = run_rounds
    with pytest.raises(KeyboardInterrupt):
        loop(
            step, Round(0), until=10, record=record, progress=lambda done: None,
            save=lambda state: saved.append(state.round), save_every=100,
        )  # fmt: skip
    return saved


def test_ctrl_c_in_a_round_saves_the_round_before() -> None:
    assert saved_after_ctrl_c(Steps(fail_in=4)) == [3]


def test_ctrl_c_in_a_round_that_has_overwritten_the_one_before_saves_nothing() -> None:
    assert saved_after_ctrl_c(Steps(fail_in=4, overwrites=True)) == []


def test_ctrl_c_while_a_round_is_recorded_saves_nothing() -> None:
    """Some observers have the new round and some have not: neither round could be resumed from."""

    def record(state: Any) -> bool:
        if state.round == 4:
            raise KeyboardInterrupt
        return False

    assert saved_after_ctrl_c(Steps(), record) == []


def test_a_half_recorded_round_is_never_resumed_from(tmp_path: Path) -> None:
    """With the real loop: the second observer is interrupted after the first has recorded the round."""

    interrupted_at = {5}

    class Interrupts:
        name, keep = "interrupts", "every"

        def watch(self, problem: Any) -> Any:
            def value(round: int, theta: Any, previous: Any) -> Any:
                if round in interrupted_at:
                    raise KeyboardInterrupt
                return np.zeros(len(theta))

            return value

    def run(**options: Any) -> fs.Trace:
        observers: Any = ("mse", Interrupts())
        return fs.run(PROBLEM, SCAFFOLD, rounds=8, record=observers, **COMMON, **options)

    path = tmp_path / "run.npz"
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=path, checkpoint_every=3)
    interrupted_at.clear()
    watch = StopAt(None)
    assert run(checkpoint=path, progress=watch).mse.tobytes() == run().mse.tobytes()
    assert watch.seen[0] == 3

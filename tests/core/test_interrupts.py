"""Ctrl-C while a file is written."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from fedscaffold.core import npz
from fedscaffold.core.npz import interrupts_delayed


def test_ctrl_c_waits_for_the_end_of_the_block() -> None:
    done = []

    def work() -> None:
        with interrupts_delayed():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(True)
        done.append(False)

    for _ in range(2):  # it is caught the second time too
        with pytest.raises(KeyboardInterrupt):
            work()
    assert done == [True, True]


def test_a_file_that_is_being_written_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    savez = np.savez

    def interrupted(*arguments: object, **arrays: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        savez(*arguments, **arrays)  # type: ignore[arg-type]

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        npz.write(tmp_path / "a.npz", {"x": np.arange(3.0)}, {"round": 1})
    arrays, description = npz.read(tmp_path / "a.npz")
    assert arrays["x"].tolist() == [0.0, 1.0, 2.0]
    assert description["round"] == 1

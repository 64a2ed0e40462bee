"""Damaged files: refused with their name, or read as if nothing had happened; never as other numbers.

Flipped bits, files cut short or prolonged, blocks of zeros, and files put in the place of others.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.benchmarking import Sweep
from tests.attacks.hostile import FRAME, METHOD, TABLE

FAST, SLOW = 30, 650  # damages of each of the files


class Kind(NamedTuple):
    """A file, a function that reads it and returns what it holds, and the name that a refusal must contain."""

    file: Path
    read: Callable[[], Any]
    name: str


def kinds(folder: Path) -> dict[str, Kind]:
    """Every format that is read back: checkpoints of three kinds of runs, traces, sweeps, records, models."""
    run: dict[str, Any] = {"batch_size": 2, "engine": "reference", "progress": False}

    def resumed(rounds: int) -> Any:
        trace = fs.run(TABLE, METHOD, rounds=rounds, repetitions=2, checkpoint=folder / "run.npz", **run)
        return trace.theta.tobytes(), trace.control_variates.tobytes(), trace.mse.tobytes()

    def staged() -> Any:
        return fs.staged(TABLE, METHOD, rounds=8, checkpoint=folder / "staged.npz", **run).trace.theta.tobytes()

    def chains() -> Any:
        found = fs.richardson_romberg(TABLE, METHOD, rounds=6, discard=2, checkpoint=folder / "chains.npz", **run)
        return found.theta.tobytes(), found.standard_error.tobytes()

    def trace() -> Any:
        found = fs.Trace.load(folder / "trace.npz")
        return repr(found), found.theta.tobytes(), found.mse.tobytes(), found.control_variates.tobytes()

    def records() -> Any:
        problem = fs.data.from_file(
            folder / "table.parquet", target="y", client="site", cache_dir=folder / "records"
        )
        return problem.fingerprint(), problem.client_names, problem.encoding

    def rows() -> Any:  # a damaged cell is run again, with the same numbers
        table = study.run(out=folder / "sweep", engine="reference", progress=False)
        return [(row.settings, row.outcome, row.plateau, row.final_mse) for row in table.rows]

    def model() -> Any:
        return fs.Model.load(folder / "model.json").to_json()

    fs.run(TABLE, METHOD, rounds=2, repetitions=2, **run).save(folder / "trace.npz")
    resumed(3), staged(), chains()
    FRAME.to_parquet(folder / "table.parquet")
    records()
    stream = partial(fs.problems.RidgeStream, dim=2)
    study = Sweep(problem=stream, grid={"n_clients": 2}, method=METHOD, rounds=2)
    rows()
    (cell,) = (folder / "sweep" / "cells").iterdir()
    problem = fs.data.from_frame(FRAME, target="y", client="site", standardize=True, intercept=True)
    fs.models.fit(problem).model.save(folder / "model.json")
    return {
        "checkpoint": Kind(folder / "run.npz", lambda: resumed(6), "run.npz"),
        "staged": Kind(folder / "staged.npz", staged, "staged.npz"),
        "chains": Kind(folder / "chains.npz", chains, "chains.npz"),
        "trace": Kind(folder / "trace.npz", trace, "trace.npz"),
        "sweep": Kind(cell, rows, "cells"),
        "x": Kind(folder / "records" / "x.npy", records, "records"),
        "records": Kind(folder / "records" / "records.json", records, "records"),
        "model": Kind(folder / "model.json", model, "model.json"),
    }


def damaged(content: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    """The file after one accident."""
    changed, at = bytearray(content), int(rng.integers(len(content)))
    accident = rng.integers(7)
    if accident <= 2:
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            changed[place] ^= 1 << rng.integers(8)
    elif accident == 3:
        del changed[at:]
    elif accident == 4:
        end = at + int(rng.integers(1, 600))
        changed[at:end] = bytes(len(changed[at:end]))
    elif accident == 5:
        changed[at:at] = rng.bytes(int(rng.integers(1, 40)))
    else:
        return others[rng.integers(len(others))]
    return bytes(changed)


def attack(folder: Path, count: int, seed: int) -> tuple[int, int, list[str]]:
    """(refused, read as before, what went wrong) after `count` accidents to each of the files."""
    found, rng = kinds(folder), np.random.default_rng(seed)
    contents = {kind: entry.file.read_bytes() for kind, entry in found.items()}
    refused, same, wrong = 0, 0, dict[str, str]()
    for kind, entry in found.items():
        expected = entry.read()
        others = [content for other, content in contents.items() if other != kind]
        for _ in range(count):
            content = damaged(contents[kind], others, rng)
            entry.file.write_bytes(content)
            try:
                if entry.read() == expected:
                    same += 1
                else:
                    wrong[f"{kind}: other numbers"] = "silently"
            except fs.FedScaffoldError as error:
                refused += 1
                if entry.name not in str(error):
                    wrong[f"{kind}: not named"] = str(error)
            except Exception as error:
                wrong[f"{kind}: {type(error).__name__}"] = str(error)[:200]
        entry.file.write_bytes(contents[kind])
        assert entry.read() == expected
    return refused, same, [f"{what}: {text}" for what, text in sorted(wrong.items())]


def test_damaged_files(tmp_path: Path) -> None:
    refused, _, wrong = attack(tmp_path, FAST, 0)
    assert wrong == []
    assert refused > 4 * FAST


@pytest.mark.slow
def test_five_thousand_damaged_files(tmp_path: Path) -> None:
    refused, same, wrong = attack(tmp_path, SLOW, 1)
    assert wrong == []
    assert refused + same >= 5000

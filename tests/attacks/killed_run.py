"""Runs that are killed again and again, each in a process of its own."""

from pathlib import Path
from typing import Any

import numpy as np

import fedscaffold as fs

ROUNDS = 30
X = np.random.default_rng(0).normal(size=(6, 30, 40))
PROBLEM = fs.problems.Ridge(X, X.sum(axis=2), l2=0.1)
METHOD = fs.Scaffold(step_size=0.01, local_steps=4, participation=0.5)


def work(kind: str, folder: Path) -> None:
    """The whole run, from its checkpoint if there is one; its result goes to a file."""
    options: dict[str, Any] = {
        "rounds": ROUNDS, "batch_size": 3, "repetitions": 2, "engine": "reference", "progress": False,
        "checkpoint": folder / "run.npz", "checkpoint_every": 1,
    }  # fmt: skip
    if kind == "run":
        found = fs.run(PROBLEM, METHOD, record=("mse", "average"), **options)
    elif kind == "files":
        found = fs.run(PROBLEM, METHOD, client_state_dir=folder / "state", **options)
    else:
        found = fs.staged(PROBLEM, METHOD, **options).trace
    found.save(folder / "trace.npz")

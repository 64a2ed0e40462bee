"""A study of real processes on this machine, each person's commands as subprocesses."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.datasets import load_breast_cancer

from fedscaffold.flower.study.run import free_port

SITES = ("bonn", "graz", "kiel", "linz", "ulm")
CODE = "from fedscaffold.cli.start import main; main()"


def hospitals(columns: int = 30) -> dict[str, pd.DataFrame]:
    """Breast cancer, dealt to five hospitals that differ."""
    loaded = load_breast_cancer(as_frame=True)
    frame = loaded.data.iloc[:, :columns].assign(diagnosis=loaded.target.map({0: "malignant", 1: "benign"}))
    order = frame.sort_values("mean radius", kind="stable").index
    mixed = frame.loc[order].reset_index(drop=True)
    owner = (mixed.index.to_numpy() * 7 // 569 + mixed.index.to_numpy() % 5) % 5
    return {site: mixed[owner == k].reset_index(drop=True) for k, site in enumerate(SITES)}


class Commands:
    """Runs commands of fedscaffold in a folder; `close` ends those that still run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.port = free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: object, **options: Any) -> "subprocess.Popen[bytes]":
        """Start a command whose output goes to NAME.log."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-c", CODE, *(str(word) for word in words)], stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, cwd=self.folder, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **options,
            )  # fmt: skip
        return self.running[name]

    def run(self, name: str, *words: object, seconds: float = 600.0) -> str:
        """Run a command to its end; what it printed."""
        code = self.start(name, *words).wait(seconds)
        assert code == 0, self.log(name)
        return self.log(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def wait_until(self, what: Callable[[], bool], seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, {name: self.log(name)[-2000:] for name in self.running}
            time.sleep(0.2)

    def close(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> "Commands":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # a whole study

    def new(self, *options: object, sites: Sequence[str] = SITES) -> None:
        words = [
            "--target",
            "diagnosis",
            "--like",
            f"{sites[0]}.csv",
            "--address",
            f"127.0.0.1:{self.port}",
            *options,
        ]
        self.run("new", "study", "new", "study.toml", "--site", ",".join(sites), *words)

    def join(self, site: str, *options: object) -> None:
        self.start(
            site, "study", "join", f"study-{site}.invite", "--data", f"{site}.csv", "--accept", "auto", *options
        )

    def accept(self, sites: Sequence[str] = SITES) -> None:
        keys = [self.folder / f"study-{site}" / f"{site}.pub" for site in sites]
        self.wait_until(lambda: all(key.exists() and key.stat().st_size for key in keys))
        self.run("accept", "study", "accept", "study.toml", *keys)

    def write_tables(self, tables: dict[str, pd.DataFrame]) -> None:
        for site, table in tables.items():
            table.to_csv(self.folder / f"{site}.csv", index=False)

    def theta(self) -> list[float]:
        """The model that the coordinator kept."""
        found: list[float] = json.loads((self.folder / "out" / "for-sites.json").read_text())["theta"]
        return found

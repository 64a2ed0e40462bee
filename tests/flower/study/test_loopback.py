"""Five hospitals as real processes with TLS and keys: from `study new` to the result, and after kills."""

import json
import random
import re
import shlex
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedscaffold.core import npz
from fedscaffold.federation import AuditLog, Study
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.study.transport import InProcess
from fedscaffold.flower.study.study_file import StudyFile
from tests.flower.study.processes import SITES, Commands, hospitals

RUN = ("study", "run", "study.toml", "--out", "out")


def five_sites(
    commands: Commands, tables: dict[str, pd.DataFrame], *options: object, shared: tuple[str, ...] = ()
) -> float:
    """Conduct a study by eight commands and return the seconds from the first to the result."""
    commands.write_tables(tables)
    began = time.monotonic()
    commands.new("--l2", "auto", *options)  # 1
    for site in SITES:  # 2 to 6
        commands.join(site, *shared)
    commands.accept()  # 7
    commands.run("run", *RUN, *shared)  # 8
    seconds = time.monotonic() - began
    for site in SITES:
        commands.wait_until(lambda site=site: "the study is over" in commands.log(site))  # type: ignore[misc]
    return seconds


def test_three_sites_of_real_processes(tmp_path: Path) -> None:
    tables = {site: table for site, table in hospitals(columns=4).items() if site in SITES[:3]}
    with Commands(tmp_path) as commands:
        commands.write_tables(tables)
        commands.new("--l2", "auto", sites=SITES[:3])
        for site in tables:
            commands.join(site)
        commands.accept(SITES[:3])
        commands.run("run", *RUN)
        assert (
            commands.theta()
            == Study(target="diagnosis", l2="auto", name="study").run(tables).theta.ravel().tolist()
        )


@pytest.mark.slow
@pytest.mark.parametrize("shared", [(), ("--folder", "share")])
def test_eight_commands_to_the_pooled_model(tmp_path: Path, shared: tuple[str, ...]) -> None:
    """Coefficients are those of the tables in one process, and everything that was kept can be verified."""
    tables = hospitals(columns=8)
    with Commands(tmp_path) as commands:
        seconds = five_sites(commands, tables, shared=shared)
        expected = Study(target="diagnosis", l2="auto", name="study").run(tables)
        assert commands.theta() == expected.theta.ravel().tolist()
        files = [
            tmp_path / f"study-{site}" / name for site in SITES for name in (f"{site}.log.json", "result.json")
        ]
        commands.wait_until(lambda: all(file.exists() for file in files))
        said = commands.run("verify", "study", "verify", "out", *files)
        assert said.count("ok: ") >= 1 + len(files)
    print(f"{seconds:.0f} seconds")
    for site in SITES:
        assert (tmp_path / f"study-{site}" / "site.html").stat().st_size > 5_000
        sent = [
            one for one in AuditLog(tmp_path / f"study-{site}" / "audit.jsonl").read() if one["event"] == "sent"
        ]
        assert all(one["masked"] for one in sent if "sha256" in one)


@pytest.mark.slow
def test_the_commands_of_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[3] / "docs" / "tutorials" / "run-a-study.md"
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[0], {})
    lines = re.findall(r"^\$ fedscaffold (.*)$", page.read_text(), re.MULTILINE)
    assert len(lines) >= 8
    with Commands(tmp_path) as commands:
        for k, line in enumerate(lines):
            words = shlex.split(line.replace("127.0.0.1:9292", f"127.0.0.1:{commands.port}"))
            if words[1] == "join" and "--dry-run" not in words:
                commands.start(words[2], *words)
                continue
            if words[1] == "accept":
                keys = [tmp_path / word for word in words if word.endswith(".pub")]
                commands.wait_until(lambda keys=keys: all(key.exists() for key in keys))  # type: ignore[misc]
            commands.run(f"command-{k}", *words)
    assert list(tmp_path.glob("*/site.html"))


def never_killed(folder: Path, tables: dict[str, pd.DataFrame]) -> np.ndarray:
    """The model of sites in this process, for exchanges as long as the last one before the training was."""
    plan = StudyFile.load(folder / "study.toml").plan
    exchanges = [npz.read(path)[1] for path in sorted((folder / "out" / "exchanges").glob("exchange-*"))]
    accepted = [one for one in exchanges if "accepted" in one["values"][SITES[0]]]
    members = {site: StudySite(site, table) for site, table in tables.items()}
    return conduct(plan, InProcess(members, last_seconds=accepted[-1]["seconds"])).theta.ravel()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("trainer", ["newton", "scaffold"])
@pytest.mark.parametrize("shared", [(), ("--folder", "share")])
def test_killed_at_random_moments_it_goes_on_to_the_same_model(
    tmp_path: Path, seed: int, trainer: str, shared: tuple[str, ...]
) -> None:
    """Five kills each, of sites and coordinator, while a study runs; the model has the same bits."""
    tables, rng = hospitals(columns=8), random.Random(seed)
    with Commands(tmp_path) as commands:
        commands.write_tables(tables)
        commands.new("--l2", "auto", "--set", f"trainer={trainer}")
        for site in SITES:
            commands.join(site, *shared)
        commands.accept()
        commands.start("run", *RUN, *shared)
        killed: list[str] = []
        while len(killed) < 5:
            exchanges = len(list((tmp_path / "out" / "exchanges").glob("exchange-*")))
            wanted, end = exchanges + rng.randint(1, 3), time.monotonic() + 60.0
            while commands.running["run"].poll() is None and time.monotonic() < end:
                if len(list((tmp_path / "out" / "exchanges").glob("exchange-*"))) >= wanted:
                    break
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 0.3))
            if commands.running["run"].poll() is not None:
                break
            victim = rng.choice([*SITES, "run", "run"])
            commands.kill(victim)
            commands.start("run", *RUN, *shared) if victim == "run" else commands.join(victim, *shared)
            killed.append(victim)
        commands.wait_until(lambda: commands.running["run"].poll() is not None, 400.0)
        assert commands.running["run"].returncode == 0, commands.log("run")
        print(killed)
        assert len(killed) >= 3
        np.testing.assert_array_equal(commands.theta(), never_killed(tmp_path, tables))
        assert json.loads(commands.run("status", "study", "status", "out", "--json"))["state"] == "finished"

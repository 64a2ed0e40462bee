"""Five hospitals as real processes with TLS and keys: from `study new` to the report, and after kills."""

import os
import random
import re
import shlex
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedscaffold import Model
from fedscaffold.federation import AuditLog, Study
from tests.flower.study.processes import SITES, Commands, hospitals

sm = pytest.importorskip("statsmodels.api")


@pytest.mark.slow
def test_eight_commands_in_three_minutes(tmp_path: Path) -> None:
    """Coefficients and standard errors are those of statsmodels on pooled rows, which nobody had."""
    tables = hospitals(columns=8)
    began = time.monotonic()
    with Commands(tmp_path) as commands:
        commands.write_tables(tables)
        commands.new("--l2", "0", "--set", "min_cell=1")  # 1
        for site in SITES:  # 2 to 6
            commands.join(site)
        commands.accept()  # 7
        commands.run("run", "study", "run", "study.toml", "--out", "out")  # 8
        seconds = time.monotonic() - began
        for site in SITES:
            commands.wait_until(lambda site=site: "the study is over" in commands.log(site))  # type: ignore[misc]
    print(f"{seconds:.0f} seconds")
    out = tmp_path / "out"
    rows = pd.concat(tables.values(), ignore_index=True)
    x = sm.add_constant(rows.drop(columns="diagnosis")).rename(columns={"const": "intercept"})
    fit = sm.GLM((rows.diagnosis == "malignant").astype(float), x, family=sm.families.Binomial()).fit(tol=1e-14)
    found = pd.read_parquet(out / "coefficients.parquet")
    se = fit.bse[found.index]
    assert set(found.index) == set(fit.params.index)
    np.testing.assert_array_less(np.abs(found["coef"] - fit.params[found.index]) / se, 1e-6)
    np.testing.assert_allclose(found["se"], se, rtol=1e-5)
    accuracy = np.mean(Model.load(out / "model.json").predict(rows) == rows.diagnosis)
    assert accuracy > 0.9
    assert (out / "report.html").stat().st_size > 10_000
    for site in SITES:
        assert (tmp_path / f"{site}-site" / "site.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_secure_study_of_real_processes_goes_on_after_kills(tmp_path: Path) -> None:
    """One site and the coordinator are killed on the way; the model is the plain study's, from masked numbers."""
    tables = hospitals(columns=8)
    whole = Study(target="diagnosis").run(tables)
    began = time.monotonic()
    with Commands(tmp_path) as commands:
        commands.write_tables(tables)
        commands.new("--secure", "--set", "secure_threshold=4", "--set", "evaluate=0")
        for site in SITES:
            commands.join(site)
        commands.accept()
        start = ("study", "run", "study.toml", "--out", "out")
        commands.start("run", *start)
        log = tmp_path / "graz-site" / "audit.jsonl"

        def masked() -> int:
            return log.read_text().count('"mask"') if log.exists() else 0

        for count, victim in ((3, "graz"), (6, "run")):
            # Flower waits three minutes for a reply that was cut off
            commands.wait_until(lambda count=count: masked() >= count, 400.0)  # type: ignore[misc]
            commands.kill(victim)
            commands.start("run", *start) if victim == "run" else commands.join(victim)
        commands.wait_until(lambda: commands.running["run"].poll() is not None, 400.0)
        assert commands.running["run"].returncode == 0, commands.log("run")
        commands.wait_until(lambda: "the study is over" in commands.log("bonn"))
    print(f"{time.monotonic() - began:.0f} seconds")
    found, expected = pd.read_parquet(tmp_path / "out" / "coefficients.parquet"), whole.summary().to_frame()
    np.testing.assert_array_less(np.abs(found["coef"] - expected["coef"]) / expected["se"], 1e-8)
    np.testing.assert_allclose(found["se"], expected["se"], rtol=1e-8)
    for site in SITES:
        sent = [
            one for one in AuditLog(tmp_path / f"{site}-site" / "audit.jsonl").read() if one["event"] == "sent"
        ]
        vectors = [one for one in sent if one["vectors"]]
        assert vectors
        assert all(one["values"]["secure"] == "mask" for one in vectors)
    assert "fingerprint of this site" in commands.log("bonn")


@pytest.mark.slow
def test_the_commands_of_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[3] / "docs" / "tutorials" / "run-a-study.md"
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[0], {})
    lines = re.findall(r"^\$ fedscaffold (.*)$", page.read_text(), re.MULTILINE)
    assert len(lines) == 10  # the eight, a look at what would be sent, and the status
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
    assert "Nothing has been sent" in commands.log("command-1")
    assert (tmp_path / "cancer" / "report.html").exists()
    assert (tmp_path / "bonn-site" / "site.html").exists()


def superlink_of(commands: Commands) -> int | None:
    """The process of the SuperLink that a running coordinator started."""
    parent = commands.running["run"].pid
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            words = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"flower-superlink" in words:
            return int(stat.parent.name)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments_it_goes_on_to_the_same_model(tmp_path: Path, seed: int) -> None:
    """Five kills each, of sites, coordinator and SuperLink, while a study runs."""
    tables, rng = hospitals(columns=8), random.Random(seed)
    whole = Study(target="diagnosis").run(tables)
    with Commands(tmp_path) as commands:
        commands.write_tables(tables)
        commands.new()
        for site in SITES:
            commands.join(site)
        commands.accept()
        start = ("study", "run", "study.toml", "--out", "out")
        commands.start("run", *start)
        killed: list[str] = []
        while len(killed) < 5:
            time.sleep(rng.uniform(2.0, 15.0))
            if commands.running["run"].poll() is not None:
                break
            victim = rng.choice(["site", "coordinator", "superlink"])
            if victim == "site":
                site = rng.choice(SITES)
                commands.kill(site)
                commands.join(site)
            elif victim == "coordinator":
                commands.kill("run")
                commands.start("run", *start)
            else:
                pid = superlink_of(commands)
                if pid is None:
                    continue
                os.kill(pid, signal.SIGKILL)
            killed.append(victim)
        commands.wait_until(lambda: commands.running["run"].poll() is not None, 400.0)
        assert commands.running["run"].returncode == 0, commands.log("run")
    print(killed)
    assert len(killed) >= 3
    found, expected = pd.read_parquet(tmp_path / "out" / "coefficients.parquet"), whole.summary().to_frame()
    assert list(found.index) == list(expected.index)
    np.testing.assert_array_less(np.abs(found["coef"] - expected["coef"]) / expected["se"], 1e-8)
    np.testing.assert_allclose(found["se"], expected["se"], rtol=1e-8)
    for site in SITES:
        log = AuditLog(tmp_path / f"{site}-site" / "audit.jsonl").read()
        assert {"greet", "prepare", "sums"} <= {str(entry.get("phase")) for entry in log}

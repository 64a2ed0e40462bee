"""`fedscaffold fit` on tables that are not held in memory."""

from pathlib import Path

import pytest

from fedscaffold import Model
from fedscaffold.cli.commands import fit as command
from tests.cli.test_fit import FILES as FIT_FILES
from tests.cli.test_fit import HERE, invoke, refused
from tests.hospitals import cancer, diabetes, written

FILES = sorted(["cache", *FIT_FILES])


def test_tables_that_do_not_fit_comfortably_are_kept_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, out = written(cancer(), tmp_path / "c.parquet"), tmp_path / "m"
    words = ["fit", table, "--target", "diagnosis", *HERE]
    printed = invoke(*words, "--out", tmp_path / "whole")
    assert "are read from" not in printed
    monkeypatch.setattr(command, "default_max_bytes_in_memory", lambda: 1000)
    printed = invoke(*words, "--out", out)
    assert f"are read from {out / 'cache'}; that folder may be removed" in printed
    assert sorted(file.name for file in out.iterdir()) == FILES
    one, two = (Model.load(made / "model.json") for made in (out, tmp_path / "whole"))
    assert one.equations == two.equations
    assert one == two
    before = (out / "cache" / "x.npy").stat().st_mtime_ns
    for name in FIT_FILES:
        (out / name).unlink()
    invoke(*words, "--out", out)
    assert (out / "cache" / "x.npy").stat().st_mtime_ns == before

    written(cancer().iloc[:-9], table)
    (out / "model.json").unlink()
    assert "has changed since its records were written" in refused(*words, "--out", out)
    invoke(*words, "--out", out, "--overwrite")
    assert (out / "cache" / "x.npy").stat().st_mtime_ns != before


def test_a_folder_for_records_may_be_given(tmp_path: Path) -> None:
    table, records = written(diabetes(), tmp_path / "d.parquet"), tmp_path / "numbers"
    columns = ["--target", "target", *HERE]
    words = [*columns, "--set", f"cache_dir={records}"]
    printed = invoke("fit", table, *words, "--out", tmp_path / "m")
    assert f"are read from {records}" in printed
    assert (records / "x.npy").exists()
    assert "Run Scaffold with step_size=" in invoke("plan", table, *columns, "--set", f"cache_dir={records}")
    assert "condition number" in invoke("inspect", table, *columns, "--set", f"cache_dir={records}")
    other = written(diabetes(), tmp_path / "e.parquet")
    assert "holds the records of another table, d.parquet" in refused(
        "fit", other, *words, "--out", tmp_path / "n", "--overwrite"
    )
    assert (records / "x.npy").exists()
    csv = written(diabetes(), tmp_path / "d.csv")
    assert "cache_dir is for Parquet" in refused("fit", csv, *words, "--out", tmp_path / "k")
    assert "--set is for a table" in refused("plan", "1.0", "--set", f"cache_dir={records}")


def test_a_folder_of_parts(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    frame = diabetes()
    written(frame.iloc[:200], tmp_path / "parts" / "a.parquet")
    written(frame.iloc[200:], tmp_path / "parts" / "b.parquet")
    invoke("fit", tmp_path / "parts", "--target", "target", *HERE, "--out", tmp_path / "m")
    whole = written(frame, tmp_path / "d.parquet")
    invoke("fit", whole, "--target", "target", *HERE, "--out", tmp_path / "n")
    one, two = (Model.load(tmp_path / name / "model.json") for name in "mn")
    assert one.equations == two.equations

"""Files that are whole or not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedscaffold.core import npz
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import check_writable, path_of, remove_abandoned, replacing, write_text


def test_the_new_file_takes_the_old_ones_place(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with replacing(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail() -> None:
        with replacing(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a") as temporary:
            temporary.write_text("x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="it is a folder"):
        check_writable(tmp_path)
    with pytest.raises(InvalidInput, match="there is no folder"):
        check_writable(tmp_path / "missing" / "file")
    check_writable(tmp_path / "file")


@pytest.mark.parametrize("place", ["missing/file", "."])
def test_writing_there_is_refused_too(tmp_path: Path, place: str) -> None:
    def write() -> None:
        with replacing(tmp_path / place) as temporary:
            temporary.write_text("x")

    with pytest.raises(InvalidInput, match="cannot write"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link = tmp_path / "a.txt"
    link.symlink_to(tmp_path / "far" / "real.txt")
    for text in ("one", "two"):  # the first makes the file that the link points to
        write_text(link, text)
        assert link.is_symlink()
        assert (tmp_path / "far" / "real.txt").read_text() == text


def test_files_of_killed_writers_are_removed_and_no_others(tmp_path: Path) -> None:
    target = tmp_path / "run.npz"
    abandoned, similar = tmp_path / ".run.npz.abcd_123.npz", tmp_path / ".run.npz.notes.npz"
    abandoned.write_text("half")
    similar.write_text("mine")
    with replacing(target) as temporary:
        temporary.write_text("x")
        remove_abandoned(target)
        assert temporary.exists()  # its writer lives
    assert sorted(path.name for path in tmp_path.iterdir()) == [similar.name, target.name]


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, 3, None, b"x", ["x"], "a/" * 5000])
def test_what_cannot_be_a_path(path: object) -> None:
    for use in (path_of, check_writable):
        with pytest.raises(InvalidInput, match=r"path|cannot write"):
            use(path)  # type: ignore[arg-type]


FULL = """
import resource, sys, numpy as np, fedscaffold as fs
problem = fs.problems.RidgeStream(n_clients=40, dim=50)
options = {"batch_size": 1, "engine": "reference", "checkpoint": sys.argv[1], "checkpoint_every": 2}
method = fs.Scaffold(step_size=0.01, local_steps=1)
fs.run(problem, method, rounds=2, **options)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # as if the disk were full
try:
    fs.run(problem, method, rounds=6, **options)
except fs.FedScaffoldError as error:
    print(type(error).__name__, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def test_a_full_disk_is_one_sentence_and_the_last_good_checkpoint_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    done = subprocess.run([sys.executable, "-c", FULL, file], capture_output=True, text=True)
    assert done.stdout == f"NotWritten cannot write {file}: File too large; what was there before is kept\n"
    assert npz.read(file)[1]["round"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]

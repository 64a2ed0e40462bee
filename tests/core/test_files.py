"""Files that are whole or not there."""

import os
from pathlib import Path

import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.files import check_writable, replacing


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

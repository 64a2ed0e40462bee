"""Archives of arrays: every change to a file is noticed, whatever it is."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedscaffold.core import npz

ARRAYS = {"a": np.arange(12.0).reshape(3, 4), "b/c": np.array([1, 2], dtype=np.int64), "empty": np.zeros((0, 3))}


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    npz.write(tmp_path / "x.npz", ARRAYS, {"what": "test", "n": np.int64(3)})
    arrays, description = npz.read(tmp_path / "x.npz")
    assert description == {"what": "test", "n": 3}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


def test_every_changed_byte_of_the_contents_is_noticed(tmp_path: Path) -> None:
    npz.write(tmp_path / "x.npz", ARRAYS, {"what": "test"})
    whole = (tmp_path / "x.npz").read_bytes()
    changed = 0
    for at in range(0, len(whole), 7):
        (tmp_path / "y.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            arrays, description = npz.read(tmp_path / "y.npz")
        except ValueError:
            changed += 1
            continue
        assert description == {"what": "test"}  # dates and attributes in the zip file's table of contents
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(arrays[name], array)
    assert changed > 100


def test_an_array_that_was_exchanged_is_noticed(tmp_path: Path) -> None:
    """Two files whose checksums are right each, and an array of the one in the other."""
    npz.write(tmp_path / "x.npz", {"a": np.zeros(3)}, {})
    npz.write(tmp_path / "y.npz", {"a": np.ones(3)}, {})
    with zipfile.ZipFile(tmp_path / "x.npz") as one, zipfile.ZipFile(tmp_path / "y.npz") as other:
        parts = {name: (other if name == "a.npy" else one).read(name) for name in one.namelist()}
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as mixed:
        for name, data in parts.items():
            mixed.writestr(name, data)
    with pytest.raises(ValueError, match="its digest does not match"):
        npz.read(tmp_path / "z.npz")


def test_another_file_is_named_without_advice_to_load_pickles(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"x.npz was not written by fedscaffold: it is not an .npz file$"):
        npz.read(tmp_path / "x.npz")

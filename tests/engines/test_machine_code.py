"""Kernels as files: found again without Numba, made once by several processes, never used when they do not fit."""

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscaffold.engines.numba_.machine_code import call, files

DOUBLED = """
from numba import types
from fedscaffold.engines.numba_.compiling import FLOAT, INT, OUT, compiled_for, numbers
from fedscaffold.engines.numba_.intrinsics import discard, scratch
import numpy as np

def doubled_for(by):
    def doubled(x, offset, begin, end, out):
        kept = scratch(end - begin, np.float64)
        for i in range(begin, end):
            kept[i - begin] = by * x[i]
        for i in range(begin, end):
            out[0, 0, i] = kept[i - begin] + offset
        discard(kept)
    return compiled_for(doubled, numbers("f8", 1), FLOAT, INT, INT, OUT)
"""

USE = """
import sys, time
from pathlib import Path
import numpy as np
from fedscaffold.engines.numba_.machine_code.call import kernel

folder, own, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.path.insert(0, sys.argv[1])
(folder / own).touch()
while not (folder / other).exists():
    time.sleep(0.001)
out = np.full((1, 1, 5), np.nan)
kernel("doubled", "doubled_for", 3.0).bind(np.arange(5.0), 0.5, out)(1, 4)
print("numba" in sys.modules, out.ravel().tolist())
"""
EXPECTED = "[nan, 3.5, 6.5, 9.5, nan]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "doubled.py").write_text(DOUBLED)
    (tmp_path / "use.py").write_text(USE)
    return tmp_path


def used(folder: Path, *signs: str, **settings: str) -> "subprocess.Popen[str]":
    """A process that uses the kernel once each of two files is there: its own, and that of another process."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), **settings}
    arguments = [sys.executable, str(folder / "use.py"), str(folder), *(signs or ("alone", "alone"))]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)


def said(process: "subprocess.Popen[str]") -> str:
    text = process.communicate(timeout=300)[0].strip()
    assert process.returncode == 0
    return text


def test_two_processes_compile_a_kernel_once_and_the_other_does_without_numba(folder: Path) -> None:
    both = [used(folder, *signs) for signs in (("first", "second"), ("second", "first"))]
    assert sorted(said(process) for process in both) == [f"False {EXPECTED}", f"True {EXPECTED}"]


def test_damaged_files_and_files_for_other_settings_are_not_used(folder: Path) -> None:
    assert said(used(folder)) == f"True {EXPECTED}"
    (kept,) = (folder / "cache" / "fedscaffold").glob("*.kernel")
    whole = bytearray(kept.read_bytes())
    whole[len(whole) // 2] ^= 1
    kept.write_bytes(whole)
    assert said(used(folder)) == f"True {EXPECTED}"  # compiled again
    assert said(used(folder)) == f"False {EXPECTED}"  # and replaced
    assert said(used(folder, NUMBA_OPT="1")) == f"True {EXPECTED}"
    assert len(list(kept.parent.glob("*.kernel"))) == 2


def test_a_kernel_refuses_what_it_was_not_compiled_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads memory unchecked."""
    monkeypatch.syspath_prepend(str(folder))
    doubled = call.kernel("doubled", "doubled_for", 2.0)
    x, out = np.arange(5.0), np.zeros((1, 1, 5))
    doubled.bind(x, 1.0, out)(0, 5)
    assert out.ravel().tolist() == [1.0, 3.0, 5.0, 7.0, 9.0]
    fixed = out.copy()
    fixed.flags.writeable = False
    wrong: list[tuple[Any, ...]] = [
        (x.astype("f4"), 1.0, out),
        (x[None], 1.0, out),
        (x[::2], 1.0, out),
        (np.zeros(41, "u1")[1:].view("f8"), 1.0, out),
        (None, 1.0, out),
        (x, 1.0, np.zeros((1, 5, 1)).transpose(0, 2, 1)[..., ::-1]),
        (x, 1.0, fixed),
        (x, "1", out),
    ]
    for arguments in wrong:
        with pytest.raises((TypeError, struct.error)):
            doubled.bind(*arguments)
    with pytest.raises(ValueError, match="argument"):
        doubled.bind(x, out)


def test_memory_that_the_system_does_not_give_is_an_exception(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    bound = call.kernel("doubled", "doubled_for", 2.0).bind(np.arange(5.0), 1.0, np.zeros((1, 1, 5)))
    with pytest.raises(MemoryError):
        bound(0, 2**58)


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="elsewhere Numba is always loaded")
def test_a_run_with_kept_kernels_loads_neither_numba_nor_special_functions() -> None:
    code = (
        "import sys, numpy as np, fedscaffold as fs\n"
        "problem = fs.problems.Ridge(np.ones((2, 10, 3)), np.ones((2, 10)), l2=0.1)\n"
        "fs.run(problem, fs.Scaffold(step_size=0.01, local_steps=1), rounds=1, batch_size=1)\n"
        "print({'numba', 'scipy.special', 'scipy.linalg'} & set(sys.modules))"
    )
    for _ in range(2):  # the first may compile
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_no_folder_means_that_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "folder", lambda: None)
    code = files.MachineCode(b"a", b"b", ("int",), False)
    with files.alone("a"):
        files.keep("a", code)
    assert files.find("a") is None


def test_what_is_kept_is_found_under_its_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "folder", lambda: tmp_path)
    code = files.MachineCode(b"kernel\n", b"entry", ("int", "none"), True)
    files.keep("a", code)
    assert files.find("a") == code
    assert files.find("b") is None
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:20], whole[:-1], whole + b" ", whole[:-1] + b"z"):
        path.write_bytes(damaged)
        assert files.find("a") is None
    path.write_bytes(whole)
    assert files.find("a") == code
    monkeypatch.setattr(files, "_surroundings", lambda: "another processor")
    assert files.find("a") is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="users have numbers elsewhere")
def test_kernels_lie_beside_the_source_at_home_or_in_a_folder_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = files.folder.__wrapped__
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    beside, home = files.ENGINE / "__pycache__", tmp_path / "home" / "fedscaffold"
    own = tmp_path / f"fedscaffold-kernels-{os.getuid()}"
    refused: list[Path] = []
    monkeypatch.setattr(files, "_writable", lambda place: place not in refused)
    for place in (beside, home, own):
        assert find() == place
        refused.append(place)
    own.chmod(0o777)  # as if somebody else had made it: what it holds may not be ours
    assert find() is None
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    assert find() == tmp_path / "named" / "fedscaffold"


def test_addresses_are_read_as_numpy_tells_them(tmp_path: Path) -> None:
    table = np.arange(24.0).reshape(2, 3, 4)
    stored = np.memmap(tmp_path / "numbers", dtype=np.float64, mode="w+", shape=(5,))
    for array in (table, table[1:, ::2], table.T, np.empty((0, 0)), stored, stored[2:]):
        assert call._address(array) == call._told_address(array)


def test_arguments_given_before_are_those_of_the_call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    x, out = np.arange(5.0), np.zeros((1, 1, 5))
    doubled = call.kernel("doubled", "doubled_for", 2.0)
    doubled.given(x).bind(1.0, out)(0, 5)
    first = out.copy()
    doubled.bind(x, 1.0, out)(0, 5)
    assert out.tobytes() == first.tobytes()
    with pytest.raises(TypeError, match="dimensions"):
        doubled.given(x[None])

"""Compile the native engine's library: the hook of wheels and editable installs, and `python hatch_build.py`.

The system's compilers are used if there are any ($CC and $CXX, or cc and c++), else those of the package
`ziglang`, which the build then requires. The kernel is compiled once for each instruction set.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path(__file__).parent / "src" / "fedscaffold" / "engines" / "native"
LIBRARY = "kernel.native" + {"Windows": ".dll", "Darwin": ".dylib"}.get(platform.system(), ".so")
FLAGS = [
    "-O3", "-fvisibility=hidden", "-Wall", "-Wno-psabi", "-Wno-unknown-pragmas",
    "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",  # the same bits everywhere, and no slower
]  # fmt: skip
CPP_FLAGS = ["-std=c++17", "-fno-exceptions", "-fno-rtti"]  # so that the C++ library is not needed
LINKED = ["-lm", "-lpthread"]
if platform.system() == "Windows":
    LINKED = []  # its code is always independent of position, and threads are not used there
else:
    FLAGS.append("-fPIC")
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mprefer-vector-width=256"]


def compilers() -> tuple[list[str], list[str]] | None:
    """Return the commands of the system's C and C++ compilers, or None if either is missing."""
    found = [shlex.split(os.environ.get(name) or usual) for name, usual in (("CC", "cc"), ("CXX", "c++"))]
    return (found[0], found[1]) if all(shutil.which(command[0]) for command in found) else None


def compile_library(output: Path) -> None:
    """Compile the library to a file.

    Raises
    ------
    subprocess.CalledProcessError
        If a compiler fails; its messages are on standard error.
    """
    zig = [sys.executable, "-m", "ziglang"]
    any_machine = ["-mcpu=baseline"]  # zig compiles for the processor at hand otherwise
    c, cpp = compilers() or ([*zig, "cc", *any_machine], [*zig, "c++", *any_machine])
    intel = platform.machine().lower() in ("x86_64", "amd64")
    kernels: dict[str, list[str]] = {"portable": []}
    if intel:  # whose machines without AVX2 spend their time in the C library's fused products
        kernels = {"portable": ["-O1"], "avx2": AVX2, "avx512": AVX512}
    with tempfile.TemporaryDirectory() as folder:
        objects, running = [], []
        for name, flags in kernels.items():
            objects.append(f"{folder}/{name}.o")
            options = [*FLAGS, *CPP_FLAGS, *flags, f"-DSTEPS=fs_steps_{name}"]
            running.append(subprocess.Popen([*cpp, *options, "-c", "kernel.cpp", "-o", objects[-1]], cwd=FOLDER))
        for process in running:
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, process.args)
        built = output.with_name(f".{output.name}.{os.getpid()}")
        subprocess.run(
            [*c, *FLAGS, "-shared", "library.c", *objects, *LINKED, "-s", "-o", str(built)], cwd=FOLDER, check=True
        )
        built.replace(output)


class NativeLibrary(BuildHookInterface):  # type: ignore[type-arg, unused-ignore]
    """Hook that compiles the library into the source tree and adds it to the wheel."""

    def dependencies(self) -> list[str]:
        """Return the compiler to install for the build, if the system has none."""
        return [] if compilers() else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and give the wheel a tag that names the platform but no version of Python."""
        compile_library(FOLDER / LIBRARY)
        platform_tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(f"src/fedscaffold/engines/native/{LIBRARY}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag}"


if __name__ == "__main__":
    compile_library(FOLDER / LIBRARY)

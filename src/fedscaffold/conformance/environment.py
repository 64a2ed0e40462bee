"""Separate environments for libraries that need other versions of packages than fedscaffold does."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from fedscaffold.conformance.adapters import LIBRARIES
from fedscaffold.conformance.checks import chosen_checks
from fedscaffold.conformance.report import Report
from fedscaffold.core.checks import choice
from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.files import write_text

READY = "ready.json"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"  # of PyTorch, a tenth as large as those for GPUs


class EnvironmentFailed(FedScaffoldError):
    """An environment that could not be created, or a library that could not be run in it."""


def default_folder() -> Path:
    """Return the folder where environments are kept, in the user's cache folder."""
    from platformdirs import user_cache_path

    return user_cache_path("fedscaffold") / "conformance"


def make_environment(name: str, folder: Path) -> Path:
    """Install a library, and this package's checks, in a separate environment; return its Python.

    An existing environment with the same requirements is used as it is.
    """
    library = LIBRARIES[choice("library", name, tuple(LIBRARIES))]
    home = folder / (f"{name}-{library.version}" if library.release else name)
    python = home / "bin" / "python"
    wanted = json.dumps([library.release, library.needs])
    ready = home / READY
    if not (ready.is_file() and ready.read_text() == wanted):
        folder.mkdir(parents=True, exist_ok=True)
        venv.create(home, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--prefer-binary"]
        failure = f"{name} could not be installed"
        _run([*install, "--retries", "1", "--extra-index-url", CPU_BUILDS, *library.needs.split()], failure)
        if library.release:
            _run([*install, "--no-deps", library.release], failure)
        write_text(ready, wanted)
    packages = next((home / "lib").glob("python*/site-packages"))
    link, source = packages / "fedscaffold", Path(__file__).parents[1]
    if not (link.is_symlink() and link.resolve() == source.resolve()):
        link.unlink(missing_ok=True)
        link.symlink_to(source, target_is_directory=True)
    return python


def modules_of(name: str, source: Path | None) -> list[str]:
    """Return the folder with the modules of a checkout, in a list that is empty for a library of a package index.

    Raises
    ------
    InvalidInput
        If a checkout is missing, is given to a library that needs none, or does not hold the library.
    """
    library = LIBRARIES[name]
    if library.release:
        if source is not None:
            raise InvalidInput(f"{name} is installed from the package index; leave source=... out")
        return []
    if source is None:
        raise InvalidInput(f"{name} is on no package index; give source=..., a checkout of {library.repository}")
    modules = source.resolve() / library.folder
    if not modules.is_dir():
        raise InvalidInput(
            f"source={str(source)!r} is no checkout of {library.repository}: it has no {modules.name}"
        )
    return [str(modules)]


def check_library(
    name: str,
    *,
    folder: Path,
    source: Path | None = None,
    tolerance: float = 1e-8,
    seed: int = 0,
    only: Sequence[str] | None = None,
) -> Report:
    """Run `conformance.check` on a library in its environment, which is created in `folder` if it is missing."""
    modules = modules_of(choice("library", name, tuple(LIBRARIES)), source)
    chosen_checks(tolerance=tolerance, seed=seed, only=only)
    python = make_environment(name, folder)
    options = json.dumps({"tolerance": tolerance, "seed": seed, "only": None if only is None else list(only)})
    command = [str(python), "-m", "fedscaffold.conformance.adapters", name, options, *modules]
    printed = _run(command, f"{name} could not be run")
    return Report.from_dict(json.loads(printed.splitlines()[-1]))


def _run(command: Sequence[str], failure: str) -> str:
    """Return the standard output of a process that sees only the packages of its environment."""
    ours = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
    settings = {key: value for key, value in os.environ.items() if key not in ours}
    done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise EnvironmentFailed(
            f"{failure} with Python {sys.version_info.major}.{sys.version_info.minor}:\n{last}"
        )
    return done.stdout

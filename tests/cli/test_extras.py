"""The extra `study` installs every package that studies and fits import."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
# packages that people ask for by name, with an extra for each
ASKED_FOR = {"jax", "optax", "ray", "matplotlib", "torch"}


def imported(file: Path) -> Iterator[str]:
    """Full names that a file imports, at any depth, or loads by name."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load_optional":
            yield from (str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant))


def packages_of(command: str) -> set[str]:
    """Packages of others that a command's module imports, and all modules that these import."""
    seen, found, left = set[Path](), set[str](), [f"fedscaffold.cli.commands.{command}"]
    while left:
        path = SOURCE.joinpath(*left.pop().split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file in seen or not file.is_file() or path == SOURCE / "fedscaffold":  # whose names are lazy
            continue
        seen.add(file)
        names = list(imported(file))
        left += [name for name in names if name.startswith("fedscaffold.")]
        found |= {name.partition(".")[0] for name in names} - {"fedscaffold"} - sys.stdlib_module_names
    return found


def installed_by(extra: str) -> set[str]:
    """Names of distributions that an extra installs, with all that they require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, left = set[str](), [*project["dependencies"], f"fedscaffold[{extra}]"]
    while left:
        wanted = left.pop()
        if own := re.match(r"fedscaffold\[(\w+)\]", wanted):
            left += project["optional-dependencies"][own[1]]
            continue
        name = normal(re.split(r"[^\w.-]", wanted)[0])
        if name not in found:
            found.add(name)
            try:
                left += [each for each in requires(name) or () if "extra ==" not in each]
            except PackageNotFoundError:  # of another system
                continue
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("command", ["federate", "study", "fit"])
def test_the_extra_installs_what_the_command_imports(command: str) -> None:
    there, owners = installed_by("study"), packages_distributions()
    packages = packages_of(command) - ASKED_FOR
    assert {"numpy", "pyarrow", "pandas", "dp_accounting"} <= packages  # the search finds packages at all
    missing = [name for name in sorted(packages) if not {normal(each) for each in owners.get(name, [])} & there]
    assert missing == []

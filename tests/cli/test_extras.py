"""The extra `study` installs every package that studies and fits import."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
# packages that people ask for by name, with an extra for each
ASKED_FOR = {"jax", "optax", "ray", "matplotlib", "PIL", "torch", "tensorboard", "mlflow", "wandb"}


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


FIT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import fedscaffold as fs
found = fs.fit({table!r}, target="ill", client="site", l2=0)
found.save({out!r})
again = fs.models.load({out!r})
assert str(again.summary("cluster")) == str(found.summary("cluster"))
try:
    found.summary().to_frame()
except fs.MissingDependency as error:
    print(error)
"""


def test_a_fit_needs_the_extra_data_alone(tmp_path: Path) -> None:
    """Read, fit, saved with its coefficients and page, and opened again, without any package of other extras."""
    there = installed_by("data")
    names = packages_distributions().items()
    others = {normal(each) for each in (*installed_by("study"), *installed_by("dev"))} - there
    blocked = sorted(name for name, owners in names if {normal(each) for each in owners} <= others)
    assert {"pandas", "pydantic", "dp_accounting", "flwr", "cryptography"} <= set(blocked)
    ages = [str(30 + 7 * k % 50) for k in range(60)]
    rows = [f"{age},{'abc'[k % 3]},{'yes' if k % 4 < 2 else 'no'}" for k, age in enumerate(ages)]
    (tmp_path / "visits.csv").write_text("\n".join(["age,site,ill", *rows]))
    script = FIT.format(blocked=blocked, table=str(tmp_path / "visits.csv"), out=str(tmp_path / "out"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pandas" in done.stdout
    assert (tmp_path / "out" / "coefficients.csv").read_text().startswith('"coefficient","coef","se"')

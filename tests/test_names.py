"""Names: one class per name, `__all__` that is true, `dir` that shows it, docstrings that say something."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedscaffold as fs

SOURCE = Path(__file__).parents[1] / "src" / "fedscaffold"
PACKAGES = sorted(name for name in fs.__all__ if (SOURCE / name / "__init__.py").is_file())
MIN_WORDS = 4  # of the first line of a docstring


def public_classes() -> dict[str, list[str]]:
    """Modules that define a public class of each name at their top level, read without importing them."""
    found = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(file.relative_to(SOURCE)))
    return found


CLASSES = public_classes()


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_no_two_public_classes_share_a_name(name: str) -> None:
    assert len(CLASSES[name]) == 1, f"{name} is defined in {', '.join(CLASSES[name])}"


def modules_with_all() -> list[str]:
    found = ["fedscaffold"]
    for module in pkgutil.walk_packages([str(SOURCE)], "fedscaffold."):
        file = SOURCE.parent / Path(*module.name.split("."))
        file = file / "__init__.py" if module.ispkg else file.with_suffix(".py")
        if re.search(r"^__all__ = ", file.read_text(), re.MULTILINE):
            found.append(module.name)
    return found


@pytest.mark.parametrize("module", modules_with_all())
def test_every_name_in_all_exists(module: str) -> None:
    loaded = importlib.import_module(module)
    assert sorted(set(loaded.__all__)) == sorted(loaded.__all__)
    for name in loaded.__all__:
        assert getattr(loaded, name) is not None


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_dir_lists_all_and_nothing_else(package: str) -> None:
    module = getattr(fs, package) if package else fs
    assert sorted(dir(module)) == sorted(module.__all__)


def public_names() -> list[str]:
    """Names that users reach through `fedscaffold` or one of its packages, such as "problems.Ridge"."""
    found = [name for name in fs.__all__ if name not in PACKAGES]
    for package in PACKAGES:
        found += [f"{package}.{name}" for name in getattr(getattr(fs, package), "__all__", ())]
    return sorted(found)


NAMES = public_names()


def public_object(name: str) -> Any:
    """The function or class of this name; the test is skipped for other objects and missing packages."""
    package, _, own = name.rpartition(".")
    try:
        item = getattr(getattr(fs, package) if package else fs, own)
    except fs.MissingDependency as error:
        pytest.skip(str(error))
    if not (inspect.isfunction(item) or inspect.isclass(item)):
        pytest.skip(f"{name} is neither a function nor a class")
    return item


@pytest.mark.parametrize("name", NAMES)
def test_public_functions_and_classes_have_examples(name: str) -> None:
    item = public_object(name)
    if inspect.isclass(item) and issubclass(item, Exception):
        pytest.skip("exceptions are raised, not made by users")
    text = inspect.getdoc(item) or ""
    assert "\nExamples\n--------\n" in text, f"fs.{name} has no section Examples"
    assert ">>> " in text


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_begin_with_a_sentence(name: str) -> None:
    item = public_object(name)
    members = {name: item}
    if inspect.isclass(item):
        members |= {
            f"{name}.{member}": value
            for member, value in vars(item).items()
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
        }
    short = {
        key: first
        for key, value in members.items()
        if len((first := (inspect.getdoc(value) or "").split("\n")[0]).split()) < MIN_WORDS
    }
    assert not short


LATER = ("federation/study", "flower", "inference", "models", "sklearn")  # rooms that are to be rewritten
TURNS = re.compile(
    r"^(What|Whether it|How much of) |\b(told|tells|tell|refused|refuses|refuse)\b"
    r"|\b(of its own|of their own|so many|so much)\b"
    r"|\b(whoever|somebody|nobody|those that|those of)\b|\b(is|are) no \w+\b",
    re.MULTILINE,
)


def docstrings() -> Iterator[tuple[str, str]]:
    """Every docstring of the rooms, with its place."""
    for file in sorted(SOURCE.rglob("*.py")):
        name = str(file.relative_to(SOURCE))
        if name.startswith(LATER):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield f"{name}:{getattr(node, 'lineno', 1)}", text


def test_docstrings_are_plain_english() -> None:
    """At most one docstring in a hundred has a phrase that reads as if translated; most of these are names."""
    every = list(docstrings())
    odd = [place for place, text in every if TURNS.search(text)]
    assert len(odd) <= len(every) // 100, odd

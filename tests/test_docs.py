"""Code in the README and in docs/ runs, and prints what the page says it prints; links lead somewhere."""

import contextlib
import io
import json
import re
from pathlib import Path

import matplotlib as mpl
import pytest

import fedscaffold as fs
from tests.extras import optional

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(?:\n+```text\n(?P<output>.*?)```)?", re.DOTALL)
LONG = ("jax.md", "scallion.md", "streams.md", "choose.md")  # pages whose code takes seconds
WITH_CODE = [
    pytest.param(page, marks=pytest.mark.slow if page.name in LONG else (), id=str(page.relative_to(ROOT)))
    for page in PAGES
    if BLOCK.search(page.read_text())
]


def run_blocks(page: Path) -> list[tuple[str, str | None]]:
    """What each block of a page prints and what the page says it prints; None where the page does not say.

    The blocks run one after another in one namespace, which begins empty.
    """
    namespace: dict[str, object] = {"__name__": page.stem}
    found = []
    for block in BLOCK.finditer(page.read_text()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block["code"], str(page), "exec"), namespace)
        found.append((printed.getvalue(), block["output"]))
    return found


@pytest.mark.parametrize("page", WITH_CODE)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "import torch" in page.read_text():
        optional("torch")
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    for printed, expected in run_blocks(page):
        if expected is not None:
            assert printed == expected


def test_the_first_tutorial_runs_again_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (run_blocks(ROOT / "docs" / "tutorials" / "start.md") for _ in range(2))
    assert first == second


def test_a_block_that_prints_something_else_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text\n2\n```\n")
    assert run_blocks(page) == [("", None), ("1\n", "2\n")]


def test_a_model_of_ones_own_takes_at_most_fifteen_lines() -> None:
    """Data, loss and run: the first block of the page on JAX."""
    code = next(BLOCK.finditer((ROOT / "docs" / "how-to" / "jax.md").read_text()))["code"]
    assert all(part in code for part in ("def loss(", "clients = ", "problems.Differentiable(", "fs.run("))
    assert len([line for line in code.splitlines() if line.strip()]) <= 15


def test_a_method_of_ones_own_takes_at_most_forty_five_lines() -> None:
    """One whole file: the first block of the tutorial."""
    code = next(BLOCK.finditer((ROOT / "docs" / "tutorials" / "add-a-method.md").read_text()))["code"]
    assert "class DampedScaffold(BaseMethod)" in code
    assert len([line for line in code.splitlines() if line.strip()]) <= 45


def test_the_reference_lists_every_public_name_of_the_simulator() -> None:
    listed = re.findall(
        r"^\.\. auto\w+:: (\w+)$", (ROOT / "docs/reference/simulation.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == sorted(fs.simulation.__all__)


def test_every_claim_about_attackers_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "explanation" / "secure-sums.md").read_text()
    tests = (ROOT / "tests" / "attacks" / "test_studies.py").read_text()
    named = re.findall(r"`(test_\w+)`", page)
    assert len(named) >= 15
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_links_to_files_exist() -> None:
    others = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")]
    for page in [*PAGES, *others, *(ROOT / "examples").glob("**/*.md")]:
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)#]+)\)", page.read_text()):
            found = (page.parent / target).resolve()
            if found.parent == ROOT / "docs" / "gallery":  # made from a script when the pages are built
                found = ROOT / "examples" / "gallery" / f"{found.stem.replace('index', 'GALLERY_HEADER')}"
                assert found.with_suffix(".py").exists() or found.with_suffix(".rst").exists(), target
            else:
                assert found.exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_every_page_is_in_a_section() -> None:
    """Each folder's index lists its pages, so that the site has no page that cannot be reached."""
    for index in (ROOT / "docs").glob("**/index.md"):
        text = index.read_text()
        if ":glob:" not in text:
            for page in index.parent.glob("*.md"):
                assert page == index or re.search(rf"^{page.stem}$", text, re.MULTILINE), page


def test_numbers_of_the_readme_are_the_measured_ones() -> None:
    """GitHub shows the README as it is, without the role that the pages take their numbers from."""
    readme = (ROOT / "README.md").read_text()
    measured = json.loads((ROOT / "docs" / "measured" / "compare_rounds.json").read_text())["figures"]
    for name in ("Scaffold", "ProxSkip", "FedAvg"):
        rounds = measured["fewest_rounds"][name.lower()]["rounds"]
        row = [str(rounds[f"to_{target}"]) for target in ("3e-3", "1e-3", "3e-4", "1e-4")]
        assert f"| {name} | {' | '.join(row)} |" in readme

    hospitals = (ROOT / "examples" / "hospitals" / "README.md").read_text()  # whose numbers a test computes
    found = re.search(r"FedAvg's distance to the optimum, relative │ ([\d.]+)%", hospitals)
    assert found is not None
    words = f"FedAvg ends {float(found.group(1)):.1f} % away from the pooled coefficients."
    assert words in " ".join(readme.split())

"""Code in the README and in docs/ runs, and prints what the page says it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(?:\n+```text\n(?P<output>.*?)```)?", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_run(page: Path, tmp_path: Path) -> None:
    """All blocks of a page run one after another, in one program."""
    blocks = list(BLOCK.finditer(page.read_text()))
    program = "\nprint('\\0')\n".join(block["code"] for block in blocks)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for block, printed in zip(blocks, done.stdout.split("\0\n"), strict=False):
        if block["output"] is not None:
            assert printed == block["output"]


def test_a_model_of_ones_own_takes_at_most_fifteen_lines() -> None:
    """Data, loss and run: the first block of the page on JAX."""
    code = next(BLOCK.finditer((ROOT / "docs" / "jax.md").read_text()))["code"]
    assert all(part in code for part in ("def loss(", "clients = ", "problems.Differentiable(", "fs.run("))
    assert len([line for line in code.splitlines() if line.strip()]) <= 15


def test_links_to_files_exist() -> None:
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"

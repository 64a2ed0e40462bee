"""A method stays short: what it shares with others is in the bases, and engines do the rest."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

import fedscaffold.methods

MOST_LINES_OF_CODE = 80
FOLDER = Path(fedscaffold.methods.__file__).parent
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(source: str) -> int:
    """Lines that are neither blank nor comment nor part of a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    used = {n for t in tokens if t.type not in NO_CODE for n in range(t.start[0], t.end[0] + 1)}
    return len(used - docstrings)


def files_of_methods() -> list[str]:
    """Files that define a method, which has a `kind`; server_optimizer.py wraps methods and is none."""
    found = [file for file in sorted(FOLDER.rglob("*.py")) if 'kind: ClassVar[str] = "' in file.read_text()]
    return [str(file.relative_to(FOLDER)) for file in found]


def test_lines_are_counted() -> None:
    source = (
        '"""Module."""\n\nimport os  # why\n\n# a comment\ndef f(\n    x: int,\n) -> str:\n'
        '    """One.\n\n    Two.\n    """\n    return """a\n    b"""\n'
    )
    assert lines_of_code(source) == 6


def test_every_method_is_looked_at() -> None:
    files = files_of_methods()
    assert len(files) >= 14
    assert {"scaffold.py", "tamuna.py", "amplified.py", "proximal/apda.py"} <= set(files)


@pytest.mark.parametrize("file", files_of_methods())
def test_a_method_is_short(file: str) -> None:
    assert lines_of_code((FOLDER / file).read_text()) <= MOST_LINES_OF_CODE

"""scikit-learn's own tests, run on the federated estimators: a few of them, and all of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sklearn_tests import rules

ROOT = Path(__file__).parents[2]


def measure(path: Path, *options: str) -> dict[str, Any]:
    """Figures of the command, in a process of its own since it replaces estimators of scikit-learn."""
    command = [sys.executable, "-m", "benchmarks.sklearn_tests", *options, "--out", str(path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return dict(json.loads(path.read_text())["figures"])


def test_rules_are_about_names_and_parameters() -> None:
    solver = ["solver=sag", "csr_container=csr_array"]
    assert rules.reason("test_logistic", "test_large_sparse_matrix", solver) == "solver"
    assert rules.reason("test_logistic", "test_large_sparse_matrix", ["solver=lbfgs"]) is None
    assert rules.reason("test_logistic", "test_max_iter", []) == "solver"
    assert rules.reason("test_ridge", "test_max_iter", []) is None
    every = [why for table in rules.EXCLUDED.values() for why in table.values()]
    assert set(every) <= set(rules.REASONS)


@pytest.mark.slow
def test_scikit_learns_tests_pass_unless_a_reason_is_given(tmp_path: Path) -> None:
    """All of them; test by test and case by case at least 85 % pass, and what fails has its reason."""
    found = measure(tmp_path / "all.json")
    assert found["tests"]["share"] >= 0.85
    assert found["cases"]["share"] >= 0.85
    assert found["tests"]["counted"] >= 40
    reasons = {f"{file}/{test}" for file, table in rules.FAILURES.items() for test in table}
    assert set(found["failing"]) <= reasons

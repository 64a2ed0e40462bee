"""How many of scikit-learn's own tests of Ridge and LogisticRegression the federated estimators pass.

The tests are those that scikit-learn installs with itself. They run unchanged, with the estimators of `shim.py` in
the place of scikit-learn's; `rules.py` says which of them are about behaviour that the two share.
"""

import os
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
import sklearn
import sklearn.linear_model

from benchmarks.measured import parser, save
from benchmarks.sklearn_tests import shim
from benchmarks.sklearn_tests.rules import EXCLUDED, FAILURES, REASONS, reason

FILES = ("test_ridge", "test_logistic")
NAMES = ("Ridge", "LogisticRegression")
UNEXPLAINED = "no reason is known"


@dataclass(frozen=True)
class Case:
    """One test with its parameters; `excluded` is a key of REASONS, or None where it counts."""

    file: str
    test: str
    passed: bool
    excluded: str | None


class Observer:
    """pytest plugin that leaves out what the rules exclude, and keeps what became of the rest."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.outcomes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep excluded cases as such, and do not run them."""
        kept = []
        for item in items:
            file, test = item.module.__name__.rpartition(".")[2], item.originalname
            why = reason(file, test, _parameters(item))
            if why is None:
                kept.append(item)
            else:
                self.cases.append(Case(file, test, False, why))
        items[:] = kept

    def pytest_runtest_setup(self, item: Any) -> None:
        """Count fits from here on."""
        shim.fits.clear()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Take the worst outcome of a test's phases."""
        if report.when == "call" or report.outcome != "passed":
            expected = hasattr(report, "wasxfail")
            self.outcomes[report.nodeid] = "skipped" if expected else report.outcome

    def pytest_runtest_teardown(self, item: Any) -> None:
        """Keep a case that has run."""
        file, test = item.module.__name__.rpartition(".")[2], item.originalname
        outcome = self.outcomes.get(item.nodeid, "skipped")
        why = "skipped" if outcome == "skipped" else None if shim.fits else "fits neither"
        self.cases.append(Case(file, test, outcome == "passed", why))


def _parameters(item: Any) -> list[str]:
    given = item.callspec.params if hasattr(item, "callspec") else {}
    return [f"{name}={getattr(value, '__name__', value)}" for name, value in given.items()]


def run(only: str) -> list[Case]:
    """Run the tests whose names have this text in them."""
    for name in NAMES:
        setattr(sklearn.linear_model, name, getattr(shim, name))
    observer = Observer()
    modules = [f"sklearn.linear_model.tests.{file}" for file in FILES]
    options = ["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-c", os.devnull]
    pytest.main([*options, "-k", only, "--pyargs", *modules], plugins=[observer])
    return observer.cases


def figures(cases: list[Case]) -> dict[str, Any]:
    """Numbers of cases and of whole tests that pass, and the names of those that fail or do not count."""
    reasons: dict[str, dict[str, str]] = FAILURES
    counted = [case for case in cases if case.excluded is None]
    tests: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in cases:
        tests[case.file, case.test].append(case)
    whole = {key: [case for case in group if case.excluded is None] for key, group in tests.items()}
    whole = {key: group for key, group in whole.items() if group}
    failing = {key: sum(not case.passed for case in group) for key, group in whole.items()}
    passed = sum(case.passed for case in counted)
    well = sum(number == 0 for number in failing.values())
    return {
        "scikit-learn": sklearn.__version__.replace(".", "_"),
        "cases": {"counted": len(counted), "passed": passed, "share": passed / max(len(counted), 1)},
        "tests": {"counted": len(whole), "passed": well, "share": well / max(len(whole), 1)},
        "failing": {
            f"{file}/{test}": f"{number} of {len(whole[file, test])} cases, {reasons[file].get(test, UNEXPLAINED)}"
            for (file, test), number in failing.items()
            if number
        },
        "excluded": {why.replace(" ", "_"): _excluded(cases, why) for why in REASONS},
    }


def _excluded(cases: list[Case], why: str) -> str:
    """A reason, and the names of the tests of which cases are left out for it."""
    found: dict[str, Counter[str]] = {file: Counter() for file in FILES}
    everything = {file: Counter(case.test for case in cases if case.file == file) for file in FILES}
    for case in cases:
        if case.excluded == why:
            found[case.file][case.test] += 1
    parts = []
    for file, tests in found.items():
        names = [
            name if number == everything[file][name] else f"{name} ({number} of {everything[file][name]} cases)"
            for name, number in tests.items()
        ]
        if names:
            parts.append(f"{file}: {', '.join(names)}")
    number = sum(case.excluded == why for case in cases)
    return f"{REASONS[why]} ({number:,} cases). {'; '.join(parts)}."


def main() -> None:
    """Run the tests, print what became of them, and save it."""
    options = parser(__doc__)
    options.add_argument("-k", dest="only", default="", help="run only tests whose names have this text in them")
    given = options.parse_args()
    cases = run("shapes_type or predict_2_classes or sparse_error" if given.quick else given.only)
    found = figures(cases)
    for key in ("tests", "cases"):
        print(f"{key}: {found[key]['passed']} of {found[key]['counted']} pass, {found[key]['share']:.1%}")
    for name, what in found["failing"].items():
        print(f"  {name}: {what}")
    known = {file: {case.test for case in cases if case.file == file} for file in FILES}
    stale = [key for file in FILES for key in EXCLUDED[file] if key.partition(" @ ")[0] not in known[file]]
    if stale and not (given.quick or given.only):
        sys.exit(f"rules for tests that this scikit-learn does not have: {', '.join(stale)}")
    save("sklearn_tests", found, given)


if __name__ == "__main__":
    main()

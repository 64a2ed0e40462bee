"""A pytest plugin: `pytest --scaffold-conformance mymodule:adapter` adds one test for each check.

The tests run in the process of pytest, on the implementation that the option names. The message of a failure is
its entry of the report, and checks that the adapter does not support are skipped.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # pytest loads this file in every project where fedscaffold is installed: it loads nothing else
    from fedscaffold.conformance.report import Report

OPTION, TOLERANCE = "--scaffold-conformance", "--scaffold-tolerance"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the two options."""
    group = parser.getgroup("scaffold", "conformance of an implementation of Scaffold")
    group.addoption(OPTION, metavar="MODULE:ADAPTER", help="check this function or class that takes a Task")
    group.addoption(TOLERANCE, type=float, default=1e-8, help="distances up to this are zero; 1e-4 suits float32")


def pytest_collection(session: pytest.Session) -> None:
    """Raise if the option does not name something that can be imported, before any test runs."""
    given = session.config.getoption(OPTION)
    if given is None:
        return
    module, _, name = given.partition(":")
    try:
        adapter = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(f"{OPTION} {given}: {error}; give module:adapter") from None
    from fedscaffold.conformance import check

    session.config.stash[_REPORT] = lambda: check(adapter, tolerance=session.config.getoption(TOLERANCE))


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add one test for each check, in the order of the report."""
    if _REPORT in config.stash:
        node: Any = Conformance.from_parent(session, name=config.getoption(OPTION), nodeid="scaffold-conformance")
        items.extend(node.collect())


class Conformance(pytest.Collector):
    """All checks of one implementation, which run once, when the first of their tests does."""

    _report: "Report | None" = None

    @property
    def report(self) -> "Report":
        """The report of all checks."""
        if self._report is None:
            self._report = self.config.stash[_REPORT]()
        return self._report

    def collect(self) -> Iterator["ConformanceTest"]:
        """Yield one test for each check."""
        from fedscaffold.conformance.checks import CHECKS

        for name in CHECKS:
            yield ConformanceTest.from_parent(self, name=name)


class ConformanceTest(pytest.Item):
    """One check of an implementation."""

    parent: Conformance

    def runtest(self) -> None:
        """Fail with the entry of the report, or skip if the check is not supported."""
        entry = next(entry for entry in self.parent.report.entries if entry.name == self.name)
        if entry.verdict == "not supported":
            pytest.skip(entry.hint)
        if entry.verdict == "failed":
            raise ConformanceFailed(entry.error or str(entry))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """Return the entry of the report instead of a traceback of the plugin."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Return the name of the check, without a file."""
        return "", None, f"scaffold-conformance: {self.name}"


class ConformanceFailed(Exception):
    """A check that failed."""


_REPORT: pytest.StashKey[Any] = pytest.StashKey()

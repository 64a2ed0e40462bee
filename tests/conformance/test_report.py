"""What is not supported, what raises, what is refused, and how a report reads."""

import json
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedscaffold.conformance import NotSupported, Report, Task, check
from fedscaffold.conformance.checks import CHECKS
from fedscaffold.core.errors import InvalidInput
from tests.conformance.implementations import Array, Bug, OneVariate, TwoSided


def verdicts(report: Report) -> dict[str, str]:
    return {entry.name: entry.verdict for entry in report.entries}


class OnlyTheBasics(OneVariate):
    save = restart = None  # type: ignore[assignment]

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        if not (task.has_equal_weights and task.has_equal_local_steps):
            raise NotSupported("equal clients only")

    def round(self, cohort: tuple[int, ...]) -> None:
        if len(cohort) < self.task.n_clients:
            raise NotSupported("everyone must come")
        super().round(cohort)


def test_what_is_not_supported_is_not_passed() -> None:
    report = check(OnlyTheBasics)
    hints = {entry.name: entry.hint for entry in report.entries if entry.verdict == "not supported"}
    assert hints == {
        "partial participation": "everyone must come",
        "unequal local steps": "equal clients only",
        "unequal weights": "equal clients only",
        "unequal weights in cohorts": "equal clients only",
        "lost replies": "everyone must come",
        "restart of a client": "the adapter has no save and restart",
    }
    assert report.passed
    assert report.failures == ()
    assert report.count("passed") == len(CHECKS) - len(hints)


def test_nothing_supported_is_not_passed() -> None:
    def start(task: Task) -> OneVariate:
        raise NotSupported("nothing works yet")

    report = check(start)
    assert report.count("not supported") == len(CHECKS)
    assert not report.passed


class Hidden(TwoSided):
    def correction(self, client: int) -> Array:
        raise NotSupported("control variates are inside the clients' processes")


def test_corrections_that_cannot_be_read_leave_the_other_checks() -> None:
    report = check(Hidden)
    unread = [name for name, verdict in verdicts(report).items() if verdict == "not supported"]
    assert unread == [
        "control variates sum to zero",
        "control variates are each client's own",
        "control variates are mean gradients",
    ]
    assert report.count("passed") == len(CHECKS) - 3
    assert not check(partial(Hidden, bug=Bug(sign=-1.0))).passed


class Breaks(TwoSided):
    def round(self, cohort: tuple[int, ...]) -> None:
        if len(cohort) < self.task.n_clients:
            raise RuntimeError("socket closed")
        super().round(cohort)


class BreaksInCorrection(TwoSided):
    def correction(self, client: int) -> Array:
        raise KeyError(f"no control variate for {client}")


def test_exceptions_fail_their_check_and_are_kept() -> None:
    report = check(Breaks)
    assert report.failures == ("partial participation", "unequal weights in cohorts", "lost replies")
    entry = next(entry for entry in report.entries if entry.name == "partial participation")
    assert entry.error is not None
    assert "in round" in entry.error  # where
    assert "RuntimeError: socket closed" in entry.error
    assert "RuntimeError: socket closed" in str(report)
    assert entry.error in [each["error"] for each in json.loads(json.dumps(report.to_dict()))["checks"]]

    report = check(BreaksInCorrection)
    read = [name for name in verdicts(report) if name.startswith("control variates")]
    assert list(report.failures) == [*read, "settings that change between rounds"]
    assert "no control variate for 0" in str(report)


def test_ctrl_c_is_not_a_verdict() -> None:
    def start(task: Task) -> OneVariate:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(start)


class WrongShape(OneVariate):
    def model(self) -> Array:
        return self.theta[:, None]


class WrongStart(OneVariate):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.theta = np.zeros(task.dim)


class NanCorrection(OneVariate):
    def correction(self, client: int) -> Array:
        return np.full_like(self.theta, np.nan)


class Lacking:
    def __init__(self, task: Task) -> None: ...


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (WrongShape, "model() must return one vector of shape (3,), got shape (3, 1)"),
        (WrongStart, "model() must return task.theta0 before the first round"),
        (NanCorrection, "correction() returned NaN or infinite values"),
        (Lacking, "the object that start(task) returns must have the functions round, model, correction"),
    ],
)
def test_faults_of_the_adapter_are_named(start: Any, words: str) -> None:
    report = check(start)
    assert not report.passed
    assert words in " ".join(entry.error or "" for entry in report.entries)


class BecomesNan(OneVariate):
    def round(self, cohort: tuple[int, ...]) -> None:
        self.theta = self.theta * np.nan


def test_a_model_that_is_nan_fails_and_the_report_is_still_json() -> None:
    report = check(BecomesNan)
    assert {"reaches the optimum", "partial participation"} <= set(report.failures)
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert json.loads(text)["checks"][0]["measured"] is None


class Vandal(OneVariate):
    """Writes into the arrays that it was given and into those that it hands out."""

    def round(self, cohort: tuple[int, ...]) -> None:
        buffer = self.theta
        super().round(cohort)
        buffer[:] = self.theta
        self.theta = buffer
        self.task.theta0[:] = buffer


def test_the_suite_keeps_a_task_of_its_own() -> None:
    assert check(Vandal).passed


def test_some_checks_alone() -> None:
    report = check(OneVariate, only=["lost replies", "reaches the optimum"])
    assert [entry.name for entry in report.entries] == ["reaches the optimum", "lost replies"]
    assert report.passed


def test_wrong_variates_that_cannot_be_read_show_in_the_path() -> None:
    report = check(partial(Hidden, bug=Bug(server_share="seen")))
    assert report.failures == ("follows Scaffold's path",)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"start": 3}, "start must be a function or class"),
        ({"start": OneVariate, "tolerance": 0.0}, "tolerance must be a positive number"),
        ({"start": OneVariate, "tolerance": 0.5}, "tolerance must be at most 0.001"),
        ({"start": OneVariate, "seed": -1}, "seed must be a whole number"),
        ({"start": OneVariate, "only": ["speed"]}, "only must be one of 'reaches the optimum'"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check(**arguments)


@pytest.mark.parametrize(
    "start", [OneVariate, OnlyTheBasics, Breaks, partial(TwoSided, bug=Bug(sign=-1.0)), Lacking]
)
def test_a_report_fits_in_80_columns(start: Any) -> None:
    report = check(start)
    text = str(report)
    assert max(map(len, text.splitlines())) <= 80
    assert all(entry.name in text for entry in report.entries)
    counted = f"{report.count('passed')} passed, {report.count('failed')} failed"
    assert text.startswith(f"Scaffold conformance: {counted}")

"""The plan: one document with a digest, all problems of it at once, and what may be filled in later."""

import tomllib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.study.plan import OTHER, Column, StudyPlan
from fedscaffold.federation.study.questions import CELLS, _level_table, allowed, blocks_of, levels_in, parse_phase

COLUMNS = {
    "age": {"range": (0, 120), "unit": "years"},
    "ward": {"type": "category"},
    "ill": {"levels": ("no", "yes")},
}


def plan(**changes: Any) -> StudyPlan:
    return StudyPlan(
        **{"target": "ill", "kind": "logistic", "sites": ("a", "b", "c"), "columns": COLUMNS, **changes}
    )


def test_files_and_documents_hold_the_same_plan() -> None:
    one = plan(l2=0.5, event="no", tolerance=0.01)
    assert StudyPlan(**tomllib.loads(one.to_toml())) == one
    assert StudyPlan.from_json(one.to_json()) == one
    assert StudyPlan.from_json(one.to_json()).digest == one.digest
    assert len(one.fingerprint.split()) == 6


@pytest.mark.parametrize(
    "changes",
    [{"l2": 1.0}, {"sites": ("a", "c", "b")}, {"min_cell": 4}, {"sums": "open"}, {"event": "no"},
     {"columns": {**COLUMNS, "age": {"range": (0, 121)}}}, {"columns": dict(reversed(COLUMNS.items()))}],
)  # fmt: skip
def test_every_decision_changes_the_digest(changes: dict[str, Any]) -> None:
    assert plan(**changes).digest != plan().digest


def test_only_blanks_can_be_filled_in() -> None:
    first = plan()
    whole = plan(columns={**COLUMNS, "ward": {"levels": ("x", "y"), "reference": "y"}}, rows=10)
    assert whole.completes(first)
    assert not first.completes(whole)
    assert not plan(columns={**COLUMNS, "ward": {"levels": ("x", "z")}}, rows=10).completes(whole)
    for changes in ({"l2": 0.1}, {"min_cell": 1}, {"sums": "open"}, {"sites": ("a", "b", "d")}, {"event": "no"}):
        assert not plan(**{"columns": whole.columns, "rows": 10, **changes}).completes(first)
    changed = {**whole.columns, "age": Column(range=(0, 1))}
    assert not plan(columns=changed, rows=10).completes(first)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InvalidInput) as error:
        plan(l2=-1, min_cell=0, sums="whatever", trainer="adam", tolarance=3)
    for words in ("l2", "min_cell", "sums", "trainer", "tolarance is not a setting"):
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sites": ("a", "b")}, "secure sums need three sites"),
        ({"sites": ("a",), "sums": "open"}, "two or more sites"),
        ({"sites": ("a", "b", "../c")}, "is not a name"),
        ({"sites": ("a", "b", "c\x1b[1A")}, "is not a name"),
        ({"name": "../../etc"}, "is not a name"),
        ({"target": "i\x1b[2Jll"}, "control characters"),
        ({"columns": {**COLUMNS, "\x1b[31mage": {}}}, "control characters"),
        ({"columns": {**COLUMNS, "ward": {"levels": ("x", "y\x07")}}}, "control characters"),
        ({"columns": {"ill": COLUMNS["ill"]}}, "no features"),
        ({"kind": "ridge"}, "must be a number"),
        ({"event": "maybe"}, "not a class"),
        ({"columns": {**COLUMNS, "ward": {"levels": ("x", "x")}}}, "two or more different"),
        ({"columns": {**COLUMNS, "age": {"range": (1, 0)}}}, "low and a high"),
        ({"columns": {**COLUMNS, "age": {"levels": ("1", "2"), "mean": 1.0}}}, "not a range, mean or sd"),
        ({"epsilon": 1.0, "delta": 1e-5}, "'ward'"),
        ({"delta": 0.1}, "delta requires epsilon"),
        ({"client_intercepts": True, "trainer": "scaffold"}, "client_intercepts requires"),
        ({"offset": "age"}, "is a feature too"),
    ],
)
def test_plans_that_cannot_be_carried_out(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        plan(**changes)


def test_the_plan_decides_which_phases_there_are() -> None:
    open_one, whole = plan(), plan(columns={**COLUMNS, "ward": {"levels": ("x", "y")}})
    assert allowed(open_one, "levels:64")
    assert not allowed(open_one, "sums")
    assert allowed(whole, "sums")
    assert not any(allowed(whole, phase) for phase in ("levels:64", "moments", "evaluate", "judged sums", "noisy"))
    assert not allowed(plan(columns=whole.columns, hessians=False), "scores")
    assert allowed(plan(columns=whole.columns, evaluate=0.2), "judged train")
    for phase in ("rows", "levels:65", "levels", "sums:64", "judged", "", "sums ", "levels:６４"):
        with pytest.raises(InvalidInput, match="no phase"):
            parse_phase(phase)


def test_sizes_of_messages_follow_from_the_plan() -> None:
    whole = plan(columns={**COLUMNS, "ward": {"levels": ("x", "y", "z")}})
    d = 4  # age, two levels, the intercept
    assert whole.coding().dim == d
    lengths = {block.name: block.length for block in blocks_of(whole, "scores")}
    assert lengths["hessian"] == lengths["score_products"] == d * (d + 1) // 2
    assert lengths["gradient"] == d


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=40), st.integers(5, 10**6), max_size=8), min_size=1, max_size=5))
def test_levels_are_found_in_sums_of_tables(sites: list[dict[str, int]]) -> None:
    kept = [{level: n for level, n in one.items() if len(level.encode()) <= 124} for one in sites]
    total = np.sum([_level_table(one, CELLS[1]) for one in kept], axis=0)
    expected: dict[str, int] = {}
    for one in kept:
        for level, count in one.items():
            expected[level] = expected.get(level, 0) + count
    assert levels_in(total, CELLS[1]) == dict(sorted(expected.items()))


def test_too_many_levels_are_noticed() -> None:
    levels = {f"level {k}": 5 for k in range(200)}
    assert levels_in(_level_table(levels, CELLS[0]), CELLS[0]) is None
    assert levels_in(_level_table(levels, CELLS[1]), CELLS[1]) == dict(sorted(levels.items()))
    assert OTHER not in levels

"""Studies of times until events: the plan, what leaves a site, and tables that cannot take part."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation import Study, StudyPlan
from fedscaffold.federation.study.dry_run import dry_run
from fedscaffold.federation.study.numbers import decode, encode
from fedscaffold.federation.study.questions import allowed, blocks_of, number_columns, numbers_for
from fedscaffold.federation.study.rows import SiteRows
from tests.federation.study.test_pages import conducted, page_of
from tests.models.test_cox import made


def sites(frame: pd.DataFrame | None = None) -> dict[str, Any]:
    given = made() if frame is None else frame
    return {str(name): own.drop(columns="site") for name, own in given.groupby("site")}


def study(**options: Any) -> Study:
    return Study(**{"target": ("days", "died"), "kind": "cox", **options})


def test_the_plan_has_both_columns_and_survives_its_files() -> None:
    plan = study().plan_for(sites())
    assert (plan.target, plan.status, plan.kind) == ("days", "died", "cox")
    assert plan.feature_names == ("x", "group")
    assert plan.used_columns == ("x", "group", "days", "died")
    assert StudyPlan.from_json(plan.to_json()) == plan
    assert Study(target="days,died", kind="cox").plan_for(sites()).digest == plan.digest
    assert study(target=["days", "died"], kind=None).plan_for(sites()).digest == plan.digest


@pytest.mark.parametrize("sums", ["secure", "open"])
def test_a_study_is_the_fit_of_all_rows(sums: Any) -> None:
    frame = made()
    fit = fs.fit(frame, target=("days", "died"), client="site", l2=0)
    result = study(sums=sums).run(sites(frame))
    assert result.reached
    cov: Any
    for cov in ("nonrobust", "HC0", "cluster"):
        one, other = fit.summary(cov), result.summary(cov)
        assert one.names == other.names
        np.testing.assert_allclose(other.coef, one.coef, atol=1e-6 * one.se.min())
        np.testing.assert_allclose(other.se, one.se, rtol=1e-6)


def test_no_sum_of_times_leaves_a_site() -> None:
    plan = study().plan_for(sites())
    assert plan.incomplete == ("x", "group")
    assert number_columns(plan) == ["x"]
    result = study(sums="open").run(sites())
    assert {one.phase for one in result.received} == {"levels:64", "moments", "spreads", "sums", "scores"}
    doubled = study(sums="open").run({name: own.assign(days=own["days"] ** 2) for name, own in sites().items()})
    for one, other in zip(result.received, doubled.received, strict=True):  # only the order of times matters
        if one.phase in ("moments", "spreads", "sums"):
            assert (one.words == other.words).all()


def test_the_plan_has_no_phases_of_local_steps() -> None:
    given: Any = {"target": ("days", "died"), "columns": {"x": {"range": (-3, 3)}, "days": {}}}
    plan = StudyPlan(**given, sites=("a", "b", "c"))
    assert plan.incomplete == ()
    phases = ("moments", "measure", "train", "gradient", "sums", "scores", "evaluate")
    assert [phase for phase in phases if allowed(plan, phase)] == ["gradient", "sums", "scores"]
    assert {block.name: block.length for block in blocks_of(plan, "sums")}["null"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "ridge"}, "two columns as target, a time and a status, are for kind='cox'"),
        ({"target": "days"}, "kind='cox' needs two columns as target"),
        ({"weight": "x"}, "does not support weight"),
        ({"trainer": "scaffold"}, "requires trainer='newton' or 'auto'"),
        ({"hessians": False}, "requires hessians=True"),
        ({"client_intercepts": True}, "does not support client_intercepts"),
        ({"evaluate": 0.2}, "does not support evaluate"),
        ({"epsilon": 1.0}, "a privacy budget does not cover kind='cox'"),
        ({"target": ("days", "died", "x")}, "target must be a valid string"),
    ],
)
def test_settings_that_do_not_fit(options: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        study(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: own.assign(days=own["days"] - 1.0), "the target 'days' must not be negative"),
        (lambda own: own.assign(days=own["days"].where(own["x"] > 0)), "column 'days' has .* missing values"),
        (lambda own: own.assign(died=own["died"] + 1), "status column 'died' must hold 1"),
        (lambda own: own.assign(died=own["died"].where(own["x"] > 0).astype(float)), "status column 'died' must"),
        (lambda own: own.assign(died="yes"), "column 'died' must hold numbers"),
        (lambda own: own.drop(columns="died"), "no column 'died'"),
    ],
)
def test_a_table_that_cannot_take_part(change: Any, message: str) -> None:
    changed = {name: change(own) if name == "c" else own for name, own in sites().items()}
    with pytest.raises(InvalidInput, match=f"site c: .*{message}"):
        study().run(changed)


def with_events(own: pd.DataFrame, count: int) -> pd.DataFrame:
    return own.assign(died=np.arange(len(own)) < count)


def test_open_sums_need_enough_rows_with_and_without_events() -> None:
    complete = {"x": {"mean": 0.0, "sd": 1.0}, "days": {}}
    for count, rejected in ((0, False), (4, True), (5, False)):
        few = {name: with_events(own, count) if name == "c" else own for name, own in sites().items()}
        if rejected:
            with pytest.raises(InvalidInput, match=r"site c: 4 rows have an event and .* fewer than 5"):
                study(sums="open", columns=complete).run(few)
        else:
            assert study(sums="open", columns=complete).run(few).reached
        assert study(columns=complete).run(few).reached  # secure sums show no site's events
    nearly = {name: with_events(own, len(own) - 2) if name == "c" else own for name, own in sites().items()}
    with pytest.raises(InvalidInput, match="and 2 have none"):
        study(sums="open", columns=complete).run(nearly)


def test_long_times_are_not_cut() -> None:
    seconds = {name: own.assign(days=own["days"] * 1e9) for name, own in sites().items()}
    one, other = study().run(sites()).summary(), study().run(seconds).summary()
    np.testing.assert_allclose(other.coef, one.coef, rtol=1e-12)


def test_sums_at_steep_models_stay_in_their_range() -> None:
    """An answer out of its range would say something about a site's rows."""
    plan = study(columns={"x": {"mean": 0.0, "sd": 1.0}, "group": {"levels": ("new", "old")}, "days": {}})
    whole = plan.plan_for(sites())
    rows = SiteRows(sites()["a"], whole, b"")
    for theta in (np.array([1e6, -1e6]), np.array([-1e6, 1e3]), np.zeros(2)):
        for phase in ("gradient", "sums", "scores"):
            words = encode(numbers_for(rows, phase, theta, {}, "auto"), blocks_of(whole, phase))
            assert np.isfinite(decode(words, blocks_of(whole, phase))["gradient"]).all()


def test_a_study_without_events_has_one_sentence() -> None:
    silent = {name: own.assign(died=False) for name, own in sites().items()}
    with pytest.raises(InvalidInput, match="no row has an event, so there is nothing to learn from these times"):
        study().run(silent)


@pytest.mark.parametrize(("sums", "where"), [("secure", "over all 5 sites together"), ("open", "at this site")])
def test_a_dry_run_says_what_the_sums_contain(sums: Any, where: str) -> None:
    plan = study(sums=sums, columns={"group": {"levels": ("new", "old")}}).plan_for(sites())
    text = dry_run(sites()["a"], plan).text()
    assert f"The sums contain the number of events, {where}" in text
    assert "two-way counts:" not in text


def test_the_page_of_a_site_says_what_the_sums_contain(tmp_path: Path) -> None:
    members, _, _ = conducted(tmp_path, sites(), target=("days", "died"), kind="cox")
    words = page_of(members["a"], tmp_path).words
    assert "number of events over all sites together, but no time and no sum of times" in words
    assert "two-way counts: how" not in words

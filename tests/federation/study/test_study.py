"""Studies in one process against the pooled table, which no part of a study ever sees."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data import tables
from fedscaffold.federation import SitePolicy, Study, StudyResult, StudySettings
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.study.greet import describe_table
from fedscaffold.federation.study.messages import SiteProblems
from fedscaffold.federation.study.rows import recode
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import InProcess, conduct_study
from tests.federation.study.tables import TABLES, deal

OPEN = SiteRules(by_the_clock=False, min_cell=1)
NO_HESSIANS = SiteRules(by_the_clock=False, min_cell=1, allow_hessians=False)


def pooled_optimum(result: StudyResult, sites: dict[str, pd.DataFrame]) -> Array:
    """The optimum on all rows together, with the encoding of the study."""
    rows = pd.concat(sites.values(), ignore_index=True)
    return result.agreement.problem(recode(rows, result.agreement)).optimum()


def relative_error(theta: Array, optimum: Array, slopes: Any) -> float:
    return float(np.linalg.norm((theta - optimum)[slopes]) / np.linalg.norm(optimum[slopes]))


@pytest.mark.parametrize(
    ("name", "n_sites", "how"),
    [("iris", 2, "even"), ("iris", 12, "sizes"), ("wards", 5, "labels"), ("wards", 40, "sizes"),
     ("diabetes", 8, "features"), ("breast cancer", 5, "labels")],
)  # fmt: skip
def test_the_model_is_the_pooled_one(name: str, n_sites: int, how: str) -> None:
    frame, kind = TABLES[name]()
    sites = deal(frame, n_sites, how, seed=1)
    result = Study(target="y", kind=kind, min_cell=1).run(sites, rules=OPEN, engine="reference")
    optimum = pooled_optimum(result, sites)
    slopes = result.training.certificate.slopes
    assert result.reached
    assert relative_error(result.theta, optimum, slopes) <= 1e-6
    certified = result.certified_error["relative"]
    assert certified is not None
    assert relative_error(result.theta, optimum, slopes) <= 1.2 * certified <= 1e-6


@pytest.mark.parametrize("name", ["wards", "diabetes"])
def test_scaffold_on_autopilot_needs_no_hessians(name: str) -> None:
    frame, kind = TABLES[name]()
    sites = deal(frame, 4, "features", seed=2)
    result = Study(target="y", kind=kind, evaluate=0.0).run(sites, rules=NO_HESSIANS, engine="reference")
    slopes = result.training.certificate.slopes
    optimum = pooled_optimum(result, sites)
    assert result.reached
    assert result.certified_error["standard_errors"] is None
    certified = result.certified_error["relative"]
    assert certified is not None
    assert relative_error(result.training.certificate.theta, optimum, slopes) <= 1.2 * certified
    assert relative_error(result.theta, optimum, slopes) <= certified <= 0.005
    assert not any("hessian" in entry["vectors"] for log in result.log.values() for entry in log)


def test_the_same_seed_gives_the_same_bits_and_scaffold_the_model_of_newton() -> None:
    frame, kind = TABLES["wards"]()
    sites = deal(frame, 3, "even", seed=3)
    runs = [
        Study(target="y", kind=kind, trainer=trainer).run(sites, seed=5, engine="reference")
        for trainer in ("scaffold", "scaffold", "newton")
    ]
    np.testing.assert_array_equal(runs[0].theta, runs[1].theta)
    assert runs[0].auc == runs[1].auc
    np.testing.assert_allclose(runs[0].theta, runs[2].theta, atol=1e-6)
    assert any("Scaffold ran" in note for note in runs[0].training.notes)


def test_the_log_holds_all_that_left_and_no_more_than_promised() -> None:
    frame, kind = TABLES["wards"]()
    sites = deal(frame, 3, "even", seed=4)
    result = Study(target="y", kind=kind, evaluate=0.0).run(sites, engine="reference")
    n_categories, d = 4 + 2, result.agreement.dim
    for log in result.log.values():
        assert [entry["phase"] for entry in log[:4]] == ["greet", "prepare", "agree", "measure"]
        assert numbers_in(log[1]["values"]["body"]) <= 3 * (d + n_categories)
        sums = [entry for entry in log if entry["phase"] == "sums"]
        assert len(sums) == result.rounds
        *earlier, certificate = [numbers_of(entry) for entry in sums]
        assert certificate == d * d + 2 * d + 2  # with the products of scores; two numbers are no vectors
        assert max(earlier[2:]) == d * (d + 1) // 2 + d + 2
        assert earlier[1] <= earlier[2] + 2 * d + 10  # what does not depend on the model is told once
    text = json.dumps(result.log["site 0"])
    for value in sites["site 0"]["dose"].iloc[:20]:
        assert repr(float(value))[:10] not in text


def numbers_of(entry: Mapping[str, Any]) -> int:
    return numbers_in(entry["values"]["body"]) + sum(one["numbers"] for one in entry["vectors"].values())


@pytest.mark.parametrize(("name", "classes"), [("breast cancer", 2), ("diabetes", 0), ("iris", 3)])
def test_preparation_tells_three_numbers_for_each_column_and_value(name: str, classes: int) -> None:
    frame, kind = TABLES[name]()
    result = Study(target="y", kind=kind, evaluate=0.0).run(deal(frame, 3, "even", seed=4), engine="reference")
    for log in result.log.values():
        assert numbers_of(log[1]) <= 3 * (result.agreement.encoding.dim + classes)


def numbers_in(value: Any) -> int:
    if isinstance(value, dict):
        return sum(numbers_in(item) for item in value.values())
    if isinstance(value, list):
        return sum(numbers_in(item) for item in value)
    return int(isinstance(value, int | float) and not isinstance(value, bool))


def test_small_counts_never_leave_a_site() -> None:
    frame, kind = TABLES["wards"]()
    sites = deal(frame, 30, "sizes", seed=6)
    result = Study(target="y", kind=kind, min_cell=5).run(sites, engine="reference")
    small = range(1, 5)
    for log in result.log.values():
        body = log[1]["values"]["body"]
        for column in (body["target"], body["features"]["ward"]):
            assert not any(count in small for count in column["counts"].values())
        for entry in log:
            if entry["phase"] == "evaluate":
                told = entry["values"]["body"]
                assert not any(count in small for count in (told["n_rows"], *told["first"], *told["second"]))
    assert result.reached


def two_sites(**changes: Any) -> dict[str, pd.DataFrame]:
    """Two sound tables, and changes of the second one's columns."""
    rng = np.random.default_rng(0)

    def table() -> pd.DataFrame:
        x = rng.normal(size=60)
        return pd.DataFrame(
            {"x": x, "z": rng.normal(size=60), "y": np.where(x + rng.normal(size=60) > 0, "a", "b")}
        )

    second = table()
    for name, values in changes.items():
        second = second.drop(columns=name) if values is None else second.assign(**{name: values})
    return {"bonn": table(), "lyon": second}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"z": None}, ["lyon", "'z'", "no column"]),
        ({"extra": 1.0}, ["lyon", "'extra'", "lacks"]),
        ({"z": "text"}, ["'z'", "category at site lyon", "number at other sites"]),
        ({"z": pd.Timestamp("2020-01-01")}, ["'z'", "lyon", "neither numbers nor text"]),
        ({"z": np.nan}, ["'z'", "missing values", "lyon"]),
        ({"z": np.inf}, ["lyon", "'z'", "infinite"]),
        ({"y": None}, ["lyon", "'y'"]),
        ({"y": "c"}, []),
    ],
)
def test_tables_that_do_not_fit_are_refused_by_site_and_column(changes: dict[str, Any], words: list[str]) -> None:
    study = Study(target="y", kind="logistic", evaluate=0.0)
    if not words:
        assert study.run(two_sites(**changes), engine="reference").agreement.encoding.classes == ("a", "b", "c")
        return
    with pytest.raises(InvalidInput) as error:
        study.run(two_sites(**changes), engine="reference")
    for word in words:
        assert word in str(error.value)


def test_what_is_wrong_over_all_sites_is_refused_at_once() -> None:
    sites = {name: table.assign(z=3.0, y="a") for name, table in two_sites().items()}
    with pytest.raises(InvalidInput, match=r"column 'z' is constant.*two classes"):
        Study(target="y").run(sites)
    with pytest.raises(InvalidInput, match="no rows"):
        Study(target="y").run({"bonn": two_sites()["bonn"], "lyon": two_sites()["lyon"].iloc[:0]})
    with pytest.raises(InvalidInput, match="two sites"):
        Study(target="y").run({"bonn": two_sites()["bonn"]})


def test_without_penalty_dependent_columns_and_separated_classes_are_named() -> None:
    dependent = {name: table.assign(w=2 * table.x + 1) for name, table in two_sites().items()}
    with pytest.raises(InvalidInput, match=r"depend on each other"):
        Study(target="y", l2=0.0).run(dependent, engine="reference")
    separated = {name: table.assign(y=np.where(table.x > 0, "a", "b")) for name, table in two_sites().items()}
    with pytest.raises(InvalidInput, match="separates the classes"):
        Study(target="y", l2=0.0).run(separated, engine="reference")
    sound = Study(target="y", l2=0.0).run(two_sites(), engine="reference")
    np.testing.assert_allclose(sound.theta, pooled_optimum(sound, two_sites()), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "probit"}, "kind"),
        ({"tolerance": "se:0"}, "tolerance"),
        ({"tolerance": 2.0}, "tolerance"),
        ({"tolerance": "5 %"}, "tolerance"),
        ({"l2": -1.0}, "l2"),
        ({"features": "x"}, "features"),
        ({"evaluate": 1.0}, "evaluate"),
        ({"trainer": "adam"}, "trainer"),
        ({"min_cell": 0}, "min_cell"),
    ],
)
def test_settings_are_refused_before_any_site_is_asked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Study(target="y", **settings)


def test_a_site_that_does_not_accept_ends_the_study() -> None:
    members = {
        name: StudySite(name=name, table=table, accept=lambda agreement, name=name: name != "lyon")  # type: ignore[misc]
        for name, table in two_sites().items()
    }
    with pytest.raises(InvalidInput, match="not accepted by lyon"):
        conduct_study(InProcess(members), StudySettings(target="y"))


def test_nobody_is_asked_twice_about_an_agreement_that_is_sent_twice() -> None:
    """As after a reply that was lost, or came late; a new study with the same agreement asks again."""
    asked = []

    def refuse(agreement: Any) -> bool:
        asked.append(agreement)
        return False

    class Twice(InProcess):
        def exchange(self, requests: Mapping[str, Any], *, enough: int | None = None) -> Mapping[str, Any]:
            super().exchange(requests, enough=enough)
            return super().exchange(requests, enough=enough)

    members = {
        name: StudySite(name=name, table=table, accept=refuse if name == "lyon" else lambda agreement: True)
        for name, table in two_sites().items()
    }
    for studies in (1, 2):
        with pytest.raises(InvalidInput, match="not accepted by lyon"):
            conduct_study(Twice(members), StudySettings(target="y"))
        assert len(asked) == studies


def test_categories_that_are_no_feature_are_refused() -> None:
    tables = {site: pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0)}) for site in ("bonn", "lyon")}
    study = Study(target="y", kind="ridge", categorical=["colour"])
    with pytest.raises(InvalidInput, match=r"categorical names 'colour', which is not a feature"):
        study.run(tables, engine="reference")


def test_all_problems_of_settings_are_told_at_once() -> None:
    with pytest.raises(InvalidInput, match=r"(?s)3 problems.*kind.*min_cell.*evaluate"):
        Study(target="y", kind="probit", min_cell=0, evaluate=1.5)


def test_types_are_known_without_reading_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"n": [1.0, 2.0], "k": [1, 2], "t": ["a", "b"], "c": pd.Categorical(["u", "v"])})
    read: list[list[str]] = []
    right = tables.arrow_table

    def counted(frame: Any, columns: list[str]) -> Any:
        read.append(columns)
        return right(frame, columns)

    monkeypatch.setattr(tables, "arrow_table", counted)
    found = describe_table(table)
    assert dict(found.columns) == {"n": "number", "k": "number", "t": "category", "c": "category"}
    assert found.n_rows == 2
    assert read == [["n"]]
    with pytest.raises(InvalidInput, match="column 't' holds mostly"):
        describe_table(table.assign(t=["a", 1.0]))


def test_waiting_for_a_table_that_stays_wrong_fills_no_disk(tmp_path: Path) -> None:
    """The attempt begins anew in its folder each time, with nothing of what was answered before."""
    tables = deal(TABLES["wards"]()[0], 3, "even", seed=0)
    waits = 0

    class Mended(InProcess):
        def exchange(self, requests: Any, *, enough: int | None = None) -> Any:
            nonlocal waits
            if (tmp_path / "attempt-001" / "exchange-000001.npz").exists() or waits >= 3:
                return super().exchange(requests, enough=enough)
            waits += 1
            raise SiteProblems({"site 1": "the table of site 1 is wrong"})

    settings = StudySettings(target="y", evaluate=0.0)
    sites = {
        name: StudySite(name=name, table=table, policy=SitePolicy.for_simulation(), engine="reference")
        for name, table in tables.items()
    }
    result = conduct_study(Mended(sites), settings, folder=tmp_path, absent="wait", pause=0.0)
    assert result.reached
    assert waits == 3
    assert [path.name for path in tmp_path.glob("attempt-*")] == ["attempt-001"]


def test_the_default_penalty_is_that_of_a_fit_of_the_same_rows() -> None:
    frame, kind = TABLES["wards"]()
    sites = deal(frame, 3, "even", seed=1)
    result = Study(target="y", kind=kind, evaluate=0.0).run(sites, engine="reference")
    assert result.agreement.l2 == 1.0 / len(frame)
    rows = pd.concat([own.assign(site=site) for site, own in sites.items()])
    fit = fs.fit(rows, target="y", client="site", progress=False)
    found, expected = (one.summary().to_frame()["coef"] for one in (result, fit))
    np.testing.assert_allclose(found, expected[found.index], rtol=1e-6)

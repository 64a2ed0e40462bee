"""Studies in one process against the pooled table, which no part of a study ever sees."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation import Study, StudyResult
from fedscaffold.federation.study.plan import Column
from fedscaffold.federation.study.rows import SiteRows
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.study.transport import InProcess, SiteProblems
from tests.federation.study.tables import TABLES, deal


def pooled_optimum(result: StudyResult, sites: dict[str, pd.DataFrame]) -> Array:
    """The optimum on all rows together, with the encoding of the study."""
    rows = pd.concat(sites.values(), ignore_index=True)
    return SiteRows(rows, result.settings, b"").problem.optimum()


def relative_error(theta: Array, optimum: Array, slopes: Any) -> float:
    return float(np.linalg.norm((theta - optimum)[slopes]) / np.linalg.norm(optimum[slopes]))


@pytest.mark.parametrize(
    ("name", "n_sites", "how", "sums"),
    [("iris", 2, "even", "open"), ("iris", 12, "sizes", "secure"), ("wards", 5, "labels", "secure"),
     ("wards", 40, "sizes", "secure"), ("diabetes", 8, "features", "open"),
     ("breast cancer", 5, "labels", "secure")],
)  # fmt: skip
def test_the_model_is_the_pooled_one(name: str, n_sites: int, how: str, sums: Any) -> None:
    frame, kind = TABLES[name]()
    sites = deal(frame, n_sites, how, seed=1)
    result = Study(target="y", kind=kind, min_cell=1, l2="auto", sums=sums).run(sites, engine="reference")
    optimum = pooled_optimum(result, sites)
    slopes = result.trained.certificate.slopes
    assert result.reached
    assert relative_error(result.theta, optimum, slopes) <= 1e-6
    certified = result.certified_error["relative"]
    assert certified is not None
    assert relative_error(result.theta, optimum, slopes) <= 1.2 * certified <= 1e-6


@pytest.mark.parametrize("name", ["wards", "diabetes"])
def test_scaffold_needs_no_hessians(name: str) -> None:
    frame, kind = TABLES[name]()
    sites = deal(frame, 4, "features", seed=2)
    study = Study(target="y", kind=kind, hessians=False, l2="auto")
    result = study.run(sites, engine="reference")
    slopes = result.trained.certificate.slopes
    optimum = pooled_optimum(result, sites)
    assert result.reached
    assert result.trained.trainer == "scaffold"
    assert result.certified_error["standard_errors"] is None
    certified = result.certified_error["relative"]
    assert certified is not None
    assert relative_error(result.trained.certificate.theta, optimum, slopes) <= 1.2 * certified
    assert relative_error(result.theta, optimum, slopes) <= certified <= 0.005
    assert not {message.phase for message in result.received} & {"sums", "scores"}
    with pytest.raises(InvalidInput, match="Hessian"):
        result.summary()


def test_open_and_secure_sums_give_the_same_bits_and_scaffold_the_model_of_newton() -> None:
    frame, kind = TABLES["wards"]()
    sites = deal(frame, 3, "even", seed=3)
    choices: Any = (("scaffold", "secure"), ("scaffold", "open"), ("newton", "secure"))
    runs = [
        Study(target="y", kind=kind, trainer=trainer, sums=sums).run(sites, seed=5, engine="reference")
        for trainer, sums in choices
    ]
    np.testing.assert_array_equal(runs[0].theta, runs[1].theta)
    np.testing.assert_allclose(runs[0].theta, runs[2].theta, atol=1e-6)
    assert any("Scaffold ran" in note for note in runs[0].trained.notes)


def test_control_variates_of_all_sites_cancel() -> None:
    """Σ n_c ξ_c = 0 after every round but the last, whose result no site has heard of yet."""
    frame, kind = TABLES["wards"]()
    tables = deal(frame, 4, "labels", seed=3)
    sites = {name: StudySite(name=name, table=table, engine="reference") for name, table in tables.items()}
    plan = Study(target="y", kind=kind, trainer="scaffold").plan_for(tables)
    conduct(plan, InProcess(sites))
    notes: Any = {name: site.store.load_note("state") for name, site in sites.items()}
    states = {name: note["local"]["train"] for name, note in notes.items()}
    total = sum(len(tables[name]) * np.asarray(state["xi"]) for name, state in states.items())
    largest = max(np.abs(state["xi"]).max() for state in states.values())
    assert largest > 1e-3
    assert np.abs(total).max() <= 1e-9 * largest * len(frame)


def test_rows_left_out_judge_the_model() -> None:
    frame, kind = TABLES["breast cancer"]()
    sites = deal(frame, 4, "even", seed=1)
    result = Study(target="y", kind=kind, l2=0.01, evaluate=0.3).run(sites, seed=2, engine="reference")
    found = result.evaluation["all sites"]
    assert 0.25 * len(frame) < found.n_rows < 0.35 * len(frame)
    assert found.auc is not None
    assert found.auc > 0.97
    assert found.accuracy is not None
    assert found.accuracy > 0.93
    left = pd.concat([own[SiteRows(own, result.settings, f"site {k} of seed 2".encode()).left_out]
                      for k, own in enumerate(sites.values())])  # fmt: skip
    kept = {
        name: own[~SiteRows(own, result.settings, f"site {k} of seed 2".encode()).left_out]
        for k, (name, own) in enumerate(sites.items())
    }
    without = pooled_optimum(result, kept)
    test = SiteRows(left, result.settings, b"").problem
    penalty = 0.5 * float(test.penalty @ without**2)
    assert found.loss == pytest.approx(float(test.loss(without)) - penalty, rel=1e-6)
    other = Study(target="y", kind=kind, l2=0.01, evaluate=0.3).run(sites, seed=3, engine="reference")
    assert other.evaluation["all sites"].loss != found.loss


@pytest.mark.parametrize("name", ["iris", "diabetes"])
def test_classes_and_numbers_are_judged_too(name: str) -> None:
    frame, kind = TABLES[name]()
    study = Study(target="y", kind=kind, l2="auto", evaluate=0.3, sums="open", min_cell=3)
    if name == "iris":  # a site's 15 rows that are left out would be known from 15 coefficients' matrices
        with pytest.raises(InvalidInput, match=r"site-1: .*rows that are left out are too few"):
            study.run(deal(frame, 3, "even", seed=1), engine="reference")
        numbers = np.random.default_rng(0).normal(0.0, 0.1, (4 * len(frame), 4))
        frame = pd.concat([frame] * 4, ignore_index=True)
        frame.iloc[:, :4] += numbers
    result = study.run(deal(frame, 3, "even", seed=1), engine="reference")
    assert set(result.evaluation) == {"all sites", "site-0", "site-1", "site-2"}
    found = result.evaluation["all sites"]
    assert np.isfinite([found.loss, found.loss_error]).all()
    if name == "iris":
        assert found.table is not None
        assert found.accuracy is not None
        assert found.accuracy > 0.85


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


def study(**changes: Any) -> Study:
    return Study(**{"target": "y", "kind": "logistic", "sums": "open", **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"z": None}, ["lyon", "'z'", "no column"]),
        ({"z": "text"}, ["lyon", "'z'", "must hold numbers"]),
        ({"z": pd.Timestamp("2020-01-01")}, ["'z'", "lyon", "must hold numbers"]),
        ({"z": np.nan}, ["'z'", "missing values", "lyon"]),
        ({"z": np.inf}, ["lyon", "'z'", "infinite"]),
        ({"z": np.arange(60)}, ["lyon", "'z'", "identifier"]),
        ({"y": None}, ["lyon", "'y'"]),
    ],
)
def test_tables_that_do_not_fit_are_rejected_by_site_and_column(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidInput) as error:
        study().run(two_sites(**changes), engine="reference")
    for word in words:
        assert word in str(error.value)


def test_columns_that_the_plan_does_not_use_are_not_looked_at() -> None:
    assert study().run(two_sites(extra=1.0), engine="reference").reached
    assert study(features=["x"]).run(two_sites(z=None), engine="reference").coding.dim == 2


def test_units_and_levels_are_checked_against_the_codebook_at_the_site() -> None:
    columns = {"x": {"range": (-5, 5), "unit": "kg"}, "z": {}, "y": {"levels": ("a", "b")}}
    with pytest.raises(InvalidInput, match=r"lyon.*'x' has a mean outside.*-5 to 5 kg; check its unit"):
        study(columns=columns).run(two_sites(x=1000.0 + np.arange(60) % 7), engine="reference")
    with pytest.raises(InvalidInput, match=r"lyon.*'y' has the levels 'c', which the codebook does not list"):
        study(columns=columns).run(two_sites(y=["a", "b", "c"] * 20), engine="reference")


def test_problems_of_all_sites_together() -> None:
    with pytest.raises(InvalidInput, match="column 'z' is the same in all rows"):
        study().run({name: table.assign(z=3.0) for name, table in two_sites().items()})
    with pytest.raises(InvalidInput, match="the target 'y' has one level"):
        study().run({name: table.assign(y="a") for name, table in two_sites().items()})
    with pytest.raises(InvalidInput, match="no rows"):
        study().run({"bonn": two_sites()["bonn"], "lyon": two_sites()["lyon"].iloc[:0]})
    with pytest.raises(InvalidInput, match="two or more sites"):
        study().run({"bonn": two_sites()["bonn"]})


def test_dependent_columns_and_separated_classes_are_named() -> None:
    dependent = {name: table.assign(w=2 * table.x + 1) for name, table in two_sites().items()}
    with pytest.raises(InvalidInput, match=r"depend on each other"):
        study().run(dependent, engine="reference")
    separated = {name: table.assign(y=np.where(table.x > 0, "a", "b")) for name, table in two_sites().items()}
    with pytest.raises(InvalidInput, match="separates the classes"):
        study().run(separated, engine="reference")
    sound = study().run(two_sites(), engine="reference")
    np.testing.assert_allclose(sound.theta, pooled_optimum(sound, two_sites()), atol=1e-6)


def test_the_event_is_the_class_whose_odds_are_modelled() -> None:
    usual, other = (study(event=event).run(two_sites(), engine="reference") for event in (None, "a"))
    np.testing.assert_allclose(usual.theta, -other.theta, atol=1e-8)
    assert usual.coding.encoding.classes == ("a", "b")
    assert other.coding.encoding.classes == ("b", "a")


def test_the_kind_of_model_follows_from_the_type_of_the_target() -> None:
    assert Study(target="y", sums="open").plan_for(two_sites()).kind == "logistic"
    assert Study(target="x", sums="open").plan_for(two_sites()).kind == "ridge"
    columns = {"x": Column(), "y": Column(levels=("a", "b"))}
    assert Study(target="y", sums="open", columns=columns).plan_for(two_sites()).kind == "logistic"
    assert Study(target="x", sums="open", columns=columns).plan_for(two_sites()).kind == "ridge"


def test_a_site_that_does_not_accept_ends_the_study() -> None:
    members = {
        name: StudySite(name=name, table=table, accept=lambda plan, name=name: name != "lyon")  # type: ignore[misc]
        for name, table in two_sites().items()
    }
    with pytest.raises(SiteProblems, match="site lyon: its people"):
        conduct(study().plan_for(two_sites()), InProcess(members))


def test_missing_numbers_and_levels_can_be_filled_in() -> None:
    rng = np.random.default_rng(0)
    frame, kind = TABLES["wards"]()
    frame = frame.assign(
        age=frame["age"].where(rng.random(len(frame)) > 0.1),
        ward=frame["ward"].where(rng.random(len(frame)) > 0.1),
    )
    sites = deal(frame, 3, "even", seed=1)
    with pytest.raises(InvalidInput, match="missing values; fill them, or plan with missing='mean'"):
        Study(target="y", kind=kind).run(sites)
    result = Study(target="y", kind=kind, missing="mean").run(sites, engine="reference")
    rows = frame.assign(
        age=frame["age"].fillna(frame["age"].mean()),
        ward=frame["ward"].fillna("none"),
        ill=(frame["y"] == "well") * 1,
    )
    import statsmodels.formula.api as smf

    reference = result.settings.columns["ward"].reference
    pooled = smf.logit(f"ill ~ C(ward, Treatment('{reference}')) + dose + age", rows).fit(disp=0)
    found = dict(result.model.named_coefficients)
    assert found["age"] == pytest.approx(pooled.params["age"], rel=1e-6)
    missing = pooled.params[f"C(ward, Treatment('{reference}'))[T.none]"]
    assert found["ward missing"] == pytest.approx(missing, rel=1e-6)


def test_categories_that_are_not_features_are_rejected() -> None:
    tables = {site: pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0)}) for site in ("bonn", "lyon")}
    with pytest.raises(InvalidInput, match=r"categorical names 'colour', which is not a feature"):
        Study(target="y", kind="ridge", categorical=("colour",), sums="open").run(tables, engine="reference")


def test_a_category_of_numbers_is_read_alike_at_all_sites() -> None:
    rng = np.random.default_rng(1)
    tables = {
        site: pd.DataFrame({"code": rng.integers(1, 4, 90), "y": rng.normal(size=90)}).astype({"code": kind})
        for site, kind in (("bonn", "int64"), ("graz", "int32"), ("lyon", "str"))
    }
    result = Study(target="y", kind="ridge", categorical=("code",)).run(tables, engine="reference")
    assert result.settings.columns["code"].levels == ("1", "2", "3")

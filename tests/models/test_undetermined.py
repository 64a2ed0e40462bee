"""Tables that do not determine some coefficient without a penalty: the columns are named, in one sentence."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedscaffold as fs

ROWS = 300


def table(seed: int = 11) -> tuple[pd.DataFrame, np.random.Generator]:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"dose": rng.normal(size=ROWS), "site": rng.choice(list("PQRS"), ROWS)})
    return frame, rng


def refusal(frame: pd.DataFrame, **options: Any) -> str:
    with pytest.raises(fs.InvalidInput) as refused:
        fs.fit(frame, client="site", l2=0, progress=False, **options)
    return str(refused.value)


def test_a_category_with_one_class_only_is_named_not_a_plan() -> None:
    frame, rng = table()
    ill = rng.random(ROWS) < 0.5
    frame = frame.assign(ill=ill, ward=np.where(ill & (rng.random(ROWS) < 0.3), "intensive", "normal"))
    said = refusal(frame, target="ill")
    assert said.startswith("'ward=intensive' separates the classes, ")
    assert "plan" not in said


def test_a_category_without_any_count_is_named_not_a_plan() -> None:
    frame, rng = table()
    falls = rng.poisson(np.exp(0.3 * frame.dose))
    frame = frame.assign(falls=falls, ward=np.where((falls == 0) & (rng.random(ROWS) < 0.5), "empty", "normal"))
    said = refusal(frame, target="falls", kind="poisson")
    assert said.startswith("'ward=empty' goes with counts of 0 alone, ")
    assert "plan" not in said
    days = rng.uniform(1e-6, 1e-5, ROWS)  # small rates are no reason
    falls = rng.poisson(1e5 * days * np.exp(0.3 * frame.dose))
    small = frame.drop(columns="ward").assign(falls=falls, days=days)
    fitted = fs.fit(small, target="falls", client="site", kind="poisson", exposure="days", l2=0, progress=False)
    assert fitted.reached


def test_a_perfect_fit_is_not_called_unfinished() -> None:
    frame, _ = table()
    fitted = fs.fit(frame.assign(y=2.0 * frame.dose), target="y", client="site", l2=0, progress=False)
    assert fitted.reached
    assert not any("not reached" in note for note in fitted.summary().notes)


def test_clients_that_were_left_out_are_counted_in_words() -> None:
    frame, rng = table()
    frame = frame.assign(ill=(rng.random(ROWS) < 0.5) & (frame.site != "P"))
    fitted = fs.fit(frame, target="ill", client="site", l2=0, client_intercepts=True, progress=False)
    (note,) = [note for note in fitted.summary().notes if "left out" in note]
    assert note.startswith("1 client was left out, since its target never varies")


def test_columns_are_named_not_all_their_values() -> None:
    """Thirty values of a category that depend on another column are one name."""
    frame, rng = table()
    grade = rng.choice([f"g{k:02}" for k in range(30)], ROWS)
    frame = frame.assign(grade=grade, y=rng.normal(size=ROWS), same=np.where(grade < "g15", "low", "high"))
    said = refusal(frame, target="y", kind="ridge")
    assert "'grade'" in said
    assert "depend on each other" in said
    assert "grade=" not in said


def test_a_combination_of_columns_that_separates_is_named() -> None:
    """No column alone does; after a few Newton steps the direction has no curvature left."""
    frame, rng = table()
    frame = frame.assign(a=rng.normal(size=ROWS), b=rng.normal(size=ROWS))
    said = refusal(frame.assign(ill=frame.a + frame.b > 0.1), target="ill")
    assert "together separate the classes" in said
    assert all(repr(name) in said for name in ("a", "b"))


def test_columns_that_nearly_depend_on_each_other_are_fitted() -> None:
    """A correlation of 1 − 1e-8 leaves little curvature, but is no separation: statsmodels agrees."""
    import statsmodels.api as sm

    frame, rng = table()
    frame = frame.assign(twin=frame.dose + 1e-4 * rng.normal(size=ROWS), ill=rng.random(ROWS) < 0.5)
    fitted = fs.fit(frame, target="ill", client="site", l2=0, progress=False)
    X = sm.add_constant(frame[["dose", "twin"]])
    wanted = sm.Logit(frame.ill * 1.0, X).fit(disp=0, tol=1e-9)
    found = fitted.summary().to_frame().loc[["dose", "twin"]]
    assert (np.abs(found["coef"] - wanted.params[1:]) / wanted.bse[1:]).max() < 1e-6
    np.testing.assert_allclose(found["se"], wanted.bse[1:], rtol=1e-5)


def test_rare_outcomes_are_not_separated() -> None:
    """Three events in thirty thousand rows have little curvature everywhere."""
    rng = np.random.default_rng(0)
    n = 30_000
    frame = pd.DataFrame({"dose": rng.normal(size=n), "site": rng.choice(list("PQRS"), n)})
    frame["ill"] = np.isin(np.arange(n), [7, 11_000, 25_000])
    assert fs.fit(frame, target="ill", client="site", l2=0, progress=False).reached


def test_long_names_stay_different_in_the_summary() -> None:
    frame, rng = table()
    long = "the same long beginning of a column's name, "
    frame = frame.assign(**{f"{long}{k}": rng.normal(size=ROWS) for k in "ab"}, y=rng.normal(size=ROWS))
    text = str(fs.fit(frame, target="y", client="site", l2=0, progress=False).summary())
    assert f"{long}a " in text
    assert f"{long}b " in text

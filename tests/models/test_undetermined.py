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
    assert said.startswith("'ward=intensive' separates the classes: for ")
    assert "plan" not in said


def test_a_category_without_any_count_is_named_not_a_plan() -> None:
    frame, rng = table()
    falls = rng.poisson(np.exp(0.3 * frame.dose))
    frame = frame.assign(falls=falls, ward=np.where((falls == 0) & (rng.random(ROWS) < 0.5), "empty", "normal"))
    said = refusal(frame, target="falls", kind="poisson")
    assert said.startswith("'ward=empty' goes with counts of 0 alone: for ")
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
    assert note.startswith("1 client was left out: its target never varies")

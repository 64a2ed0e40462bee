"""`Fit.report`: the page about a fit has its numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedscaffold as fs
from fedscaffold.inference.summary import number
from tests.hospitals import cancer, diabetes
from tests.reports.pages import Page


@pytest.fixture(scope="module", params=["ridge", "logistic"])
def fitted(request: pytest.FixtureRequest) -> tuple[fs.models.Fit, pd.DataFrame]:
    frame, target = (diabetes(), "target") if request.param == "ridge" else (cancer(), "diagnosis")
    return fs.fit(frame, target=target, client="hospital", l2=0.01), frame


def written(fit: fs.models.Fit, folder: Path) -> str:
    fit.report(folder / "report.html")
    assert [file.name for file in folder.iterdir()] == ["report.html"]
    return (folder / "report.html").read_text()


def test_the_page_is_one_file_with_the_fits_numbers(fitted: Any, tmp_path: Path) -> None:
    fit, _ = fitted
    text = written(fit, tmp_path)
    page = Page(text)
    assert "http" not in text.replace("http://www.w3.org", "")
    assert page.facts["trainer"] == "newton"
    assert page.facts["exchanges with all clients"] == str(fit.rounds)
    assert page.facts["tolerance"] == "se:0.05, reached"
    assert page.facts["penalty l2"] == "0.01"
    assert fit.trained.notes[0] in page.words
    cells, summary = [words for tag, words in page.texts if tag == "td"], fit.summary()
    at = cells.index(number(summary.coef[0]))
    assert cells[at + 1 : at + 3] == [number(summary.se[0]), f"{summary.z[0]:.2f}"]
    assert "Error by exchange" in text


def test_scores_of_tables_are_on_the_page(fitted: Any, tmp_path: Path) -> None:
    fit, _ = fitted
    page = Page(written(replace(fit, evaluation={"new.csv": {"rmse": 3.25}}), tmp_path))
    assert "Scores on new.csv" in page.words
    assert page.facts["rmse"] == "3.25"


def test_results_show_themselves(fitted: Any) -> None:
    fit, _ = fitted
    for shown in (fit, fit.model):
        assert max(map(len, repr(shown).splitlines())) <= 80
        assert shown == shown
        assert shown != 0
    assert "4" in fit._repr_html_()

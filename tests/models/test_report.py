"""`Fit.report` from Python, and the numbers on its page, computed in another way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedscaffold.models.planning.distance import slope_length
from fedscaffold.models.report import ReportInputs, compared_report
from sklearn.datasets import load_diabetes
from sklearn.metrics import log_loss, mean_absolute_error, r2_score, roc_auc_score

import fedscaffold as fs
from fedscaffold.models.fit import run_fit
from fedscaffold.models.metrics import training_metrics
from fedscaffold.reports.page import render
from tests.hospitals import cancer, diabetes, written
from tests.reports.pages import Page

SETTINGS = fs.models.FitSettings(tolerance=0.05, seed=3)


@pytest.fixture(scope="module", params=["ridge", "logistic"])
def fitted(request: pytest.FixtureRequest) -> tuple[fs.models.Fit, pd.DataFrame]:
    frame, target = (diabetes(), "target") if request.param == "ridge" else (cancer(), "diagnosis")
    problem = fs.data.from_frame(
        frame, target=target, client="hospital", kind=request.param, l2=0.01, standardize=True, intercept=True
    )
    return fs.models.fit(problem, settings=SETTINGS, progress=False), frame


def test_the_page_is_one_file_with_the_fits_numbers(fitted: Any, tmp_path: Path) -> None:
    fit, frame = fitted
    fit.report(tmp_path / "report.html", test=written(frame, tmp_path / "test.csv"), progress=False)
    page = (tmp_path / "report.html").read_text()
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".html"] == ["report.html"]
    assert f"{fit.relative_distance:.2%}" in page
    assert "FitSettings(tolerance=0.05" in page
    assert "test.csv" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_metrics_on_fitted_rows_are_those_of_scikit_learn(fitted: Any) -> None:
    fit, frame = fitted
    found = training_metrics(fit.planned, fit.theta)
    if fit.model.classes is None:
        predicted = fit.model.predict(frame)
        assert found["rmse"] == pytest.approx(float(np.sqrt(np.mean((frame.target - predicted) ** 2))))
        assert found["mae"] == pytest.approx(mean_absolute_error(frame.target, predicted))
        assert found["r2"] == pytest.approx(r2_score(frame.target, predicted))
    else:
        shares = fit.model.predict_proba(frame)
        assert found["accuracy"] == np.mean(fit.model.predict(frame) == frame.diagnosis)
        assert found["log loss"] == pytest.approx(log_loss(frame.diagnosis, shares))
        assert found["AUC"] == pytest.approx(roc_auc_score(frame.diagnosis == "malignant", shares[:, 1]))


def test_costs_and_client_losses_computed_by_hand(fitted: Any) -> None:
    fit, frame = fitted
    report = compared_report(fit, ReportInputs.of_fit(fit), progress=False)
    page, dim, rounds = Page(render("fit", report=report)), fit.planned.problem.dim, fit.trace.rounds
    cost = page.facts
    kilobytes = 2 * rounds * dim * 8 / 1000  # one vector there and one back in every round
    size = f"{kilobytes:.3g} kB" if kilobytes >= 1 else f"{1000 * kilobytes:.0f} bytes"
    assert cost["per client"] == f"{2 * rounds} vectors of {dim} numbers, {size}"
    assert cost["all clients"].startswith(f"{4 * kilobytes:.3g} kB")
    columns = len(frame.columns) - 2
    assert cost["for comparison"] == f"the features themselves are {len(frame) * columns * 8 / 1000:.3g} kB"

    l2 = 0.01 / 2 * fit.planned.loss_scale * float(np.square(fit.theta[:-1]).sum())
    losses = report.comparison.scaffold.client_losses
    for name, found in zip(fit.planned.problem.client_names, losses, strict=True):
        own = frame[frame.hospital == name]
        assert page.row(name)[1:3] == [str(len(own)), f"{found:.4g}"]
        if fit.model.classes is None:
            data_loss = float(np.mean((own.target - fit.model.predict(own)) ** 2)) / 2
        else:
            data_loss = log_loss(own.diagnosis, fit.model.predict_proba(own), labels=list(fit.model.classes))
        assert found == pytest.approx(data_loss + l2, rel=1e-9)
    loss = float(fit.planned.problem.sizes @ losses) / len(frame)
    assert report.comparison.scaffold.loss == pytest.approx(loss)
    assert page.row("Scaffold, closed")[1] == f"{loss:.6g}"


def test_the_predicted_curve_is_that_of_the_plan_and_of_a_run_without_noise() -> None:
    """Of ridge regression with full gradients the plan's quadratic model is exact."""
    loaded = load_diabetes(as_frame=True)
    owners = fs.data.partition.dirichlet(loaded.target > 140, n_clients=5, alpha=0.5, seed=0)
    frame = loaded.data.assign(hospital=owners, progression=loaded.target)
    fit = fs.fit(frame, target="progression", client="hospital", progress=False)
    assert fit.planned.batch_size is None
    report = compared_report(fit, ReportInputs.of_fit(fit), progress=False)
    assert report.predicted is not None
    norm = slope_length(fit.planned.problem, fit.planned.optimum)
    np.testing.assert_allclose(report.predicted, np.sqrt(fit.trace.mse[0]) / norm, rtol=1e-6)


def test_rounds_beyond_the_plan_are_reported(fitted: Any) -> None:
    fit, _ = fitted
    longer = run_fit(replace(fit.planned, rounds=2), SETTINGS, progress=False)
    assert longer.trace.rounds > 2
    report = compared_report(longer, ReportInputs.of_fit(longer), progress=False)
    assert f"{longer.trace.rounds - 2} more rounds were run." in render("fit", report=report)


def test_results_compare_show_and_draw_themselves(fitted: Any) -> None:
    fit, _ = fitted
    comparison = fit.compare(progress=False)
    for shown in (fit, fit.model, comparison, comparison.fedavg, fit.trace):
        assert max(map(len, repr(shown).splitlines())) <= 80
        assert shown == shown
        assert shown != 0
    assert f"{fit.relative_distance:.2%}" in fit._repr_html_()
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in comparison.plot().get_lines()}
    np.testing.assert_array_equal(lines["Scaffold"], fit.relative_distances)
    assert lines["FedAvg"][-1] == pytest.approx(comparison.fedavg.relative_distance)
    assert lines["tolerance"][0] == SETTINGS.tolerance
    ax = fit.plot()
    assert fit.trace.plot(ax) is ax

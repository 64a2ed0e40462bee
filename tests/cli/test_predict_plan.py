"""`fedscaffold predict` and `fedscaffold plan`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedscaffold import FedLin, Scaffold, problems, theory
from fedscaffold.cli.main import app
from tests.hospitals import cancer, written

runner = CliRunner()
SMALL = ["--clients", "4", "--local-steps", "20", "--rounds", "10"]


@pytest.mark.parametrize("method", ["scaffold", "fedlin"])
def test_it_predicts_what_the_library_predicts(method: str, tmp_path: Path) -> None:
    plot = tmp_path / "p.svg"
    result = runner.invoke(app, ["predict", *SMALL, "--method", method, "--simulate", "3", "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    kind = Scaffold if method == "scaffold" else FedLin
    chosen = kind(step_size=0.05, local_steps=20)
    expected = theory.predict(problems.paper("regression", n_clients=4), chosen, batch_size=10, rounds=10)
    assert expected.curve is not None
    assert f"{expected.mse:.4g}" in result.output
    assert f"{expected.curve[-1]:.4g}" in result.output
    assert "simulated, round 10" in result.output
    for text in ("predicted", "simulated", "round"):
        assert text in plot.read_text()


def test_a_setting_that_the_theorem_covers_shows_its_bound(tmp_path: Path) -> None:
    plot = tmp_path / "p.svg"
    options = ["--step-size", "1e-5", "--local-steps", "2", "--problem", "regression:l2=1", "--batch-size", "full"]
    result = runner.invoke(app, ["predict", "--clients", "4", "--rounds", "5", *options, "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    assert "at most" in result.output
    assert "Theorem 4.9" in plot.read_text()


def test_plan_explains_and_draws(tmp_path: Path) -> None:
    plot = tmp_path / "p.png"
    result = runner.invoke(app, ["plan", "100", "--clients", "4", "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    assert "Run Scaffold with step_size=" in result.output
    assert "target 100; exact" in result.output
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("budgets", ["8", pytest.param("2,8", marks=pytest.mark.slow)])
def test_plans_under_privacy_budgets(budgets: str, tmp_path: Path) -> None:
    visits = cancer()[["mean radius", "hospital", "diagnosis"]][::4]
    table = written(visits, tmp_path / "visits.csv")
    asked = ["plan", str(table), "--target", "diagnosis", "--client", "hospital", "--set", "max_rounds=4"]
    plot = tmp_path / "p.svg"
    result = runner.invoke(app, [*asked, "--epsilon", budgets, "--set", "delta=1e-3", "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    for budget in budgets.split(","):
        assert f"({budget}, 0.001)-differentially private" in result.output
    assert "privacy budget" in plot.read_text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--epsilon", "0", "--set", "delta=1e-3"], "--epsilon must be a positive number"),
        (["--epsilon", "x", "--set", "delta=1e-3"], "--epsilon must be numbers with commas"),
        (["--epsilon", "1", "--set", "delta=0.5"], "delta must be below"),
        (["--epsilon", "1", "--mode", "sharp"], "--mode is for plans without a privacy budget"),
        (["--set", "delta=0.1"], "delta requires --epsilon"),
    ],
)
def test_budgets_that_cannot_be(more: list[str], message: str, tmp_path: Path) -> None:
    table = written(cancer()[["mean radius", "hospital", "diagnosis"]], tmp_path / "visits.csv")
    result = runner.invoke(app, ["plan", str(table), "--target", "diagnosis", "--client", "hospital", *more])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["predict", "--method", "x"], "--method must begin with one of"),
        (["predict", "--plot", "p.gif"], "--plot must end in"),
        (["predict", "--plot", "missing/p.png"], "there is no folder"),
        (["predict", "--rounds", "0"], "rounds must be"),
        (["predict", "--simulate", "-1"], "simulate must be"),
        (["predict", "--batch-size", "x"], "a whole number or 'full'"),
        (["predict", "--clients", "4", "--step-size", "10"], "does not contract"),
        (["plan", "0"], "the squared error to reach must be a positive number"),
        (["plan", "1", "--mode", "x"], "--mode must be"),
        (["plan", "1", "--problem", "x"], "--problem must be one of 'regression', 'classification'"),
        (["plan", "1", "--clients", "4", "--set", "max_rounds=1", "--set", "max_local_steps=1"], "out of reach"),
    ],
)
def test_refusals(command: list[str], message: str) -> None:
    result = runner.invoke(app, command)
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_methods_are_refused_in_the_words_of_the_command() -> None:
    result = runner.invoke(app, ["plan", "1.0", "--clients", "4", "--methods", "sgd"])
    assert result.exit_code == 2
    assert "--methods must be one of 'scaffold', 'scaffold_average'" in result.output
    result = runner.invoke(app, ["plan", "1.0", "--clients", "4", "--methods", "all", "--mode", "sharp"])
    assert result.exit_code == 2
    assert "--mode is for one method" in result.output

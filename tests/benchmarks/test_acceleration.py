"""The study of √κ communications: its problems, crossings, claims, and a small run."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import acceleration
from benchmarks.acceleration import (
    FEDLIN,
    LONG,
    RECIPES,
    SHORT,
    SKIP,
    AccelerationRun,
    AccelerationSettings,
    Part,
    Point,
    all_cells,
    claims,
    crossing_with_error,
    figures,
    save,
    simulate,
    stiff,
)
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import folder_at
from fedscaffold.methods import FedLin, ProxSkip, Scaffold
from fedscaffold.paper.verify.table1 import crossing

SMALL = AccelerationSettings(conditions=(4.0, 8.0, 16.0), clients=(2, 4, 8))


@pytest.mark.parametrize("condition", [10.0, 1000.0])
def test_clients_are_as_stiff_as_asked_and_differ(condition: float) -> None:
    problem = stiff(condition, n_clients=5)
    hessians = problem.client_hessians(np.zeros(problem.dim))
    eigenvalues = np.linalg.eigvalsh(hessians)
    np.testing.assert_allclose(eigenvalues[:, 0], 1 / condition, rtol=1e-9)
    np.testing.assert_allclose(eigenvalues[:, -1], 1.0, rtol=1e-9)
    assert np.linalg.eigvalsh(hessians.mean(axis=0))[0] == pytest.approx(1 / condition)
    first, second = hessians[:2]
    assert np.abs(first @ second - second @ first).max() > 0.01  # they do not commute


def test_where_an_error_crosses_its_target() -> None:
    errors = np.array([8.0, 4.0, 2.0, 1.0, 3.0])
    assert crossing(errors, 4.0) == pytest.approx(1.0)
    assert crossing(errors, math.sqrt(2.0) * 2.0) == pytest.approx(1.5)
    assert math.isnan(crossing(errors, 0.5))
    assert math.isnan(crossing(errors, 9.0))  # nothing to do
    found, spread = crossing_with_error(np.array([errors, errors, errors]), 2.0)
    assert found == pytest.approx(2.0)
    assert spread == pytest.approx(0.0, abs=1e-12)


def test_recipes_go_as_far_between_rounds_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "_parts", lambda length, seed: (1.0, 0.1))  # of predictions, which take long
    found = {(cell.part, cell.recipe, cell.condition, cell.n_clients): cell for cell in all_cells(SMALL)}
    for cell in found.values():
        if cell.part in ("condition", "clients"):
            assert cell.method.step_size * cell.steps == pytest.approx(cell.length, rel=0.1)
            assert cell.length == pytest.approx(1.0 if cell.recipe in (SHORT, FEDLIN) else cell.condition**0.5)
    kinds = {SHORT: Scaffold, LONG: Scaffold, SKIP: ProxSkip, FEDLIN: FedLin}
    assert all(isinstance(cell.method, kinds[cell.recipe]) for cell in found.values())
    steps = [found["clients", LONG, 4.0, n].method.step_size for n in (2, 4, 8)]
    np.testing.assert_allclose(steps, [0.02, 0.04, 0.08])
    assert len({cell.label for cell in found.values()}) == len(found)


def test_settings_that_cannot_give_a_slope_are_refused() -> None:
    for wrong in ({"conditions": (10.0, 100.0)}, {"conditions": (1.0, 10.0, 100.0)}, {"clients": (2, 4)}):
        with pytest.raises(InvalidInput, match=r"(three|3) or more"):
            AccelerationSettings(**wrong)


def points(exponent: float = 0.5, speed_up: float = -1.0, fedlin_reaches: bool = False) -> list[Point]:
    """Points that follow power laws, on a study of which every claim holds by default."""
    found = []

    def add(part: Part, recipe: str, condition: float, n: int, length: float, rounds: float, gamma: float) -> None:
        method = acceleration.made(recipe, gamma, length)
        cell = AccelerationRun(
            part=part, recipe=recipe, condition=condition, n_clients=n, length=length, method=method, target=0.005,
            rounds=10, repetitions=1,
        )  # fmt: skip
        found.append(Point(cell, rounds, 0.1, rounds if recipe in (SHORT, LONG) else math.nan))

    for condition in FULL.conditions:
        for recipe in RECIPES:
            power = exponent if recipe in (LONG, SKIP) else 1.0
            add("condition", recipe, condition, 16, 1.0, 3.0 * condition**power, 0.02)
    for length in acceleration.LENGTHS:
        for recipe in (LONG, SKIP, FEDLIN):
            lost = recipe == FEDLIN and length > 8 and not fedlin_reaches
            add("length", recipe, 1000.0, 16, length, math.nan if lost else 3000.0 / length, 0.02)
    for n in FULL.clients:
        for recipe in RECIPES:
            add("clients", recipe, 100.0, n, 1.0, 40.0 * (n / 10.0) ** (1.0 + speed_up), n * 1e-5)
        for recipe in (SHORT, LONG, SKIP):
            long = recipe != SHORT
            add("logistic", recipe, 80.0, n, 1.0, 40.0, 1e-3 / (100.0 / n + (1.0 if long else 0.7)))
    return found


FULL = AccelerationSettings()


def test_all_claims_hold_where_they_should() -> None:
    found = claims(points(), FULL)
    assert [claim.holds for claim in found] == [True] * 10, [c for c in found if not c.holds]
    assert "exponent 0.500" in found[0].measured
    numbers = figures(points(), FULL)
    assert numbers["condition"]["scaffold_long"]["measured"]["exponent"] == pytest.approx(0.5)
    assert numbers["longest"] == {"scaffold_long": 256.0, "proxskip": 256.0, "fedlin": 8.0}


@pytest.mark.parametrize(
    ("study", "broken"),
    [
        (points(exponent=0.7), [0, 2]),
        (points(exponent=1.2), [0, 2, 5]),  # and above what is proved
        (points(speed_up=-0.8), [6, 7]),
        (points(fedlin_reaches=True), [4]),
    ],
)
def test_claims_can_fail(study: list[Point], broken: list[int]) -> None:
    assert [k for k, claim in enumerate(claims(study, FULL)) if claim.holds is False] == broken


@pytest.mark.slow
def test_a_small_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """√κ against κ is visible with three condition numbers."""
    monkeypatch.setattr(acceleration, "LENGTHS", (1.0, 4.0))
    monkeypatch.setattr(acceleration, "LOGISTIC_TARGET", 0.2)
    monkeypatch.setattr(acceleration, "MOST_RUNS", 3)
    monkeypatch.setattr(acceleration, "FEW_CLIENTS", 4)
    monkeypatch.setattr(acceleration, "_parts", lambda length, seed: (1.0, 0.1))
    monkeypatch.setattr(acceleration, "SECONDS", 0)
    out = tmp_path / "out"
    settings = AccelerationSettings(conditions=(4.0, 9.0, 16.0), clients=(2, 4, 8))
    points = simulate(settings, scratch=folder_at(tmp_path / "unfinished"))
    save(points, claims(points, settings), settings, folder_at(out))
    names = {file.name for file in out.iterdir()}
    assert names == {f"acceleration.{end}" for end in ("png", "svg", "csv", "parquet")} | {"claims.json"}
    frame = pd.read_parquet(out / "acceleration.parquet")
    assert len(frame) == 3 * 4 + 2 * 3 + 3 * 4 + 3 * 3
    rounds = frame[frame["part"] == "condition"].pivot_table(index="condition", columns="recipe", values="rounds")
    growth = np.log(rounds.loc[16.0] / rounds.loc[4.0]) / np.log(4.0)
    assert growth[SHORT] == pytest.approx(1.0, abs=0.25)
    assert growth[LONG] == pytest.approx(0.5, abs=0.25)
    scaffold = frame[frame["recipe"] == LONG]
    assert (scaffold["rounds"] / scaffold["rounds_predicted"]).median() == pytest.approx(1.0, abs=0.1)

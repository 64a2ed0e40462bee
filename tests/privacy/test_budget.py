"""A budget on a client's disk: counted before the steps, refused when spent, never forgotten."""

import json
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

import fedscaffold as fs
from fedscaffold.privacy import BudgetSpent, PrivacyBudget, epsilon


def budget(folder: Path, **changes: object) -> PrivacyBudget:
    setting = {"epsilon": 2.0, "delta": 1e-3, "noise_multiplier": 30.0, "records": 200, **changes}
    return PrivacyBudget(file=folder / "budget.json", **setting)  # type: ignore[arg-type]


def test_it_is_spent_step_by_step_and_then_refused(tmp_path: Path) -> None:
    own = budget(tmp_path)
    assert own.spent == 0.0
    allowed = own.steps_left
    assert epsilon(noise_multiplier=30.0, delta=1e-3, steps=allowed) <= 2.0
    assert epsilon(noise_multiplier=30.0, delta=1e-3, steps=allowed + 1) > 2.0
    own.spend(allowed - 1)
    again = budget(tmp_path)  # another process
    assert again.steps_left == 1
    with pytest.raises(BudgetSpent, match=r"2 more steps would spend ε = 2.* of a budget of 2; 1 are left"):
        again.spend(2)
    again.spend(1)
    assert again.steps == allowed
    with pytest.raises(BudgetSpent, match="0 are left"):
        again.spend(1)


def test_another_setting_does_not_forget(tmp_path: Path) -> None:
    own = budget(tmp_path)
    own.spend(3)
    for change in ({"epsilon": 4.0}, {"noise_multiplier": 60.0}, {"records": 201}):
        with pytest.raises(fs.InvalidInput, match="another table or other noise"):
            replace(own, **change).spend(1)
    assert own.steps == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"what": "x", "setting": {}, "steps": 1}), "x"])
def test_damaged_files_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "budget.json").write_text(text)
    with pytest.raises(fs.InvalidInput):
        budget(tmp_path).spend(1)


def test_threads_together_do_not_overspend(tmp_path: Path) -> None:
    own = budget(tmp_path)
    threads = [Thread(target=own.spend, args=(2,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own.steps == 16


def test_nonsense_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(fs.InvalidInput, match="epsilon must be a positive number"):
        budget(tmp_path, epsilon=0.0)
    with pytest.raises(fs.InvalidInput, match="delta must be below"):
        budget(tmp_path, delta=0.1)
    with pytest.raises(fs.InvalidInput, match="steps must be"):
        budget(tmp_path).spend(0)

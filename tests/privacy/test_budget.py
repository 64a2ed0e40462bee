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
    for change in ({"delta": 1e-4}, {"records": 201}, {"adjacency": "remove"}):
        with pytest.raises(fs.InvalidInput, match="another table, δ or adjacency"):
            replace(own, **change).spend(1)
    assert own.steps == 3


def test_what_was_spent_counts_towards_another_epsilon(tmp_path: Path) -> None:
    own = budget(tmp_path)
    own.spend(own.steps_left)
    larger = replace(own, epsilon=4.0)
    assert larger.steps_left == budget(tmp_path / "new", epsilon=4.0).steps_left - own.steps
    larger.spend(larger.steps_left)
    assert 3.9 < larger.spent <= 4.0
    with pytest.raises(BudgetSpent, match=r"1 more steps would spend ε = 4\.\d+ of a budget of 2; 0 are left"):
        own.spend(1)


def test_a_run_may_spend_its_part_and_all_runs_together_the_whole(tmp_path: Path) -> None:
    first = budget(tmp_path, run="first", run_epsilon=1.0)
    second = replace(first, run="second", run_epsilon=1.8, noise_multiplier=20.0)
    first.spend(first.steps_left)
    assert 0.95 < first.spent <= 1.0
    with pytest.raises(BudgetSpent, match=r"of a run's part of 1; 0 are left"):
        first.spend(1)
    alone = budget(tmp_path / "new", noise_multiplier=20.0, epsilon=1.8).steps_left
    assert 0 < second.steps_left < alone  # since both together may spend 2
    second.spend(second.steps_left)
    assert 1.9 < second.spent <= 2.0
    assert first.spent == second.spent
    with pytest.raises(BudgetSpent, match="of a budget of 2"):
        second.spend(1)
    lines = [json.loads(line) for line in (tmp_path / "budget.json").read_text().splitlines()]
    assert lines[1:] == [
        {"run": "first", **first.parts[0]._asdict()}, {"run": "second", **first.parts[1]._asdict()},
    ]  # fmt: skip


def test_steps_with_other_noise_add_up(tmp_path: Path) -> None:
    """Twice the noise costs a quarter: as many steps are left as if all had been taken with it."""
    own = budget(tmp_path)
    own.spend(5)
    softer = replace(own, noise_multiplier=60.0)
    assert softer.steps_left == budget(tmp_path / "new", noise_multiplier=60.0).steps_left - 20
    softer.spend(20)
    softer.spend(4)
    assert [part.steps for part in own.parts] == [5, 24]
    assert own.steps == 29
    assert own.spent == pytest.approx(epsilon(noise_multiplier=30.0, delta=1e-3, steps=11), rel=1e-9)
    with pytest.raises(BudgetSpent):
        own.spend(own.steps_left + 1)


def test_batches_and_steps_on_all_records_compose_as_dp_accounting_composes_them(tmp_path: Path) -> None:
    import dp_accounting as dp
    from dp_accounting import rdp

    batches = budget(tmp_path, noise_multiplier=8.0, batch_size=10)
    batches.spend(40)
    everything = replace(batches, noise_multiplier=50.0, batch_size=None)
    everything.spend(3)
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(1.0, 10 / 200, dp.GaussianDpEvent(4.0)), 40)
    accountant.compose(dp.GaussianDpEvent(25.0), 3)
    assert everything.spent == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-12)
    assert everything.spent == batches.spent
    alone = epsilon(noise_multiplier=8.0, delta=1e-3, steps=40, batch_size=10, records=200)
    assert everything.spent > alone


@pytest.mark.parametrize(
    "text", ["", "\n", "[]\n", "[]", "{}\n", "{}", json.dumps({"what": "x", "setting": {}, "steps": 1}), "x"]
)
def test_damaged_files_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "budget.json").write_text(text)
    with pytest.raises(fs.InvalidInput):
        budget(tmp_path).spend(1)


def test_a_budget_is_one_by_whatever_name_it_is_reached(tmp_path: Path) -> None:
    """Neither a symbolic nor a hard link has a budget of its own, nor do both have locks of their own."""
    own = budget(tmp_path)
    own.spend(1)
    (tmp_path / "other").mkdir()
    names = {"soft": tmp_path / "other" / "soft.json", "hard": tmp_path / "other" / "hard.json"}
    names["soft"].symlink_to(tmp_path / "budget.json")
    names["hard"].hardlink_to(tmp_path / "budget.json")
    for k, name in enumerate(names.values()):
        replace(own, file=name).spend(1)
        assert own.steps == k + 2
    links = [replace(own, file=file) for file in names.values()] * 4
    threads = [Thread(target=link.spend, args=(2,)) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own.steps == 3 + 16


def test_a_line_that_was_cut_off_was_not_paid_with(tmp_path: Path) -> None:
    own = budget(tmp_path)
    own.spend(2)
    with (tmp_path / "budget.json").open("a") as file:
        file.write('{"run": "", "noise_mul')
    assert own.steps == 2
    own.spend(3)
    assert own.steps == 5


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

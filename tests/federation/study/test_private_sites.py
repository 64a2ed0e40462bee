"""Studies whose budget protects whole sites: nothing of a table leaves a site but clipped changes with noise."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedscaffold.federation.secure_sum.fixed_point import FixedPoint
from fedscaffold.federation.study.messages import SiteProblems
from fedscaffold.federation.study.private.at_site import with_budget
from fedscaffold.federation.study.secure.ranges import FINEST, largest_part, range_of
from fedscaffold.models.private.sites import site_plan

import fedscaffold as fs
from fedscaffold.federation import (
    ProblemTask,
    Refusal,
    RefusalCode,
    RunConfig,
    SitePolicy,
    Study,
    handle_request,
    initial_ledger,
    train_request,
    write_site_page,
)
from fedscaffold.federation.client.files import ClientStateFile, SiteFolder
from fedscaffold.federation.client.protection import PartOfSum
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.server.ledger import next_ledger
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import SECURE_STEPS, InProcess, conduct_study
from fedscaffold.privacy import ClientLevel, PrivacyBudget, RecordLevel, epsilon
from fedscaffold.privacy.settings import PrivacySettings
from tests.federation.study.secure import Watched
from tests.federation.study.secure import conduct as conduct_watched
from tests.models.test_private_fit import BOUNDS, visits

SIZES = {"bonn": 300, "graz": 150, "kiel": 600, "metz": 45}
OPENING = 3  # exchanges before the first sum: greet, peers, agree


def tables(**sizes: int) -> dict[str, pd.DataFrame]:
    found = {**SIZES, **sizes}
    return {site: visits(k, n).drop(columns=["site", "unused"]) for k, (site, n) in enumerate(found.items())}


def study(**more: Any) -> Study:
    usual = {"target": "ill", "epsilon": 3.0, "delta": 1e-2, "l2": 0.1, "protect": "sites", "bounds": BOUNDS}
    return Study(**{**usual, **more})


@pytest.fixture(autouse=True)
def short_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds at most: the search for the best has tests of its own."""
    monkeypatch.setattr("fedscaffold.models.private.sites.ROUNDS", (3,))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "secure"])
def result(request: Any) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedscaffold.models.private.sites.ROUNDS", (3,))
        return study(secure=request.param).run(tables(), engine="reference")


def test_nothing_tells_how_many_rows_a_site_has(result: Any) -> None:
    for site, log in result.log.items():
        assert {entry["phase"] for entry in log} <= {"greet", "peers", "agree", "train", "finish"}, site
        assert log[0]["values"]["body"]["n_rows"] is None
        told = json.dumps([entry["values"] for entry in log])
        assert '"n_rows": null' in told
        assert f": {SIZES[site]}" not in told
    assert result.for_sites()["rows"] is None
    assert "rows" not in result._facts()
    assert "number of rows included" in result.explain()


def test_messages_of_another_table_differ_in_their_vectors_alone(result: Any) -> None:
    """Another table with other rows, and other numbers of them, in place of one site's."""
    other: Any = study(secure=result.settings.secure).run(tables(kiel=78), engine="reference")
    for site in SIZES:
        one, two = ([(e["phase"], e["bytes"]) for e in run.log[site]] for run in (result, other))
        assert (
            one[1:-1] == two[1:-1]
        )  # but for the greeting's keys and the final model, which are as long as they are
    assert other.training.plan == result.training.plan


def test_pages_and_files(result: Any, tmp_path: Path) -> None:
    result.save(tmp_path)
    page = (tmp_path / "report.html").read_text()
    plan = result.training.plan
    for words in (
        "every site protected",
        "What protects every site",
        f"{plan.noise_in_mean:.3g} in every coordinate",
    ):
        assert words in page, words
    assert "every row" not in page
    assert json.loads((tmp_path / "results.json").read_text())["privacy"]["protects"] == "every site"
    write_site_page(
        result.log["bonn"],
        tmp_path / "bonn.html",
        site="bonn",
        agreement=result.agreement,
        result=result.for_sites(),
    )
    assert "privacy budget of every site" in (tmp_path / "bonn.html").read_text()


def test_without_noise_secure_sums_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscaffold.federation.client.protection.secret_normals", np.zeros)
    plain, secure = (study(secure=which, clip=10.0).run(tables(), engine="reference") for which in (False, True))
    method: Any = plain.training
    assert method.plan.rounds == 3
    monkeypatch.setattr(
        "fedscaffold.federation.study.private.conduct.site_plan",
        lambda *args, **more: replace(site_plan(*args, **more), method=method.plan.method),
    )
    again = study(secure=True, clip=10.0).run(tables(), engine="reference")
    np.testing.assert_allclose(again.theta, plain.theta, rtol=1e-7)
    assert secure.theta.shape == plain.theta.shape


def test_without_noise_it_is_the_model_of_all_sites_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscaffold.federation.client.protection.secret_normals", np.zeros)
    for name, only in (("ROUNDS", 90), ("LOCAL_STEPS", 16), ("STEP_SIZES", 1.0)):
        monkeypatch.setattr(f"fedscaffold.models.private.sites.{name}", (only,))
    found = study(clip=10.0, l2=0.5).run(tables(), engine="reference")
    rows = pd.concat([table.assign(site=site) for site, table in tables().items()])
    bounds: Any = found.settings.public_bounds
    problem = bounds.problem(rows, "site", 0.5)
    alike = np.concatenate([np.full(n, 1.0 / n) for n in problem.sizes])
    theta = found.theta
    slopes = problem.d1(problem.x @ theta, problem.y)
    gradient = problem.x.T @ (alike * slopes) / problem.n_clients + problem.penalty * theta
    assert np.abs(gradient).max() < 1e-6


def sites(folder: Path, settings: Any, **policy: Any) -> dict[str, StudySite]:
    return {
        name: StudySite(
            name=name, table=table, store=SiteFolder(folder / name), engine="reference", secure=settings.secure,
            policy=with_budget(SitePolicy(**policy), settings), rules=SiteRules(by_the_clock=False),
            secure_threshold=settings.threshold,
        )
        for name, table in tables().items()
    }  # fmt: skip


def rounds_paid(folder: Path) -> set[int]:
    found = [json.loads((folder / site / "privacy-budget.json").read_text()) for site in SIZES]
    assert all(one["budget"]["records"] is None for one in found)
    return {sum(part["steps"] for part in one["spent"]) for one in found}


def test_each_round_is_paid_once_and_a_second_study_is_refused(tmp_path: Path) -> None:
    settings = study().settings
    found: Any = conduct_study(InProcess(sites(tmp_path, settings)), settings)
    plan = found.training.plan
    assert rounds_paid(tmp_path) == {plan.rounds}
    with_spare = epsilon(noise_multiplier=plan.privacy.noise_multiplier, delta=1e-2, steps=plan.rounds + 1)
    assert with_spare == pytest.approx(3.0, rel=1e-5)
    with pytest.raises(fs.InvalidInput, match="privacy budget"):
        conduct_study(InProcess(sites(tmp_path, settings)), settings)


@pytest.mark.parametrize("after_work", [False, True])
@pytest.mark.parametrize("step", range(SECURE_STEPS))
def test_a_site_that_is_killed_at_any_step_pays_once(tmp_path: Path, step: int, after_work: bool) -> None:
    settings = study(secure=True).settings
    at = OPENING + SECURE_STEPS + step + 1  # in the second round
    transport = Watched(sites(tmp_path, settings), silent={at: {"graz"}}, after_work=after_work)
    conduct_watched(transport, settings)
    assert rounds_paid(tmp_path) == {3}


def test_a_budget_of_rows_is_not_one_of_sites(tmp_path: Path) -> None:
    settings = study().settings
    with pytest.raises(SiteProblems, match="the study protects sites"):
        conduct_study(InProcess(sites(tmp_path, settings, epsilon=5.0)), settings)
    rows = study(protect="rows", l2="auto", delta=1e-4).settings
    own = {"epsilon": 5.0, "delta": 1e-2, "protect": "site", "tell_rows": False, "tell_state": False}
    with pytest.raises(SiteProblems, match="the study protects rows"):
        conduct_study(InProcess(sites(tmp_path, rows, **own)), rows)


# a single site

DIM = 400
PRIVACY = ClientLevel(clip=0.5, noise_multiplier=3.0, summed=True, honest_clients=2)
POLICY = SitePolicy(epsilon=5.0, delta=1e-2, protect="site", tell_rows=False, tell_state=False)
METHOD: Any = fs.GradientScaffold(step_size=0.1, local_steps=3)


def task() -> ProblemTask:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, DIM))
    return ProblemTask(fs.problems.Ridge([X], [X.sum(axis=1)], l2=0.1), engine="reference")


def asked(privacy: Any = PRIVACY, method: Any = METHOD, **more: Any) -> Any:
    config = RunConfig(name="demo", method=method, n_clients=4, dim=DIM, privacy=privacy)
    assert RunConfig.from_json(config.to_json()) == config
    return train_request(config, initial_ledger(config, np.zeros(DIM)), client=1, **more)


def part(**more: Any) -> PartOfSum:
    return PartOfSum(**{"rounded": lambda vector: vector, "n_clients": 4, "threshold": 3, **more})


def test_a_part_of_the_noise_is_added_and_not_remembered(tmp_path: Path) -> None:
    request, store = asked(), SiteFolder(tmp_path)
    sent: Any = handle_request(request, task(), store, POLICY, part=part())
    assert sent.n_rows is None
    with store.open_run(request, POLICY) as file:
        assert isinstance(file, ClientStateFile)
        stored = file.load()
    assert stored is not None
    assert stored.pending is not None
    np.testing.assert_array_equal(stored.pending.sent.ravel(), sent.vector)
    known = stored.pending.remembered.ravel()
    assert np.linalg.norm(known) == pytest.approx(PRIVACY.clip)  # these messages are clipped
    noise = sent.vector - known
    scale = PRIVACY.noise_multiplier * PRIVACY.clip / np.sqrt(2.0)
    assert abs(noise.std() / scale - 1.0) < 4.5 / np.sqrt(2.0 * DIM)  # fails by chance once in 150,000 times
    again: Any = handle_request(request, task(), store, POLICY, part=part())
    np.testing.assert_array_equal(again.vector, sent.vector)
    budget = PrivacyBudget(
        file=store.budget_file, epsilon=5.0, delta=1e-2, noise_multiplier=PRIVACY.noise_multiplier, records=None
    )
    assert budget.steps == 1
    other: Any = handle_request(request, task(), SiteFolder(tmp_path / "other"), POLICY, part=part())
    assert not np.isclose(other.vector, sent.vector).any()


def test_control_variates_follow_from_what_was_sent_without_noise(tmp_path: Path) -> None:
    config, store = asked().config, SiteFolder(tmp_path)
    ledger = initial_ledger(config, np.zeros(DIM))
    first = train_request(config, ledger, client=1)
    handle_request(first, task(), store, POLICY, part=part())
    with store.open_run(first, POLICY) as file:
        before: Any = file.load()
    after = METHOD.aggregate(ledger.server, np.full((1, DIM), 0.1), np.ones(1))
    ledger = next_ledger(config, ledger, after, dict.fromkeys(range(4), 1.0))
    second = train_request(config, ledger, client=1)
    handle_request(second, task(), store, POLICY, part=part())
    with store.open_run(second, POLICY) as file:
        stored: Any = file.load()
    expected = (before.pending.remembered - 0.1) / (METHOD.step_size * METHOD.local_steps)
    np.testing.assert_allclose(stored.client_state.xi, expected, rtol=1e-12)


def test_a_server_that_sees_every_message_gets_all_of_the_noise(tmp_path: Path) -> None:
    privacy = ClientLevel(clip=0.5, noise_multiplier=3.0)
    sent: Any = handle_request(asked(privacy), task(), SiteFolder(tmp_path), POLICY)
    assert abs(sent.vector.std() / 1.5 - 1.0) < 4.5 / np.sqrt(2.0 * DIM)


@pytest.mark.parametrize(("request_", "in_sum", "code"), [
    (asked(), None, RefusalCode.ONLY_SECURE),
    (asked(), part(n_clients=5), RefusalCode.ONLY_SECURE),
    (asked(), part(threshold=4), RefusalCode.ONLY_PRIVATE),
    (asked(replace(PRIVACY, honest_clients=None)), part(), RefusalCode.ONLY_PRIVATE),
    (asked(method=fs.Scaffold(step_size=0.1, local_steps=3)), part(), RefusalCode.POLICY_METHOD),
    (asked(method=fs.ProxSkip(step_size=0.1, communication_probability=0.3)), part(), RefusalCode.POLICY_METHOD),
    (asked(RecordLevel(clip=0.5, noise_multiplier=30.0)), part(), RefusalCode.ONLY_PRIVATE),
    (asked(None), part(), RefusalCode.ONLY_PRIVATE),
    (asked(replace(PRIVACY, noise_multiplier=0.01)), part(), RefusalCode.PRIVACY_BUDGET),
    (asked(replace(PRIVACY, noise_multiplier=0.0)), part(), RefusalCode.PRIVACY_BUDGET),
], ids=range(10))  # fmt: skip
def test_what_would_not_be_protected_is_refused_before_anything_is_paid(
    tmp_path: Path, request_: Any, in_sum: Any, code: RefusalCode
) -> None:
    with pytest.raises(Refusal) as caught:
        handle_request(request_, task(), SiteFolder(tmp_path), POLICY, part=in_sum)
    assert caught.value.code == code
    assert not (tmp_path / "privacy-budget.json").exists()


def test_the_state_without_noise_is_never_told(tmp_path: Path) -> None:
    found: Any = handle_request(asked(return_state=True), task(), SiteFolder(tmp_path), POLICY, part=part())
    assert found.client_state is None
    with pytest.raises(fs.InvalidInput, match="tell_state = false"):
        replace(POLICY, tell_state=True)


@pytest.mark.parametrize("noise", [1e-3, 3.0, 1e4])
@pytest.mark.parametrize("n_sites", [2, 7, 1000])
def test_ranges_hold_every_part_and_leave_no_last_bits(noise: float, n_sites: int) -> None:
    privacy = ClientLevel(clip=0.5, noise_multiplier=noise, summed=True, honest_clients=max(1, n_sites // 3))
    limit = range_of(privacy, n_sites)
    assert limit > largest_part(privacy, n_sites)
    grid = 2.0 ** -FixedPoint(limit=limit, n_clients=n_sites).fraction_bits
    deviation = 0.5 * noise / np.sqrt(max(1, n_sites // 3)) / n_sites
    assert 0.99 * FINEST * deviation <= grid <= 2.0**-12 * deviation


def test_a_coordinator_with_a_narrow_range_learns_nothing_from_the_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedscaffold.federation.study.secure.coordinator.range_of", lambda *_: 1e-3)
    settings = study(secure=True).settings
    with pytest.raises(fs.InvalidInput):
        conduct_watched(Watched(sites(tmp_path, settings)), settings)
    assert not list(tmp_path.rglob("privacy-budget.json"))


# settings and plans


@pytest.mark.parametrize(("more", "words"), [
    ({"l2": "auto"}, "number of rows, reveals that number"),
    ({"delta": None}, "below one over the number of sites"),
    ({"epsilon": None, "delta": None, "bounds": None}, "requires epsilon"),
    ({"protect": "phones"}, "must be one of 'rows', 'sites'"),
    ({"clip": 0.0}, "clip must be"),
    ({"kind": "poisson", "bounds": {**BOUNDS, "ill": (0, 9)}}, "a number or one of two classes"),
    ({"bounds": {**BOUNDS, "ill": ("a", "b", "c")}}, "a number or one of two classes"),
])  # fmt: skip
def test_wrong_settings_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(fs.InvalidInput, match=words):
        study(**more)


def test_delta_must_be_below_one_over_the_sites() -> None:
    with pytest.raises(fs.InvalidInput, match="one over the 4 sites"):
        study(delta=0.3).run(tables())


def test_more_sites_buy_a_smaller_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    bounds: Any = study().settings.public_bounds
    budget = PrivacySettings(epsilon=2.0, delta=1e-5)
    plans = [site_plan(bounds, n, budget, l2=0.01, threshold=n // 2 + 1) for n in (10, 100, 1000)]
    errors = [plan.predicted_error or 0.0 for plan in plans]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01 < 0.1 < errors[0]
    for plan in plans:
        spent = epsilon(noise_multiplier=plan.privacy.noise_multiplier, delta=1e-5, steps=plan.rounds)
        assert spent == pytest.approx(2.0, rel=1e-5)


def test_predicted_errors_are_those_of_runs_on_simulated_sites() -> None:
    """The planner's own few lines against the simulator, on the sites that it plans with."""
    from fedscaffold.models.private.simulated import simulated_sites

    from fedscaffold.models.private import sites as module

    bounds: Any = study().settings.public_bounds
    problem = simulated_sites(
        bounds.public_target,
        bounds.levels,
        sites=module.SITES,
        rows=module.ROWS,
        l2=0.1,
        difference=module.DIFFERENCE,
    )
    runs = module.SimulatedRuns.of(bounds, 0.1)
    noise = 2.0
    privacy = ClientLevel(clip=0.3, noise_multiplier=noise, summed=True)
    method = fs.GradientScaffold(step_size=0.5, local_steps=4)
    trace = fs.run(problem, method, rounds=3, privacy=privacy, repetitions=300, engine="reference")
    each = trace.mse[:, -1] / np.square(problem.optimum()).sum()
    predicted = runs.error(0.5, 4, 3, 0.3, 0.3 * noise / module.SITES)
    error = each.std() / np.sqrt(300)
    assert abs(predicted - each.mean()) < 0.05 * predicted + 4.0 * error  # fails by chance once in 15,000 times
    still = fs.run(
        problem, method, rounds=3, privacy=replace(privacy, noise_multiplier=0.0), engine="reference"
    ).mse[0, -1]
    assert runs.error(0.5, 4, 3, 0.3, 0.0) * np.square(problem.optimum()).sum() == pytest.approx(still, rel=1e-9)

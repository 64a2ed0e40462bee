"""Attacks on a study with the coordinator's key: they fail for reasons that follow from the plan."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation import Study
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.study.coordinator import Coordinator
from fedscaffold.federation.study.numbers import BeyondRange, add, decode, encode
from fedscaffold.federation.study.plan import StudyPlan
from fedscaffold.federation.study.questions import blocks_of, levels_in, numbers_for
from fedscaffold.federation.study.roster import Roster, new_key, public_line
from fedscaffold.federation.study.rows import SiteRows
from fedscaffold.federation.study.site import DOCUMENT, KIND, SiteRules, StudySite, refusal_in
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.study.transport import InProcess, Journal, SiteProblems

SITES = ("bonn", "graz", "lyon")


def visits(n: int, seed: int, **changes: Any) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, ward = rng.normal(50, 10, n), rng.choice(["A", "B", "C"], n)
    ill = np.where(rng.random(n) < 1 / (1 + np.exp(-(age - 50) / 10)), "yes", "no")
    return pd.DataFrame({"age": age, "ward": ward, "ill": ill}).assign(**changes)


def tables() -> dict[str, pd.DataFrame]:
    return {site: visits(80 + 20 * k, k) for k, site in enumerate(SITES)}


COLUMNS = {"age": {"range": (0, 120)}, "ward": {"levels": ("A", "B", "C")}, "ill": {"levels": ("no", "yes")}}


def plan(**changes: Any) -> StudyPlan:
    return StudyPlan(**{"target": "ill", "kind": "logistic", "sites": SITES, "columns": COLUMNS, **changes})


class Attacker(InProcess):
    """Holds the coordinator's key: may change what each site is asked, and sees every message."""

    def __init__(self, members: Mapping[str, StudySite]) -> None:
        super().__init__(members)
        self.change: Callable[[str, Payload], Payload] = lambda site, payload: payload
        self.seen: list[dict[str, Payload]] = []

    def exchange(self, requests: Mapping[str, Payload]) -> Mapping[str, Payload]:
        found = super().exchange({site: self.change(site, payload) for site, payload in requests.items()})
        self.seen.append(dict(found))
        return found


def begun(
    made: StudyPlan | None = None, rows: Mapping[str, pd.DataFrame] | None = None
) -> tuple[Coordinator, Attacker]:
    """A coordinator whose sites have accepted plan and roster."""
    limits = SiteRules(min_cell=1, min_rows=1, min_sites=2)
    members = {site: StudySite(name=site, table=table, rules=limits) for site, table in (rows or tables()).items()}
    attacker = Attacker(members)
    coordinator = Coordinator(made or plan(), Journal(attacker, None))
    coordinator.begin()
    return coordinator, attacker


def question(coordinator: Coordinator, phase: str, vector: Any, number: int, **changes: Any) -> Payload:
    assert coordinator.roster is not None
    values = {
        KIND: "question", "plan": coordinator.plan.digest, "roster": coordinator.roster.digest, "number": number,
        "phase": phase, **changes,
    }  # fmt: skip
    return Payload(values, {"vector": np.asarray(vector, np.float64)})


def numbers_of(coordinator: Coordinator, site: str, phase: str, vector: Any) -> dict[str, Any]:
    rows = SiteRows(tables()[site], coordinator.plan, b"")
    return numbers_for(rows, phase, np.asarray(vector, np.float64), {}, "reference")


# one site's numbers


def test_no_message_and_no_part_of_a_sum_shows_a_sites_numbers() -> None:
    coordinator, attacker = begun()
    theta = np.zeros(4)
    total = coordinator.ask("sums", theta)
    blocks = blocks_of(coordinator.plan, "sums")
    words = {site: reply.arrays["words"] for site, reply in attacker.seen[-1].items()}
    own = {site: encode(numbers_of(coordinator, site, "sums", theta), blocks) for site in SITES}
    np.testing.assert_array_equal(add(list(words.values())), add(list(own.values())))
    assert total["rows"][0] == sum(len(table) for table in tables().values())
    for site in SITES:
        assert (words[site] != own[site]).all()
        with pytest.raises(BeyondRange):
            decode(words[site], blocks)
        others = add([words[other] for other in SITES if other != site])
        assert (others != add([own[other] for other in SITES if other != site])).all()


def test_sites_that_are_asked_different_things_give_a_random_sum() -> None:
    """As when one site is asked in earnest and the others at a model where their numbers are known."""
    coordinator, attacker = begun()
    coordinator.ask("gradient", np.zeros(4))

    def lie(site: str, payload: Payload) -> Payload:
        return payload if site == "lyon" else Payload(payload.values, {"vector": np.full(4, 0.5)})

    attacker.change = lie
    with pytest.raises(BeyondRange):
        coordinator.ask("gradient", np.zeros(4))
    attacker.change = lambda site, payload: payload
    with pytest.raises(BeyondRange):  # their histories differ for ever after
        coordinator.ask("gradient", np.zeros(4))


def test_a_question_is_answered_once_and_in_order() -> None:
    coordinator, attacker = begun()
    coordinator.ask("gradient", np.zeros(4))
    site = attacker.members["lyon"]
    same = question(coordinator, "gradient", np.zeros(4), 0)
    first, second = site.answer(same), site.answer(same)
    np.testing.assert_array_equal(first.arrays["words"], second.arrays["words"])
    np.testing.assert_array_equal(first.arrays["words"], attacker.seen[-1]["lyon"].arrays["words"])
    for other in (
        question(coordinator, "gradient", np.full(4, 1e-9), 0),  # another model under the same number
        question(coordinator, "sums", np.zeros(4), 0),
        question(coordinator, "gradient", np.zeros(4), 5),
    ):
        assert refusal_in(site.answer(other)) is RefusalCode.REPLAYED
    coordinator.ask("gradient", np.ones(4))
    assert refusal_in(site.answer(same)) is RefusalCode.REPLAYED


def test_a_plan_caps_the_number_of_questions() -> None:
    coordinator, _ = begun(plan(max_exchanges=3))
    for _ in range(3):
        coordinator.ask("gradient", np.zeros(4))
    with pytest.raises(SiteProblems) as error:
        coordinator.ask("gradient", np.zeros(4))
    assert set(error.value.codes.values()) == {RefusalCode.POLICY_ROUNDS}


@pytest.mark.parametrize("phase", ["levels:64", "moments", "spreads", "evaluate", "judged sums", "noisy", "rows"])
def test_what_the_plan_does_not_say_cannot_be_asked(phase: str) -> None:
    coordinator, attacker = begun()
    for site in attacker.members.values():
        assert refusal_in(site.answer(question(coordinator, phase, [], 0))) is RefusalCode.BAD_REQUEST


def test_nothing_but_phase_number_and_vector_has_an_effect() -> None:
    coordinator, attacker = begun()
    coordinator.ask("gradient", np.zeros(4))
    changed = question(
        coordinator, "gradient", np.zeros(4), 0, min_cell=1, sums="open", settings="{}", epsilon=100.0, client=7
    )
    found = attacker.members["lyon"].answer(changed)
    np.testing.assert_array_equal(found.arrays["words"], attacker.seen[-1]["lyon"].arrays["words"])


# plans and rosters


def test_a_site_looks_at_one_plan() -> None:
    """Otherwise plans with range after range would tell a column's mean by which of them are accepted."""
    site, looked = StudySite(name="lyon", table=tables()["lyon"]), list[StudyPlan]()
    right = site.problems

    def counted(made: StudyPlan) -> list[str]:
        looked.append(made)
        return right(made)

    site.problems = counted  # type: ignore[assignment,method-assign]
    codes = []
    for high in (10.0, 30.0, 60.0):
        made = plan(columns={**COLUMNS, "age": {"range": (0.0, high)}})
        codes.append(refusal_in(site.answer(Payload({KIND: "plan", DOCUMENT: json.dumps(made.to_json())}))))
    assert codes == [RefusalCode.NOT_ACCEPTED, RefusalCode.OTHER_SETTINGS, RefusalCode.OTHER_SETTINGS]
    assert len(looked) == 1


def test_only_the_plan_of_the_invitation_is_looked_at() -> None:
    site = StudySite(name="lyon", table=tables()["lyon"], invited=plan().digest)
    other = plan(min_cell=1)
    reply = site.answer(Payload({KIND: "plan", DOCUMENT: json.dumps(other.to_json())}))
    assert refusal_in(reply) is RefusalCode.OTHER_SETTINGS
    assert refusal_in(site.answer(Payload({KIND: "plan", DOCUMENT: json.dumps(plan().to_json())}))) is None


def test_an_accepted_plan_cannot_be_replaced() -> None:
    _, attacker = begun()
    for changes in (
        {"min_cell": 1},
        {"sums": "open"},
        {"sites": ("lyon", "x", "y")},
        {"evaluate": 0.5},
        {"l2": 1.0},
    ):
        message = Payload({KIND: "plan", DOCUMENT: json.dumps(plan(**changes).to_json())})
        assert refusal_in(attacker.members["lyon"].answer(message)) is RefusalCode.OTHER_SETTINGS


def test_a_roster_is_accepted_once_and_has_exactly_the_plans_sites() -> None:
    coordinator, attacker = begun()
    assert coordinator.roster is not None
    keys = dict(coordinator.roster.keys)
    mine = public_line(new_key(), "graz")
    for wrong in ({**keys, "graz": mine}, {"lyon": keys["lyon"], "graz": mine}, {**keys, "x": mine}):
        message = Payload({KIND: "roster", DOCUMENT: json.dumps(Roster(coordinator.plan.digest, wrong).to_json())})
        assert refusal_in(attacker.members["lyon"].answer(message)) is RefusalCode.PEERS_CHANGED
    fresh = StudySite(name="lyon", table=tables()["lyon"], key=attacker.members["lyon"].key)
    fresh.answer(Payload({KIND: "plan", DOCUMENT: json.dumps(plan().to_json())}))
    for wrong in ({"lyon": keys["lyon"], "graz": mine}, {**keys, "lyon": mine}):
        message = Payload({KIND: "roster", DOCUMENT: json.dumps(Roster(plan().digest, wrong).to_json())})
        assert refusal_in(fresh.answer(message)) is RefusalCode.PEERS_CHANGED


def test_two_sites_have_no_secure_sum() -> None:
    with pytest.raises(InvalidInput, match="secure sums need three sites"):
        plan(sites=("lyon", "colluder"))


@pytest.mark.parametrize(
    ("rules", "changes", "words"),
    [
        ({"allow_open": False}, {"sums": "open"}, "open sums, which the site's policy does not allow"),
        ({"allow_hessians": False}, {}, "sums of Hessians, which the site's policy does not allow"),
        ({"min_cell": 6}, {}, "min_cell = 5, the site's policy asks for 6"),
        ({"min_sites": 4}, {}, "the plan has 3 sites, the site's policy asks for 4"),
        ({"min_rows": 500}, {}, "120 rows, the site's policy asks for 500"),
        ({"max_exchanges": 499}, {}, "500 exchanges, the policy allows 499"),
    ],
)
def test_a_sites_policy_is_for_all_plans(rules: Any, changes: Any, words: str) -> None:
    """A site that must not reveal its number of rows allows no open sums; in secure ones it is masked."""
    site = StudySite(name="lyon", table=tables()["lyon"], rules=SiteRules(**rules))
    (problem,) = site.problems(plan(**changes))
    assert words in problem
    reply = site.answer(Payload({KIND: "plan", DOCUMENT: json.dumps(plan(**changes).to_json())}))
    assert reply.values == {"study-refused": "not-accepted"}
    assert not site.log
    assert not StudySite(name="lyon", table=tables()["lyon"]).problems(plan(**changes))


# rows decide nothing


@pytest.mark.parametrize(
    "changes", [{"age": 1e300}, {"age": 1e-300}, {"age": -5e15}, {"ward": "A"}, {"ill": "yes"}]
)
@pytest.mark.parametrize("phase", ["gradient", "sums", "train", "measure", "evaluate"])
def test_neither_codes_nor_sizes_depend_on_rows(changes: dict[str, Any], phase: str) -> None:
    """The table was changed after the plan was accepted, or holds what nobody checked."""
    made = plan(evaluate=0.2, columns={**COLUMNS, "age": {"mean": 50.0, "sd": 10.0}})
    shapes = set()
    for table in (tables()["lyon"], tables()["lyon"].assign(**changes)):
        coordinator, attacker = begun(made)
        site = attacker.members["lyon"]
        site.table, site._rows = table, None
        vector = {"measure": [], "train": [0.1, 4, 0, 0, 0, 0]}.get(phase, [0.0] * 4)
        reply = site.answer(question(coordinator, phase, vector, 0))
        assert refusal_in(reply) is None
        shapes.add((tuple(sorted(reply.values)), reply.arrays["words"].shape))
    assert len(shapes) == 1


def test_a_model_that_would_test_the_range_of_sums_is_not_used() -> None:
    """At 2^56 sums leave their range or not by a row's values: bisection would give the largest of them."""
    coordinator, _ = begun()
    for size in (2.0**56, np.inf, np.nan, 1e7):
        with pytest.raises(BeyondRange):
            coordinator.ask("gradient", np.full(4, size))
    assert np.isfinite(coordinator.ask("gradient", np.full(4, 1e6))["loss"]).all()


# few rows


def test_a_level_of_a_few_rows_has_no_coefficient() -> None:
    """Otherwise its entries of the Hessian would be sums over these rows."""
    rows = tables()
    rows["lyon"].loc[[3], "ward"] = "rare"
    rows["bonn"].loc[[1, 2], "ward"] = "A rare one"
    study = Study(target="ill", kind="logistic", min_cell=5)
    result = study.run(rows)
    levels = result.settings.columns["ward"].levels
    assert levels == ("A", "B", "C")
    rows["lyon"].loc[:10, "ward"] = "rare"
    with_level = study.run(rows)
    assert with_level.settings.columns["ward"].levels == ("A", "B", "C", "rare")


def test_an_open_study_takes_no_matrix_from_few_rows() -> None:
    """Two Hessians of a site with at most as many rows as coefficients give back its rows."""
    made = plan(sums="open", min_cell=1)
    few = {**tables(), "lyon": visits(11, 2)}
    with pytest.raises(SiteProblems, match="lyon"):
        begun(made, few)
    begun(made, {**tables(), "lyon": visits(12, 2)})
    secure = plan(min_cell=1)
    begun(secure, few)


def test_an_open_study_shows_no_count_below_min_cell() -> None:
    rng = np.random.default_rng(0)
    rows = {site: visits(150, k, ward=rng.choice(["A", "B", "r1", "r2"], 150, p=[0.6, 0.35, 0.03, 0.02]))
            for k, site in enumerate(SITES)}  # fmt: skip
    for site in SITES:
        rows[site].loc[rng.choice(150, 3, replace=False), "age"] = np.nan
    result = Study(target="ill", kind="logistic", sums="open", min_cell=8, missing="mean", evaluate=0.3).run(rows)
    small = range(1, 8)
    open_plan = Study(target="ill", kind="logistic", sums="open", min_cell=8, missing="mean", evaluate=0.3)
    for message in result.received:
        asked = (
            open_plan.plan_for(rows)
            if message.phase.startswith(("levels", "moments", "spreads"))
            else result.settings
        )
        numbers = decode(message.words, blocks_of(asked, message.phase))
        for name in ("rest", "present", "histogram", "rows"):
            assert not any(round(float(n)) in small for n in numbers.get(name, ())), (message.phase, name)
        if message.phase == "moments":
            assert not any(round(float(numbers["rows"][0] - n)) in small for n in numbers["present"])


def test_levels_that_are_rare_at_every_site_are_never_named() -> None:
    rows = {
        site: table.assign(ward=table["ward"].where(table.index > 2, "only here"))
        for site, table in tables().items()
    }
    for sums in ("secure", "open"):
        result = Study(target="ill", kind="logistic", sums=sums).run(rows)
        assert "only here" not in json.dumps(result.settings.to_json())


# answers at the edge of what sums can hold


def in_range(coordinator: Coordinator, phase: str, vector: Any) -> bool:
    """Whether the coordinator gets a sum: whether numbers of all sites are in range."""
    try:
        coordinator.ask(phase, np.asarray(vector, np.float64))
    except BeyondRange:
        return False
    return True


SURVEYED: Any = {"age": {}, "ward": {"levels": ("A", "B", "C")}, "ill": {"levels": ("no", "yes")}}


@pytest.mark.parametrize("size", [1e30, 1e33, 2.0**113, 1e40, 1e150])
def test_no_mean_tests_how_many_rows_a_site_has(size: float) -> None:
    """Σ (x − m)² at one site leaves its range for the largest m by the number of the site's rows."""
    found = set()
    for n in (20, 400):
        made = plan(columns=SURVEYED, min_cell=1)
        rows = {site: visits(n, k) for k, site in enumerate(SITES)}
        coordinator, attacker = asked_alone(made, rows)
        found.add(in_range(coordinator, "spreads", [size]))
        assert len(attacker.seen) == 3
    assert len(found) == 1


def asked_alone(made: StudyPlan, rows: Mapping[str, pd.DataFrame]) -> tuple[Coordinator, Attacker]:
    """A coordinator whose sites have accepted plan and roster, and answered no question."""
    usual = Coordinator._surveyed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "_surveyed", lambda self: self.plan)
        coordinator, attacker = begun(made, rows)
    assert usual is Coordinator._surveyed
    attacker.seen = attacker.seen[:2]
    return coordinator, attacker


@pytest.mark.parametrize("kind", ["logistic", "ridge"])
@pytest.mark.parametrize("sd", [1e-300, 1e-20, 1e-9])
def test_no_completed_plan_tests_the_range_of_a_sites_rows(kind: Any, sd: float) -> None:
    """With a tiny standard deviation, rows are so large that a model shows which site leaves the range first."""
    sizes, patterns = np.geomspace(1e-6, 1e6, 37), set()
    for spread in (1.0, 3.0):
        rows = {site: table.assign(age=spread * table["age"]) for site, table in tables().items()}
        target: Any = {"ill": COLUMNS["ill"]} if kind == "logistic" else {}
        columns = {"ward": COLUMNS["ward"], "dose": {}, "age": {}, **target}
        rows = {site: table.assign(dose=table["age"] / 3) for site, table in rows.items()}
        name = "ill" if kind == "logistic" else "age"
        made = plan(columns=columns, target=name, kind=kind, min_cell=1)
        coordinator, _ = asked_alone(made, rows)
        for phase, vector in (("moments", []), ("spreads", [0.0, 0.0])):
            assert in_range(coordinator, phase, vector)
        numbers = {column: {"mean": 0.0, "sd": sd} for column in ("dose", "age")}
        whole = StudyPlan(**{**made.model_dump(), "rows": 300, "columns": {**columns, **numbers}})
        coordinator._propose(whole)
        assert coordinator.roster is not None
        coordinator.plan, coordinator.roster = whole, Roster(whole.digest, coordinator.roster.keys)
        d = whole.coding().dim
        patterns.add(tuple(in_range(coordinator, "gradient", np.full(d, size)) for size in sizes))
    assert len(patterns) == 1


def test_no_step_size_makes_one_site_outweigh_the_others() -> None:
    """Local steps that diverge grow by the largest curvature of one site, which their sum would then show."""
    rows = {
        site: table.assign(age=table["age"] * (1.0 + 3.0 * (site == "lyon"))) for site, table in tables().items()
    }
    made = plan(columns={**COLUMNS, "age": {"mean": 50.0, "sd": 10.0}})
    for step_size in (10.0, 1e6):
        coordinator, _ = begun(made, rows)
        total = coordinator.ask("train", np.concatenate([[step_size, 4096], np.zeros(4)]))
        assert np.abs(total["change"]).max() < 100.0 * total["rows"][0]


@pytest.mark.parametrize(
    ("phase", "vector"), [("moments", []), ("spreads", [50.0]), ("levels:64", []), ("levels:1024", [])]
)
def test_a_phase_of_the_survey_is_answered_once(phase: str, vector: Any) -> None:
    made = plan(columns={**SURVEYED, "ward": {"type": "category"}})
    coordinator, _ = asked_alone(made, tables())
    coordinator.ask(phase, np.array(vector))
    with pytest.raises(SiteProblems) as error:
        coordinator.ask(phase, np.array(vector))
    assert set(error.value.codes.values()) == {RefusalCode.POLICY_ROUNDS}


@pytest.mark.parametrize(("phase", "vector"), [("measure", []), ("evaluate", [0.0] * 4)])
def test_a_model_is_judged_once(phase: str, vector: Any) -> None:
    coordinator, _ = begun(plan(evaluate=0.2))
    coordinator.ask(phase, np.array(vector))
    with pytest.raises(SiteProblems) as error:
        coordinator.ask(phase, np.array(vector))
    assert set(error.value.codes.values()) == {RefusalCode.POLICY_ROUNDS}


# what follows from open sums by subtraction


def open_problems(table: pd.DataFrame, **changes: Any) -> list[str]:
    return SiteRows(table, plan(**{"sums": "open", **changes}), b"secret").problems()


def test_rows_that_are_left_out_are_not_few_in_an_open_study() -> None:
    """The sums of all rows less those of the rows that judge the model are sums of the rows left out."""
    assert not open_problems(visits(400, 0), evaluate=0.3)
    (problem,) = open_problems(visits(60, 0), evaluate=0.1, min_cell=1)
    assert "rows that are left out" in problem
    assert "too few for an open matrix" in problem
    assert not open_problems(visits(60, 0), evaluate=0.1, min_cell=1, hessians=False)
    rare = visits(400, 0)
    rare["ward"] = np.where(np.arange(400) < 8, "C", np.where(rare["ward"] == "C", "A", rare["ward"]))
    assert SiteRows(rare, plan(sums="open"), b"secret").merging("ward") == ([], "A")
    assert SiteRows(rare, plan(sums="open", evaluate=0.3), b"secret").merging("ward") == (["C"], "A")
    assert not open_problems(rare, evaluate=0.3)
    (problem,) = open_problems(rare, evaluate=0.3, columns={**COLUMNS, "ward": {"levels": ("C", "A", "B")}})
    assert "column 'ward': level 'C' has fewer than 5 rows that are left out" in problem
    ill = visits(400, 0).assign(ill=np.where(np.arange(400) < 8, "yes", "no"))
    (problem,) = open_problems(ill, evaluate=0.3)
    assert "class 'yes'" in problem


def test_a_number_that_few_rows_have_is_not_summed_in_the_open() -> None:
    """A column that is 1 in two rows and 0 elsewhere gives the sums over these two."""
    columns = {**COLUMNS, "flag": {"mean": 0.0, "sd": 1.0}}
    for few in (2, 4):
        (problem,) = open_problems(visits(400, 0, flag=np.arange(400) < few), columns=columns)
        assert f"column 'flag' differs from its usual value in {few} rows" in problem
    for harmless in (0, 5, 200):
        assert not open_problems(visits(400, 0, flag=np.arange(400) < harmless), columns=columns)


def test_no_count_of_rare_levels_follows_by_subtraction() -> None:
    """Rows less those of the named levels are the rows of rare levels and of none."""
    rows = tables()
    rows["lyon"].loc[[3, 5], "ward"] = ["rare", "rarer"]
    rows["bonn"].loc[[1, 2], "ward"] = None
    made = Study(target="ill", kind="logistic", sums="open", missing="mean")
    result = made.run(rows)
    first = made.plan_for(rows)
    for message in result.received:
        if message.phase.startswith("levels"):
            numbers = decode(message.words, blocks_of(first, message.phase))
            cells = int(message.phase.partition(":")[2])
            for name, rest in zip(("ward", "ill"), numbers["rest"], strict=True):
                levels = levels_in(numbers[name], cells)
                assert levels is not None
                left = len(rows[message.site]) - sum(levels.values()) - rest
                assert left == 0, (message.site, name)


def test_no_cell_of_a_table_of_classes_follows_by_subtraction() -> None:
    """The rows of a class are known, so a cell that is left out alone is the rest of its row."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    stage = np.array(["a", "b", "c"])[np.digitize(x + rng.normal(0, 0.35, 400), [-0.5, 0.5])]
    columns: Any = {"x": {"mean": 0.0, "sd": 1.0}, "stage": {"levels": ("a", "b", "c")}}
    made = {sums: plan(target="stage", columns=columns, sums=sums, evaluate=0.3) for sums in ("secure", "open")}
    theta = np.array([-4.0, -2.0, 0.0, 0.0, 4.0, -2.0])
    true, shown = (
        numbers_for(
            SiteRows(pd.DataFrame({"x": x, "stage": stage}), each, b""), "evaluate", theta, {}, "reference"
        )["table"].reshape(3, 3)
        for each in made.values()
    )
    small = ((true > 0) & (true < 5)).any(axis=1)
    assert 0 < small.sum() < 3
    np.testing.assert_array_equal(shown, np.where(small[:, None], 0, true))


# documents from the coordinator


def test_a_hostile_result_stays_a_note() -> None:
    _, attacker = begun()
    site = attacker.members["lyon"]
    reply = site.answer(
        Payload({KIND: "result", DOCUMENT: json.dumps({"../../x": "<script>", "model": "\x1b[2J"})})
    )
    assert reply.values == {"received": True}
    assert site.store.load_note("result") == {"../../x": "<script>", "model": "\x1b[2J"}
    for text in ("[]", "3", "not json", '"text"'):
        assert refusal_in(site.answer(Payload({KIND: "result", DOCUMENT: text}))) is not None


@pytest.mark.parametrize(
    "values",
    [{}, {KIND: "other"}, {KIND: 3}, {KIND: "plan"}, {KIND: "plan", DOCUMENT: "{}"},
     {KIND: "plan", DOCUMENT: "[" * 10**5},
     {KIND: "question"}, {KIND: "question", "plan": "x", "roster": "y", "number": -1, "phase": "sums"},
     {KIND: "roster", DOCUMENT: '{"plan": 3, "keys": {"lyon": "ssh-rsa AAAA"}}'}],
)  # fmt: skip
def test_damaged_messages_get_a_code_and_no_text(values: dict[str, Any]) -> None:
    _, attacker = begun()
    reply = attacker.members["lyon"].answer(Payload(values))
    assert refusal_in(reply) is not None
    assert list(reply.values) == ["study-refused"]
    assert not reply.arrays


def test_the_log_holds_what_left_and_no_value_of_the_table() -> None:
    rows = tables()
    result = Study(target="ill", kind="logistic").run(rows)
    text = json.dumps(result.log["lyon"])
    assert not any(repr(float(age))[:8] in text for age in rows["lyon"]["age"])
    asked = [entry for entry in result.log["lyon"] if "sha256" in entry]
    received = [message for message in result.received if message.site == "lyon"]
    assert [entry["phase"] for entry in asked] == [message.phase for message in received]
    assert all(entry["masked"] for entry in asked)


# matrices over few rows of all sites together


def test_a_secure_matrix_over_too_few_rows_of_all_sites_is_not_accepted() -> None:
    """Two matrices over as many rows as coefficients give the rows, also if nobody knows whose they are."""
    site = StudySite("bonn", visits(20, 0))
    dim = plan().coding().dim
    for few in (plan(rows=3 * dim - 1), plan(rows=10 * dim, evaluate=0.2), plan(rows=10 * dim, evaluate=0.8)):
        (problem,) = site.problems(few)
        assert f"too few for a matrix of {dim} coefficients" in problem
    enough = (plan(rows=3 * dim), plan(rows=20 * dim, evaluate=0.2), plan(rows=3 * dim - 1, hessians=False))
    assert [site.problems(each) for each in enough] == [[], [], []]


def test_a_secure_study_of_few_rows_ends_before_a_matrix_is_added_up() -> None:
    """The survey tells all sites how many rows there are together; the plan that it completes is not accepted."""
    rng = np.random.default_rng(0)
    few = {site: pd.DataFrame(rng.normal(size=(12, 14)), columns=[*"abcdefghijklm", "y"]) for site in SITES[:3]}
    members = {name: StudySite(name, table) for name, table in few.items()}
    attacker = Attacker(members)
    with pytest.raises(SiteProblems, match="do not allow the plan"):
        conduct(Study(target="y", kind="ridge").plan_for(few), attacker)
    asked = {str(one["phase"]) for site in members.values() for one in site.log}
    assert asked == {"plan", "roster", "moments", "spreads"}

"""A coordinator that lies to sites of a secure study, to learn the numbers of one of them."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation import StudySettings
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.study.messages import BODY, PHASE, SECURE_STEP, SiteProblems
from fedscaffold.federation.study.secure.steps import TOLD
from tests.federation.study.secure import Watched, conduct, members
from tests.federation.study.tables import TABLES, deal

FRAME, _ = TABLES["wards"]()
SITES = deal(FRAME.iloc[:300], 3, "even", seed=1)
SETTINGS = StudySettings(target="y", evaluate=0.2, secure=True, trainer="scaffold")
VICTIM = "site 0"
Lie = Callable[[Payload], Payload]


class Lying(Watched):
    """Tells all sites but one something else."""

    lie: Lie

    def exchange(self, requests: Mapping[str, Payload], *, enough: int | None = None) -> Mapping[str, Payload]:
        told = {site: one if site == VICTIM else self.lie(one) for site, one in requests.items()}
        return super().exchange(told, enough=enough)


def changed(payload: Payload, **values: Any) -> Payload:
    return Payload({**payload.values, **values}, payload.arrays)


def about(payload: Payload, **more: Any) -> Payload:
    """The first message of a sum that says something else about it."""
    return changed(payload, **{TOLD: json.dumps({**json.loads(str(payload.values[TOLD])), **more})})


def begins(payload: Payload, phase: str) -> bool:
    asked = payload.values.get(PHASE, "train" if "config" in payload.values else "")
    return '"blocks"' in str(payload.values.get(TOLD)) and asked == phase


def no_weight(payload: Payload) -> Payload:
    return about(payload, rows=2**53) if begins(payload, "train") else payload


def coarse(payload: Payload) -> Payload:
    """Numbers of all others round to nothing."""
    if not begins(payload, "sums"):
        return payload
    blocks = json.loads(str(payload.values[TOLD]))["blocks"]
    return about(payload, blocks=[[name, n, limit and 1e300] for name, n, limit in blocks])


def another_model(payload: Payload) -> Payload:
    if not begins(payload, "sums"):
        return payload
    return Payload(payload.values, {**payload.arrays, "theta": 0.0 * payload.arrays["theta"]})


def no_step(payload: Payload) -> Payload:
    """A step size of nearly 0: the others do not move."""
    if not begins(payload, "train"):
        return payload
    config = json.loads(str(payload.values["config"]))
    config["schedule"] = [[0, 1e-300, 1]]
    return changed(payload, config=json.dumps(config))


def other_rows(payload: Payload) -> Payload:
    part = not payload.values.get("study-part")
    return changed(payload, **{"study-part": part}) if begins(payload, "train") else payload


def other_coding(payload: Payload) -> Payload:
    """Columns so large that those of the others count as 0."""
    if payload.values.get(PHASE) != "agree":
        return payload
    body = json.loads(str(payload.values[BODY]))
    for column in body["agreement"]["encoding"]["columns"]:
        if "scale" in column:
            column["scale"] *= 1e12
    return changed(payload, **{BODY: json.dumps(body)})


LIES: list[Lie] = [no_weight, coarse, another_model, no_step, other_rows, other_coding]


@pytest.mark.parametrize("lie", LIES)
def test_a_sum_in_which_sites_were_asked_different_things_is_never_finished(lie: Lie) -> None:
    """Otherwise its total would be the numbers of the one site that was asked for them in earnest."""
    transport = Lying(members(SITES, SETTINGS))
    transport.lie = lie
    with pytest.raises(InvalidInput, match="failed 20 times"):
        conduct(transport, SETTINGS)
    assert transport.received[-1][1].values[SECURE_STEP] == "announce"  # refused before a masked vector was sent


def round_with(name: str, local_steps: Any) -> Lie:
    """All sites are asked for a round with another method."""

    def ask(payload: Payload) -> Payload:
        if not begins(payload, "train"):
            return payload
        config = json.loads(str(payload.values["config"]))
        config["method"] = {"name": name, "settings": {"step_size": 0.1, "local_steps": local_steps}}
        return changed(payload, config=json.dumps(config | {"schedule": []}))

    return ask


class Asking(Watched):
    """Asks all sites for something else than the study needs."""

    ask: Lie

    def exchange(self, requests: Mapping[str, Payload], *, enough: int | None = None) -> Mapping[str, Payload]:
        return super().exchange({site: self.ask(one) for site, one in requests.items()}, enough=enough)


@pytest.mark.parametrize("ask", [
    round_with("Scaffold", [1000, 1, 1]),  # the others hardly move beside the first
    round_with("FedAvg", 2),
])  # fmt: skip
def test_rounds_in_which_sites_count_differently_are_refused(ask: Lie) -> None:
    transport = Asking(members(SITES, SETTINGS))
    transport.ask = ask
    with pytest.raises(SiteProblems, match="same local steps") as error:
        conduct(transport, SETTINGS)
    assert set(error.value.codes.values()) == {RefusalCode.POLICY_METHOD}


def rounded_ladders(payload: Payload) -> Payload:
    """Random words that stand for "reached" are added up as numbers: how many there are would follow."""
    if not begins(payload, "measure"):
        return payload
    blocks = json.loads(str(payload.values[TOLD]))["blocks"]
    return about(payload, blocks=[[name, n, 1e20] for name, n, _ in blocks])


def test_exact_words_are_not_added_up_as_numbers() -> None:
    transport = Asking(members(SITES, SETTINGS))
    transport.ask = rounded_ladders
    with pytest.raises(SiteProblems, match="the sum asks for"):
        conduct(transport, SETTINGS)

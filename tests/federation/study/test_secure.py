"""Studies with secure sums: the model of the plain study, from sums over all sites alone."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare

import fedscaffold as fs
from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation import StudySettings
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.secure_sum import conduct_sum, masks
from fedscaffold.federation.study.messages import SiteProblems
from fedscaffold.federation.study.secure import conduct as conduct_module
from fedscaffold.federation.study.secure.numbers import ALL_SITES
from fedscaffold.federation.study.secure.peers import fingerprint, own_fingerprint
from tests.federation.study import test_families
from tests.federation.study.secure import Watched, conduct, members, restart
from tests.federation.study.tables import TABLES, deal
from tests.models.test_families import CASES

FRAME, _ = TABLES["wards"]()
SITES = deal(FRAME.iloc[:600], 4, "labels", seed=1)
SETTINGS = StudySettings(target="y", evaluate=0.0, secure=True)
NO_HESSIANS = SiteRules(by_the_clock=False, allow_hessians=False)


def distance(one: Any, other: Any) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def both(tables: dict[str, Any], rules: SiteRules | None = None, **settings: Any) -> tuple[Any, Any]:
    # with a smaller penalty the Hessians' condition lets rounding grow in the standard errors
    study = fs.federation.Study(**{"target": "y", "l2": 0.01, **settings})
    plain = study.run(tables, engine="reference", rules=rules)
    return replace(study, secure=True).run(tables, engine="reference", rules=rules), plain


DEALT = [("breast cancer", 5, "even"), ("diabetes", 4, "sizes"), ("iris", 3, "even"), ("wards", 5, "features")]
QUICK = {("breast cancer", "newton"), ("diabetes", "scaffold"), ("iris", "newton"), ("wards", "gradients")}


@pytest.mark.parametrize(("name", "n_sites", "how", "how_trained"), [
    pytest.param(*dealt, trained, marks=() if (dealt[0], trained) in QUICK else pytest.mark.slow)
    for dealt in DEALT
    for trained in ("newton", "scaffold", "gradients")
])  # fmt: skip
def test_the_model_is_that_of_the_plain_study(name: str, n_sites: int, how: str, how_trained: str) -> None:
    frame, kind = TABLES[name]()
    rules = NO_HESSIANS if how_trained == "gradients" else None
    trainer = "auto" if how_trained == "gradients" else how_trained
    secure, plain = both(deal(frame, n_sites, how, seed=1), rules, kind=kind, trainer=trainer)
    assert secure.reached
    assert secure.rounds == plain.rounds
    assert distance(secure.theta, plain.theta) < 1e-9
    assert secure.n_rows == plain.n_rows
    if rules is None:
        for cov in ("nonrobust", "HC0", "cluster"):
            np.testing.assert_allclose(
                secure.summary(cov).to_frame()["se"], plain.summary(cov).to_frame()["se"], rtol=1e-9
            )
    sizes = [one.n_rows for one in plain.evaluation.values()]
    assert secure.evaluation[ALL_SITES].n_rows >= sum(sizes)  # sites with few rows add theirs too
    if all(sizes):
        mean = sum(one.n_rows * one.loss for one in plain.evaluation.values()) / sum(sizes)
        assert secure.evaluation[ALL_SITES].loss == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_of_counts_amounts_weights_and_offsets_too(name: str) -> None:
    study = test_families.study(name, trainer="newton")
    tables = test_families.tables(name)
    secure, plain = (one.run(tables, engine="reference") for one in (replace(study, secure=True), study))
    assert distance(secure.theta, plain.theta) < 1e-9
    np.testing.assert_allclose(
        secure.summary("HC0").to_frame()["se"], plain.summary("HC0").to_frame()["se"], rtol=1e-8
    )


def test_columns_of_any_size_keep_their_digits() -> None:
    frame = FRAME.iloc[:600].drop(columns="ward")
    rng = np.random.default_rng(0)
    frame = frame.assign(
        tiny=1e-11 * frame["dose"] + 1e-12 * rng.normal(size=600), huge=1e13 * rng.normal(size=600),
        late=1.6e5 + rng.normal(size=600),
    )  # fmt: skip
    secure, plain = both(deal(frame, 3, "sizes", seed=2), evaluate=0.0)
    for one, other in zip(secure.agreement.encoding.columns, plain.agreement.encoding.columns, strict=True):
        assert one.shift == pytest.approx(other.shift, rel=1e-14)
        assert one.scale == pytest.approx(other.scale, rel=1e-12)
    assert distance(secure.theta, plain.theta) < 1e-9


def test_client_intercepts_missing_values_and_named_classes() -> None:
    tables = {site: table.assign(dose=table["dose"].where(table["dose"] > 0.8)) for site, table in SITES.items()}
    assert {0 < table["dose"].isna().sum() < 5 for table in tables.values()} == {True, False}  # some are withheld
    secure, plain = both(tables, missing="mean", client_intercepts=True, classes=["ill", "well"])
    assert distance(secure.theta, plain.theta) < 1e-9
    assert secure.agreement.encoding.columns[1].fill == pytest.approx(plain.agreement.encoding.columns[1].fill)


# what the coordinator learns


def bytes_of(vectors: list[Any]) -> Any:
    return np.concatenate(vectors).view(np.uint8)


def p_value(vectors: list[Any]) -> float:
    """That all bytes of these words are equally likely."""
    return float(chisquare(np.bincount(bytes_of(vectors), minlength=256)).pvalue)


def smallest_p(transport: Watched) -> float:
    """Of each site's masked vectors in all sums of a study, and of their differences between sites in a sum.

    Also of differences between sums, where a mask that is used again would cancel.
    """
    by_site: dict[str, list[Any]] = {}
    for site, words in transport.masked():
        by_site.setdefault(site, []).append(words)
    p = [p_value(vectors) for vectors in by_site.values()]
    for one, other in combinations(by_site.values(), 2):
        p.append(p_value([a - b for a, b in zip(one, other, strict=True)]))
    for vectors in by_site.values():
        n = min(vector.size for vector in vectors)
        p.append(p_value([a[:n] - b[:n] for a, b in pairwise(vectors)]))
    return min(p)


def watched_study() -> Watched:
    settings = replace(SETTINGS, evaluate=0.2, trainer="scaffold")
    transport = Watched(members(SITES, settings))
    conduct(transport, settings)
    return transport


def test_all_that_the_coordinator_receives_of_single_sites_is_noise() -> None:
    # 14 tests of about 100,000 bytes: a p-value below 1e-6 is a false alarm in 70,000 runs
    transport = watched_study()
    assert len(transport.masked()) > 40
    assert smallest_p(transport) > 1e-6


def test_a_mask_that_is_used_in_two_sums_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right, keys = masks.total_mask, dict[int, bytes]()

    def again(length: int, given: Any) -> Any:
        """A client's masks as in its first sum; the server removes what is new in the others."""
        return right(length, [(keys.setdefault(k, key), sign) for k, (key, sign) in enumerate(given)])

    monkeypatch.setattr("fedscaffold.federation.secure_sum.client.total_mask", again)
    monkeypatch.setattr(
        "fedscaffold.federation.study.secure.conduct.conduct_sum",
        lambda settings, exchange: _sum_despite_the_bug(settings, exchange, right, keys),
    )
    assert smallest_p(watched_study()) < 1e-100


def _sum_despite_the_bug(settings: Any, exchange: Any, right: Any, keys: dict[int, bytes]) -> Any:
    """The right sum although masks are wrong, so that the study goes on: the test knows them."""
    from fedscaffold.federation.secure_sum import SecureSumServer

    server = SecureSumServer(settings)
    known = server.keys(exchange("announce", dict.fromkeys(settings.clients)))
    masked = exchange("mask", server.route(exchange("share", dict.fromkeys(known, known))))
    total = np.sum(list(masked.values()), axis=0, dtype=np.uint64)
    for name in settings.clients:  # each client's own mask, then those between pairs in the order of the others
        others = [other for other in settings.clients if other != name]
        signs = [1, *(1 if name < other else -1 for other in others)]
        total -= right(settings.length, [(keys[k], sign) for k, sign in enumerate(signs)])
    return total, sorted(masked)


def test_nothing_else_of_a_table_is_told_than_names_and_frequent_labels() -> None:
    transport = watched_study()
    for site, payload in transport.received:
        if "masked" in payload.arrays:
            assert set(payload.arrays) == {"masked"}
            continue
        assert not payload.arrays
        body = json.loads(str(payload.values["body"]))
        if "secure-step" in payload.values:
            assert set(body) == {"content"}  # keys, shares and signatures
        elif payload.values["study-phase"] == "greet":
            assert set(body) == {"protocol", "columns", "n_rows", "max_hessian_dim", "identity"}
            assert body["n_rows"] is None
        elif payload.values["study-phase"] == "labels":
            counts = SITES[site]["ward"].value_counts()
            assert body["labels"]["ward"] == sorted(counts[counts >= 5].index)
        else:
            assert body in ({"accepted": True}, {"received": True})


def test_the_log_of_a_site_says_that_its_numbers_were_masked() -> None:
    transport = watched_study()
    site = transport.members["site 1"]
    entries = [entry for entry in site.log if "secure" in entry["values"]]
    masked = [entry for entry in entries if entry["values"]["secure"] == "mask"]
    assert len(masked) == len(transport.masked()) / 4
    for entry in masked:
        assert entry["values"]["what"] == "this site's numbers, masked"
        assert len(entry["vectors"]["masked"]["sha256"]) == 64
        assert entry["bytes"] > 8 * entry["vectors"]["masked"]["numbers"]
    assert {entry["phase"] for entry in masked} == {"prepare", "measure", "train", "sums", "evaluate"}
    assert all(entry["event"] == "sent" for entry in site.log)


# Scaffold


def test_control_variates_add_up_to_zero_in_what_was_sent() -> None:
    settings = replace(SETTINGS, trainer="scaffold")
    transport = Watched(members(SITES, settings), silent={61: {"site 2"}})
    conduct(transport, settings)
    n = {site: len(table) for site, table in SITES.items()}
    stores: list[Any] = [one.store for one in transport.members.values()]
    states = [next(iter(store._states.values())) for store in stores]
    assert len({one.last_counted for one in states}) == 1
    variates = np.array([one.client_state.xi[0, 0] for one in states])
    weights = np.array(list(n.values())) / sum(n.values())
    assert np.abs(variates).max() > 0.01
    assert np.abs(weights @ variates).max() < 1e-14 * np.abs(variates).max() * len(n)


# silence, kills, lies


@pytest.mark.parametrize("after_work", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("step", range(5))
def test_a_site_that_falls_silent_at_any_step_changes_nothing(step: int, after_work: bool) -> None:
    """It is started again, without the keys of the sum: the sum ends without it where it can, or is repeated."""
    whole = conduct(Watched(members(SITES, SETTINGS)), SETTINGS)
    # greet, peers, labels, then the first sum
    for first in (4, 9, 24):
        transport = Watched(members(SITES, SETTINGS), silent={first + step: {"site 1"}}, after_work=after_work)
        found = conduct(transport, SETTINGS)
        assert distance(found.theta, whole.theta) < 1e-12


def test_a_study_that_is_stopped_at_any_exchange_goes_on_with_new_keys(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    class Stopping(Watched):
        allowed = 10**6

        def exchange(self, requests: Any, *, enough: int | None = None) -> Any:
            if self.asked == self.allowed:
                raise Stopped
            return super().exchange(requests, enough=enough)

    undisturbed = Stopping(members(SITES, SETTINGS))
    whole = conduct(undisturbed, SETTINGS)
    transport = Stopping(members(SITES, SETTINGS))
    for _ in range(200):
        transport.allowed = transport.asked + 7  # a sum takes five exchanges, so that it gets on
        try:
            found = conduct(transport, SETTINGS, tmp_path / "study")
            break
        except Stopped:
            continue
    np.testing.assert_array_equal(found.theta, whole.theta)
    assert transport.asked > undisturbed.asked
    # no two masked vectors that a site sent are alike, though several were of the same numbers
    digests = [words.tobytes() for _, words in transport.masked()]
    assert len(set(digests)) == len(digests)
    traffic = {site: {phase: one.numbers for phase, one in by.items()} for site, by in found.traffic.items()}
    assert traffic == {site: {p: one.numbers for p, one in by.items()} for site, by in whole.traffic.items()}


def test_a_site_gives_nothing_openly_and_nothing_to_other_sums() -> None:
    settings = replace(SETTINGS, secure=False)
    sites = members(SITES, SETTINGS)
    with pytest.raises(SiteProblems, match="secure sums"):
        conduct(Watched(sites), settings)
    conduct(Watched(sites), SETTINGS)
    fewer = {name: site for name, site in sites.items() if name != "site 3"}
    with pytest.raises(SiteProblems, match="sums over other sites"):
        conduct(Watched(fewer), SETTINGS)
    for site in fewer.values():
        restart(site)  # it is kept on disk
    with pytest.raises(SiteProblems, match="sums over other sites"):
        conduct(Watched(fewer), SETTINGS)


def test_other_keys_than_those_accepted_are_refused() -> None:
    sites = members(SITES, SETTINGS)
    seen: dict[str, str] = {}

    def look(fingerprints: Mapping[str, str]) -> bool:
        seen.update(fingerprints)
        return True

    sites["site 0"].accept_peers = look
    conduct(Watched(sites), SETTINGS)
    assert seen == {name: own_fingerprint(site.store) for name, site in sites.items() if name != "site 0"}
    assert len(fingerprint(b"1" * 32).replace(" ", "")) == 32
    store: Any = sites["site 2"].store
    store.secret = b"another site in its place"
    with pytest.raises(SiteProblems, match="is another than the one that this site accepted before") as error:
        conduct(Watched(sites), SETTINGS)
    assert set(error.value.codes.values()) == {RefusalCode.PEERS_CHANGED}
    careful = members(SITES, SETTINGS)
    careful["site 1"].accept_peers = lambda fingerprints: False
    with pytest.raises(SiteProblems, match="keys were not accepted by site 1"):
        conduct(Watched(careful), SETTINGS)


def test_no_site_is_left_out_after_a_sum() -> None:
    class Gone(Watched):
        most = 0

        def exchange(self, requests: Any, *, enough: int | None = None) -> Any:
            if self.asked >= self.most and "site 1" in requests:
                raise SiteProblems({"site 1": "site 1 is gone"})
            return super().exchange(requests, enough=enough)

    early = Gone(members(SITES, SETTINGS))
    early.most = 2
    result = conduct(early, SETTINGS, absent="leave out")
    assert len(result.sites) == 3
    late = Gone(members(SITES, SETTINGS))
    late.most = 20
    with pytest.raises(InvalidInput, match="no site can be left out after the first secure sum"):
        conduct(late, SETTINGS, absent="leave out")


def test_what_cannot_be_summed_is_refused_and_nothing_is_sent() -> None:
    table = SITES["site 1"].copy()
    table.loc[3, "age"] = 1e30
    transport = Watched(members({**SITES, "site 1": table}, SETTINGS))
    with pytest.raises(SiteProblems, match=r"beyond 1e\+20; nothing was sent"):
        conduct(transport, SETTINGS)
    assert not transport.masked()
    table.loc[3, "age"] = np.nan
    with pytest.raises(SiteProblems, match="site 1: column 'age' has missing values"):
        conduct(Watched(members({**SITES, "site 1": table}, SETTINGS)), SETTINGS)


def test_numbers_beyond_the_first_range_widen_it() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=300), "w": rng.gamma(2.0, 1e6, 300)})
    frame = frame.assign(y=np.where(rng.random(300) < 0.5, "a", "b"))
    secure, plain = both(deal(frame, 3, "even", seed=0), weight="w", evaluate=0.0)
    assert distance(secure.theta, plain.theta) < 1e-9
    assert secure.rounds == plain.rounds


def test_whoever_tries_ranges_learns_neither_whose_number_is_beyond_them_nor_what_others_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No site refuses; the sum is random, and differs from the right one in every word."""
    totals: list[Any] = []

    def kept(*arguments: Any) -> Any:
        found = conduct_sum(*arguments)
        totals.append(found[0])
        return found

    monkeypatch.setattr(conduct_module, "conduct_sum", kept)
    monkeypatch.setattr("fedscaffold.federation.study.secure.numbers.SPARE", 1e-9)
    transport = Watched(members(SITES, SETTINGS))
    found = conduct(transport, SETTINGS)
    assert found.reached
    beyond = [words for words in totals if words[-1] != 0]
    assert beyond
    words = np.concatenate(beyond)
    high = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(high - 0.5) < 4.5 * 0.5 / np.sqrt(64 * words.size)  # fails by chance once in 150,000 times
    for site in transport.members.values():
        assert not [one for one in site.store.audit.read() if one["event"] == "refused"]
    noted = [site for site in transport.members.values() for one in site.store.audit.read()
             if one["event"] == "beyond-range"]  # fmt: skip
    assert noted


@pytest.mark.parametrize(
    ("settings", "n_sites", "words"),
    [
        ({"secure_threshold": 2}, 4, "secure_threshold must be more than half of the 4 sites"),
        ({"secure_threshold": 5}, 4, "at most all, got 5"),
        ({"secure_threshold": 1}, 4, "secure_threshold must be a whole number of at least 2"),
        ({"secure_threshold": 3, "secure": False}, 4, "secure_threshold requires secure=True"),
        ({"secure": "yes"}, 4, "secure must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused_first(settings: dict[str, Any], n_sites: int, words: str) -> None:
    tables = deal(FRAME.iloc[:200], n_sites, "even", seed=0)
    with pytest.raises(InvalidInput, match=words):
        fs.federation.Study(**{"target": "y", "secure": True, **settings}).run(tables)


def test_a_site_with_a_higher_threshold_does_not_take_part_below_it() -> None:
    sites = members(SITES, SETTINGS)
    sites["site 1"].secure_threshold = lambda n: n
    with pytest.raises(SiteProblems, match="threshold"):
        conduct(Watched(sites), SETTINGS)


def test_a_lying_coordinator_gets_refusals() -> None:
    """A step that is asked for twice with another content, and a sum that nobody knows."""

    class Lying(Watched):
        lie: Any = None

        def exchange(self, requests: Any, *, enough: int | None = None) -> Any:
            replies = super().exchange(requests, enough=enough)
            self.lie(requests)
            return replies

    refused: list[RefusalCode] = []

    def ask(site: Any, payload: Payload) -> None:
        try:
            site.answer(payload)
        except Refusal as refusal:
            refused.append(refusal.code)

    transport = Lying(members(SITES, SETTINGS))

    def lie(requests: Any) -> None:
        payload = requests.get("site 0")
        if payload is None or "secure-step" not in payload.values or len(refused) > 5:
            return
        told = json.loads(payload.values["secure"])
        site = transport.members["site 0"]
        if payload.values["secure-step"] == "share":
            ask(site, Payload({**payload.values, "secure": json.dumps({**told, "content": {}})}, payload.arrays))
        if payload.values["secure-step"] == "agree":
            ask(site, Payload({**payload.values, "secure": json.dumps({**told, "sum": "1"})}, payload.arrays))

    transport.lie = lie
    conduct(transport, SETTINGS)
    assert refused[:2] == [RefusalCode.BAD_REQUEST, RefusalCode.SUM_LOST]

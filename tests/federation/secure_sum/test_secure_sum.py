"""Secure sums: right or repeated whoever falls silent, and noise to whoever looks on."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedscaffold import InvalidInput
from fedscaffold.federation.secure_sum import (
    FixedPoint,
    SecureSumClient,
    SumFailed,
    SumSettings,
    conduct_sum,
    masks,
    secure_sum,
    shamir,
)
from fedscaffold.federation.secure_sum.client import STEPS
from fedscaffold.federation.secure_sum.in_process import new_clients, take_step

NAMES = ("bonn", "graz", "kiel", "linz", "ulm")
NUMBERS = FixedPoint(limit=1e3, n_clients=len(NAMES))
VECTORS = dict(zip(NAMES, np.random.default_rng(0).normal(size=(5, 7)), strict=True))
WORDS = {name: NUMBERS.encode(vector) for name, vector in VECTORS.items()}


def settings(threshold: int = 3, length: int = 7) -> SumSettings:
    return SumSettings(sum_id="round 1", clients=NAMES, length=length, threshold=threshold)


class Wire:
    """Clients in this process; some fall silent at a step, before or after they have done its work."""

    def __init__(self, told: SumSettings, silent: Mapping[str, tuple[str, bool]] | None = None) -> None:
        self.clients = new_clients(told)
        self.silent, self.gone = dict(silent or {}), set[str]()
        self.seen: dict[str, Mapping[str, Any]] = {}

    def exchange(self, step: str, messages: Mapping[str, Any]) -> dict[str, Any]:
        replies = {}
        for name, message in messages.items():
            at, works = self.silent.get(name, ("never", False))
            if at == step:
                self.gone.add(name)
                if works:
                    take_step(self.clients[name], step, message, WORDS[name])
            if name not in self.gone:
                replies[name] = take_step(self.clients[name], step, message, WORDS[name])
        self.seen[step] = replies
        return replies


def test_any_one_or_two_of_five_may_fall_silent_at_any_steps() -> None:
    told = settings()
    for names in (*combinations(NAMES, 1), ("bonn", "graz"), ("graz", "ulm"), ("kiel", "linz")):
        for steps in np.ndindex(*(len(STEPS),) * len(names)):
            silent = {name: (STEPS[step], False) for name, step in zip(names, steps, strict=True)}
            total, present = conduct_sum(told, Wire(told, silent).exchange)
            there = [name for name in NAMES if name not in names or STEPS.index(silent[name][0]) > 2]
            assert present == sorted(there)
            np.testing.assert_array_equal(total, sum(WORDS[name] for name in there))


@pytest.mark.parametrize(("n", "threshold"), [(n, t) for n in (2, 3, 4, 6, 7) for t in range(n // 2 + 1, n + 1)])
def test_so_many_as_the_threshold_give_the_right_sum_and_fewer_none(n: int, threshold: int) -> None:
    """Up to three clients fall silent at random steps, before or after their work; replies come in any order."""
    rng = np.random.default_rng(10 * n + threshold)
    names = tuple(f"client {k}" for k in range(n))
    words = {name: rng.integers(0, 2**64, 3, dtype=np.uint64) for name in names}
    told = SumSettings(sum_id="1", clients=names, length=3, threshold=max(2, threshold))
    for _ in range(12):
        gone = {str(name): int(rng.integers(5)) for name in rng.permutation(names)[: rng.integers(0, min(n, 4))]}
        works, clients = bool(rng.integers(2)), new_clients(told)

        def exchange(
            step: str, messages: Mapping[str, Any], gone: Any = gone, works: bool = works, clients: Any = clients
        ) -> Any:
            at, replies = STEPS.index(step), {}
            for name in rng.permutation(list(messages)):
                if gone.get(name, 5) > at or (gone[name] == at and works):
                    replies[str(name)] = take_step(clients[name], step, messages[name], words[name])
                    with pytest.raises(InvalidInput, match="once and in order"):  # the same message again
                        take_step(clients[name], step, messages[name], words[name])
            return {name: reply for name, reply in replies.items() if gone.get(name, 5) > at}

        if n - len(gone) < told.threshold:
            with pytest.raises(SumFailed):
                conduct_sum(told, exchange)
        else:
            total, present = conduct_sum(told, exchange)
            assert present == sorted(name for name in names if gone.get(name, 5) > STEPS.index("mask"))
            np.testing.assert_array_equal(
                total, np.sum([words[name] for name in present], axis=0, dtype=np.uint64)
            )


def test_a_client_that_did_its_work_and_then_fell_silent_is_left_out_or_counted_as_a_whole() -> None:
    told = settings()
    for step in STEPS:
        total, present = conduct_sum(told, Wire(told, {"kiel": (step, True)}).exchange)
        assert ("kiel" in present) == (STEPS.index(step) > 2)
        np.testing.assert_array_equal(total, sum(WORDS[name] for name in present))


@pytest.mark.parametrize("step", STEPS)
def test_with_fewer_than_the_threshold_there_is_no_sum(step: str) -> None:
    told = settings()
    with pytest.raises(SumFailed, match="and the threshold is 3"):
        conduct_sum(told, Wire(told, dict.fromkeys(NAMES[:3], (step, False))).exchange)


def test_a_sum_is_exact_in_fixed_point_and_close_to_that_of_the_numbers() -> None:
    found = secure_sum(VECTORS, limit=1e3)
    np.testing.assert_allclose(found, sum(VECTORS.values()), rtol=0, atol=5 * 2.0**-NUMBERS.fraction_bits)


# what the server sees


def uniformity(words: "np.ndarray[Any, np.dtype[np.uint64]]") -> float:
    """The p-value of all bytes being equally likely."""
    return float(chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue)


def masked_vectors() -> dict[str, Any]:
    """What reaches the server of five equal vectors of zeros."""
    told = settings(length=20_000)
    clients = new_clients(told)
    seen: dict[str, Mapping[str, Any]] = {}

    def exchange(step: str, messages: Mapping[str, Any]) -> dict[str, Any]:
        zeros = np.zeros(told.length, np.uint64)
        seen[step] = {name: take_step(clients[name], step, message, zeros) for name, message in messages.items()}
        return dict(seen[step])

    total, _ = conduct_sum(told, exchange)
    assert not total.any()
    return dict(seen["mask"])


def smallest_p(vectors: Mapping[str, Any]) -> float:
    """Of single vectors, and of sums and differences of two and of three: anything but all five is noise."""
    groups = (some for count in range(1, len(vectors)) for some in combinations(vectors.values(), count))
    p = [uniformity(np.sum(some, axis=0, dtype=np.uint64)) for some in groups]
    p += [uniformity(a - b) for a, b in combinations(vectors.values(), 2)]
    return min(p)


def test_to_the_server_all_but_the_whole_sum_is_uniform_noise() -> None:
    # 40 tests; all p-values are above 1e-6 but for a false alarm in 25,000 runs
    assert smallest_p(masked_vectors()) > 1e-6


def test_a_mask_that_is_used_twice_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = masks.total_mask
    keys: list[bytes] = []

    def again(length: int, given: Any) -> Any:
        keys.extend(key for key, _ in given)
        return right(length, [(keys[0], 1)])  # everybody has the same mask

    monkeypatch.setattr("fedscaffold.federation.secure_sum.client.total_mask", again)
    monkeypatch.setattr(
        "fedscaffold.federation.secure_sum.server.total_mask",
        lambda length, given: 5 * right(length, [(keys[0], 1)]),
    )
    assert smallest_p(masked_vectors()) < 1e-100


# what clients refuse


def ready(upto: str, told: SumSettings | None = None) -> tuple[dict[str, SecureSumClient], dict[str, Any]]:
    """Clients before a step, and the messages that they would get."""
    told = told or settings()
    clients = new_clients(told)
    waiting: dict[str, Any] = {}

    class Stop(Exception):
        pass

    def exchange(step: str, messages: Mapping[str, Any]) -> dict[str, Any]:
        if step == upto:
            waiting.update(messages)
            raise Stop
        return {name: take_step(clients[name], step, message, WORDS[name]) for name, message in messages.items()}

    with pytest.raises(Stop):
        conduct_sum(told, exchange)
    return clients, waiting


def test_nobody_answers_both_questions_about_a_client() -> None:
    clients, waiting = ready("agree")
    clients["bonn"].agree(NAMES)
    with pytest.raises(InvalidInput, match="once and in order"):
        clients["bonn"].agree(NAMES[:4])
    # the server tells two halves different sets: neither gets enough signatures
    clients, waiting = ready("agree")
    one, two = NAMES[:4], NAMES[1:]
    signatures = {name: clients[name].agree(one if name in ("bonn", "graz") else two) for name in waiting}
    with pytest.raises(InvalidInput, match="not under the same set"):
        clients["bonn"].unmask({name: signatures[name] for name in one})
    with pytest.raises(InvalidInput, match="only 2 clients agreed"):
        clients["graz"].unmask({name: signatures[name] for name in ("bonn", "graz")})


def test_keys_in_the_name_of_another_are_refused() -> None:
    clients, waiting = ready("share")
    forged = dict(waiting["bonn"])
    forged["graz"] = replace(forged["graz"], masking=forged["kiel"].masking)
    with pytest.raises(InvalidInput, match="'graz' are not signed by that client"):
        clients["bonn"].share(forged)
    elsewhere = new_clients(replace(settings(), sum_id="round 2"))["graz"].announce()
    clients, waiting = ready("share")
    with pytest.raises(InvalidInput, match="'graz' are not signed by that client"):
        clients["bonn"].share({**waiting["bonn"], "graz": elsewhere})


def test_changed_shares_are_noticed() -> None:
    clients, waiting = ready("mask")
    changed = dict(waiting["bonn"])
    changed["graz"] = changed["graz"][:-1] + bytes([changed["graz"][-1] ^ 1])
    clients["bonn"].mask(changed, WORDS["bonn"])
    for name in NAMES[1:]:
        clients[name].mask(waiting[name], WORDS[name])
    signatures = {name: clients[name].agree(NAMES) for name in NAMES}
    with pytest.raises(InvalidInput, match="shares from 'graz' were changed"):
        clients["bonn"].unmask(signatures)


def test_wrong_shares_end_in_no_sum_rather_than_a_wrong_one() -> None:
    for silent in ({}, {"ulm": ("mask", False)}):
        told = settings()
        wire = Wire(told, silent)

        def lying(step: str, messages: Mapping[str, Any], wire: Wire = wire) -> dict[str, Any]:
            replies = wire.exchange(step, messages)
            if step == "unmask":
                replies["bonn"] = {name: bytes(33) for name in replies["bonn"]}
            return replies

        with pytest.raises(SumFailed, match="do not fit together"):
            conduct_sum(told, lying)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda clients, waiting: clients["bonn"].mask(waiting["bonn"], WORDS["bonn"][:-1]), "must have 7 words"),
        (lambda clients, waiting: clients["bonn"].mask({}, WORDS["bonn"]), "only 1 clients sent shares"),
        (lambda clients, waiting: clients["bonn"].mask({"rome": b""}, WORDS["bonn"]), "'rome'"),
        (lambda clients, waiting: clients["bonn"].unmask({}), "once and in order"),
    ],
)
def test_refusals_of_a_client(change: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        change(*ready("mask"))


@pytest.mark.parametrize("threshold", [1, 2, 6])
def test_thresholds_that_protect_nobody_are_refused(threshold: int) -> None:
    with pytest.raises(InvalidInput, match="threshold"):
        settings(threshold)


# numbers and shares


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e3 + 1e-9, -2e3])
def test_numbers_beyond_the_range_are_not_sent(value: float) -> None:
    with pytest.raises(InvalidInput, match="nothing was sent"):
        NUMBERS.encode([0.0, value])


@given(
    st.floats(1e-6, 1e12),
    st.integers(1, 1000),
    st.lists(st.floats(-1.0, 1.0, allow_subnormal=False), min_size=1, max_size=5),
)
def test_sums_of_the_largest_numbers_do_not_overflow(limit: float, n: int, shares: list[float]) -> None:
    numbers = FixedPoint(limit=limit, n_clients=n)
    values = limit * np.array([1.0, -1.0, *shares])
    words = np.uint64(n) * numbers.encode(values)
    np.testing.assert_allclose(numbers.decode(words), n * values, rtol=0, atol=n * limit * 2.0**-44)


@given(st.binary(min_size=32, max_size=32), st.integers(2, 6), st.randoms())
def test_any_threshold_of_shares_is_the_secret_and_one_less_is_not(secret: bytes, t: int, random: Any) -> None:
    shares = shamir.split(secret, range(1, 9), t)
    some = dict(random.sample(sorted(shares.items()), t))
    assert shamir.combine(some) == secret
    some.popitem()
    assert shamir.combine(some) != secret


def test_masks_do_not_depend_on_how_the_work_is_divided() -> None:
    keys = [(bytes([k]) * 32, 1 - 2 * (k % 2)) for k in range(5)]
    length = 2 * masks.WORDS_AT_ONCE + 3
    apart = sum(
        (np.uint64(1 if sign > 0 else 2**64 - 1) * masks.total_mask(length, [(key, 1)]) for key, sign in keys)
    )
    np.testing.assert_array_equal(masks.total_mask(length, keys), apart)

"""Messages whose fields hold anything at all: refused by name, never a traceback, never a wrong number."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.checks import shown
from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.federation import (
    ClientFailed,
    ProblemTask,
    RefusalCode,
    RunConfig,
    SitePolicy,
    TrainRequest,
    initial_ledger,
    train_request,
)
from fedscaffold.federation.client.requests import Site, answer_hello, answer_request
from fedscaffold.federation.messages import (
    ClientHello,
    ClientRefused,
    Payload,
    Reply,
    pack,
    unpack_hello,
    unpack_reply,
)
from fedscaffold.federation.server.checks import malformed
from tests.federation.federation import Federation
from tests.samples import make

HUGE = 10**400
NASTY: list[Any] = [
    None, True, -1, 2**63, 2**64, HUGE, 0.5, 1e308, float("inf"), float("nan"), "", "0",
    "\x1b[2Jtext\nmore", "x" * 10_000, "☃", [], [1],
    {}, {"a": 1}, b"bytes", (), np.zeros(2), np.float64("nan"), np.int64(-5), object(),
]  # fmt: skip
VECTORS: list[Any] = [
    np.zeros(2), np.zeros(4), np.zeros((2, 2)), np.zeros(0), np.zeros(3, dtype=np.float32), np.array(["a"] * 3),
    np.array([None] * 3), np.full(3, np.nan), np.full(3, np.inf), [0.0, 0.0, 0.0], None, "text",
    b"12345678" * 3, 5,
]  # fmt: skip
METHODS: list[Any] = [fs.Scaffold(step_size=0.1, local_steps=3), fs.FedLin(step_size=0.1, local_steps=3)]


def problem() -> Any:
    return make("ridge", (16, 19, 14), 3)


def config_of(method: Any) -> RunConfig:
    return RunConfig(name="fuzz", method=method, n_clients=3, dim=3)


def site(folder: Path, loaded: list[int], work: Callable[[], Any] | None = None) -> Site:
    def load() -> Any:
        loaded.append(1)
        return ProblemTask(problem().subset([1]), "reference")

    return Site(client=lambda: 1, task=work or load, state_dir=lambda: folder, policy=SitePolicy.for_simulation)


def unpacked(unpack: Callable[[], Any]) -> Any:
    """The message, or the text of the error that refuses it; any other error is a failure."""
    try:
        return unpack()
    except FedScaffoldError as error:
        return str(error)


def changed(payload: Payload, name: str, value: Any) -> Payload:
    return Payload({**payload.values, name: value}, payload.arrays)


def without(payload: Payload, name: str) -> Payload:
    return Payload({key: value for key, value in payload.values.items() if key != name}, payload.arrays)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_requests_with_any_field_damaged(tmp_path: Path, method: Any) -> None:
    """Each gets a code, or is a request that makes sense; the site's table is read for none that does not."""
    config = config_of(method)
    ledger = initial_ledger(config, np.zeros(3))
    request = (
        train_request(config, ledger, 1)
        if method is METHODS[0]
        else train_request(config, ledger, 1, phase="gradient")
    )
    packed = pack(request)
    damaged = [without(packed, name) for name in packed.values]
    damaged += [changed(packed, name, value) for name in packed.values for value in NASTY]
    damaged += [Payload(packed.values, {**packed.arrays, name: v}) for name in packed.arrays for v in VECTORS]
    damaged += [Payload(packed.values, {}), Payload({}, {})]
    text = json.loads(request.config.to_json())
    for name in text:
        odd: list[Any] = [None, -1, HUGE, "x", [], {}, 1e308]
        for value in odd:
            damaged.append(changed(packed, "config", json.dumps({**text, name: value})))
    damaged += [changed(packed, "config", "[" * 50_000), changed(packed, "config", '{"method": {"name": "os"}}')]
    for payload in damaged:
        loaded: list[int] = []
        reply = answer_request(partial(Payload, *payload), site(tmp_path, loaded))
        if reply.values["kind"] == "refused":
            assert reply.values["code"] in set(RefusalCode)
            assert reply.values["code"] != RefusalCode.INTERNAL, payload.values
            assert set(reply.values) == {"version", "client", "kind", "code"}
        else:
            assert loaded


def test_replies_with_any_field_damaged(tmp_path: Path) -> None:
    """Each is refused with one printable line, or is the reply to another request, which is named."""
    config = config_of(METHODS[0])
    request = train_request(config, initial_ledger(config, np.zeros(3)), 1)
    reply = answer_request(lambda: pack(request), site(tmp_path, []))
    needed = [name for name in reply.values if name != "n_rows"]  # numbers of rows are compared, not refused
    damaged = [without(reply, name) for name in needed]
    damaged += [changed(reply, name, value) for name in needed for value in NASTY]
    damaged += [Payload(reply.values, {"vector": value}) for value in VECTORS]
    damaged += [changed(reply, "n_rows", value) for value in NASTY if isinstance(value, float | str | list)]
    damaged += [Payload({**reply.values, "kind": "refused", "code": "\n\x1bx" * 10}), Payload({}, {})]
    for payload in damaged:
        found: Any = unpacked(partial(unpack_reply, payload, request))
        if isinstance(found, str):
            assert found.isprintable()
            assert len(found) < 400
        elif isinstance(found, ClientRefused):
            assert found.code is RefusalCode.INTERNAL
        else:
            assert malformed(request, found)


def test_introductions_with_any_field_damaged() -> None:
    """An infinite number of rows once stopped the server at every start."""
    packed = pack(ClientHello(client=1, dim=3, n_rows=20))
    damaged = [without(packed, name) for name in packed.values if name != "n_rows"]
    damaged += [changed(packed, name, value) for name in packed.values for value in NASTY]
    for payload in damaged:
        found = unpacked(partial(unpack_hello, payload))
        if isinstance(found, str):
            assert found.isprintable()
        else:
            assert isinstance(found, ClientHello)
            assert 0 <= found.client < 10**7 + 1


@pytest.mark.parametrize(
    "error", [ValueError("cell 'HIV positive, 1962'"), KeyError("HIV positive"), MemoryError("HIV positive")]
)
def test_no_cell_of_a_table_leaves_in_an_error(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The server gets a code; the text is in the site's own log."""

    def load() -> Any:
        raise error

    config = config_of(METHODS[0])
    request = train_request(config, initial_ledger(config, np.zeros(3)), 1)
    with caplog.at_level(logging.ERROR):
        for reply in (
            answer_request(lambda: pack(request), site(tmp_path, [], load)),
            answer_hello(site(tmp_path, [], load)),
        ):
            assert reply == Payload({"version": 4, "client": 1, "kind": "refused", "code": "data-unreadable"})
    assert "HIV positive" in (tmp_path / "audit.jsonl").read_text()


def test_what_clients_write_is_tamed_before_it_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def event(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        return (
            ClientFailed(client=0, reason="\x1b[2J\r\nround 9: all is well " * 500)
            if request.client == 0
            else work()
        )

    Federation(tmp_path, problem(), METHODS[0], event=event).run(1)
    line = next(record.getMessage() for record in caplog.records if "client 0 failed" in record.getMessage())
    assert line.isprintable()
    assert len(line) < 400
    assert shown("a\nb\x00") == "a\\nb\\x00"


def test_a_reply_of_another_client_run_round_or_history_does_not_count(tmp_path: Path) -> None:
    """All replies of two runs over three rounds, delivered in place of each other."""
    one, two = (Federation(tmp_path / name, problem(), METHODS[0]) for name in ("one", "two"))
    replies: list[tuple[TrainRequest, Reply]] = []

    def recorded(request: TrainRequest, work: Callable[[], Reply]) -> Reply:
        replies.append((request, work()))
        return replies[-1][1]

    one.event = two.event = recorded
    one.run(3)
    two.run(3)
    assert len(replies) == 18
    for asked, _ in replies:
        for other, reply in replies:
            found: Any = unpack_reply(pack(reply), asked)
            fits = malformed(asked, found) is None
            assert fits == (asked is other), malformed(asked, replace(found))

"""How many vectors of a large model a round holds in memory, on each side."""

import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import RecordDict

import fedscaffold as fs
from benchmarks.flower_overhead import Trivial
from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation import RoundRules, RunConfig, SitePolicy, TrainRequest
from fedscaffold.federation.client.requests import Site, answer_request
from fedscaffold.federation.messages import Reply, pack, unpack_reply
from fedscaffold.federation.server import checks
from fedscaffold.federation.server.session import open_session
from fedscaffold.flower import wire

DIM, CLIENTS = 1 << 18, 3
SLACK = 0.1  # of a vector, for everything else


class Peak:
    """Vectors of DIM numbers in memory at most, above those at the last `reset`."""

    def reset(self) -> None:
        tracemalloc.reset_peak()
        self.before = tracemalloc.get_traced_memory()[0]

    def vectors(self) -> float:
        return (tracemalloc.get_traced_memory()[1] - self.before) / (8 * DIM)


@pytest.fixture
def peak() -> Iterator[Peak]:
    tracemalloc.start()
    yield Peak()
    tracemalloc.stop()


def test_a_round_with_a_large_model_holds_each_vector_at_most_twice(
    tmp_path: Path, peak: Peak, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client reads its state, and θ and its message of the last round, and makes a new message: an array, and
    the bytes that leave it. Beside the replies' bytes the server has two vectors of each client, its state and
    either the next one or what it sent, to be added up; and some of one client at a time.
    """
    monkeypatch.setattr(checks, "NUMBERS_AT_ONCE", DIM)
    method = fs.Scaffold(step_size=0.1, local_steps=1)
    config = RunConfig(name="large", method=method, n_clients=CLIENTS, dim=DIM)
    alike, unknown = np.full(CLIENTS, 1.0 / CLIENTS), np.zeros(CLIENTS, dtype=np.int64)

    def answer(request: TrainRequest, message: RecordDict) -> RecordDict:
        site = Site(
            client=lambda: request.client,
            task=lambda: Trivial(DIM),
            state_dir=lambda: tmp_path / f"site-{request.client}",
            policy=SitePolicy.for_simulation,
        )
        peak.reset()
        reply = wire.to_records(answer_request(lambda: wire.from_records(message), site, wire.decode_vector))
        assert peak.vectors() < 4 + SLACK
        return reply

    def send(requests: Sequence[TrainRequest]) -> list[Reply]:
        packed: dict[int, FlowerArray] = {}
        peak.reset()
        messages = [wire.to_records(pack(request), packed) for request in requests]
        assert peak.vectors() < 1 + SLACK  # θ, once for all clients
        replies = [answer(*both) for both in zip(requests, messages, strict=True)]
        peak.reset()
        found = [
            unpack_reply(wire.from_records(reply), request, wire.decode_vector)
            for reply, request in zip(replies, requests, strict=True)
        ]
        assert peak.vectors() < SLACK  # the numbers are read where the message has them
        peak.reset()
        return found

    with open_session(tmp_path / "server", config, np.zeros(DIM), rules=RoundRules(), rounds=3) as session:
        session.begin(lambda: (alike, unknown))
        for _ in range(3):
            session.run_round(send)
            assert peak.vectors() < 2 * CLIENTS + 5 + SLACK
    assert np.abs(session.ledger.server.theta).max() > 0


def test_a_message_is_what_flower_would_make_of_it() -> None:
    for values in (np.arange(7.0), np.zeros(0), np.arange(24.0).reshape(1, 1, 24)):
        ours, theirs = wire._pack(values, None), FlowerArray(values.reshape(-1))
        assert (ours.dtype, ours.shape, ours.stype, ours.data) == (
            theirs.dtype, theirs.shape, theirs.stype, theirs.data,
        )  # fmt: skip


def test_vectors_that_do_not_lie_on_whole_words_are_copied() -> None:
    """The sender chooses how long the header is, and compiled code reads whole words."""
    plain = FlowerArray(np.arange(5.0)).data
    length = int.from_bytes(plain[8:10], "little")
    for longer in range(1, 9):
        header = plain[10 : 9 + length] + b" " * longer + b"\n"
        data = plain[:8] + len(header).to_bytes(2, "little") + header + plain[10 + length :]
        vector = wire.decode_vector(FlowerArray("float64", (5,), "numpy.ndarray", data), 5)
        assert vector.flags.aligned
        np.testing.assert_array_equal(vector, np.arange(5.0))
    with pytest.raises(InvalidInput, match="cannot be read"):
        wire.decode_vector(FlowerArray("float64", (5,), "numpy.ndarray", plain[:-1]), 5)

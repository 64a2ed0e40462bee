"""Every fault in every phase of a round: lost, late, repeated, damaged, swapped, rolled back, crashed."""

import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core import npz
from fedscaffold.federation import (
    ClientFailed,
    ClientRefused,
    ClientUpdate,
    Refusal,
    RefusalCode,
    RoundRules,
    StateBackup,
    TrainRequest,
)
from fedscaffold.federation.messages import Reply
from tests.federation.federation import Federation
from tests.samples import make

METHODS: list[Any] = [
    fs.Scaffold(step_size=0.1, local_steps=3),
    fs.FedAvg(step_size=0.1, local_steps=3),
    fs.TwoSidedScaffold(step_size=0.1, local_steps=3, server_step_size=0.8),
    fs.FedLin(step_size=0.05, local_steps=3),
]
ROUNDS, FAULTY, VICTIM = 4, 2, 1  # what goes wrong, goes wrong for one client in round 2
RULES = RoundRules(min_clients=2, attempts=4, outlier_factor=None)


class Faults:
    """Does one thing to the victim's messages in the faulty round, in one phase."""

    def __init__(self, fault: str, phase: str) -> None:
        self.fault, self.phase = fault, phase
        self.earlier: dict[str, Reply] = {}
        self.times = 0
        self.federation: Federation | None = None

    def __call__(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        here = (request.client, request.round, request.phase) == (VICTIM, FAULTY, self.phase)
        if not here:
            reply = work()
            if request.client == VICTIM:
                self.earlier[request.phase] = reply
            return reply
        self.times += 1
        try:
            return getattr(self, self.fault)(request, work)
        except Refusal as refusal:  # as `answer_request` does it
            return ClientRefused(client=request.client, code=refusal.code)

    def request_lost_once(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        return None if self.times == 1 else work()

    def reply_lost_always(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        work()
        return None

    def late(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        work()
        return self.earlier[request.phase]

    def repeated(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        first, again = work(), work()
        assert isinstance(first, ClientUpdate)
        assert isinstance(again, ClientUpdate)
        np.testing.assert_array_equal(first.vector, again.vector)
        return again

    def not_a_number(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        reply = work()
        assert isinstance(reply, ClientUpdate)
        return replace(reply, vector=reply.vector * np.nan)

    def says_it_is_another(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        reply = work()
        assert isinstance(reply, ClientUpdate)
        return replace(reply, client=0)

    def refuses(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        return ClientRefused(client=VICTIM, code=RefusalCode.POLICY_ROUNDS)

    def fails(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        return ClientFailed(client=VICTIM, reason="gone")

    def disk_lost(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        assert self.federation is not None
        if self.times == 1:
            shutil.rmtree(self.federation.state_dir(VICTIM))
        return work()

    def disk_zeroed(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        """A block of zeros in the middle of the file, as after a power cut."""
        assert self.federation is not None
        path = self.federation.state_file(VICTIM)
        if self.times == 1 and path.exists():
            data = bytearray(path.read_bytes())
            data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
            path.write_bytes(data)
        return work()

    def crashes_after_its_write(self, request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        if self.times == 1:
            work()
            assert self.federation is not None
            self.federation.works.pop(VICTIM)
            return None
        return work()


HARMLESS = ["request_lost_once", "repeated", "disk_lost", "disk_zeroed", "crashes_after_its_write"]
ABSENT = ["reply_lost_always", "late", "not_a_number", "says_it_is_another", "refuses", "fails"]


@pytest.mark.parametrize(
    ("method", "phase"),
    [*((method, "train") for method in METHODS), (METHODS[-1], "gradient")],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
@pytest.mark.parametrize("fault", HARMLESS + ABSENT)
def test_every_fault_in_every_phase(tmp_path: Path, method: Any, fault: str, phase: str) -> None:
    """The run has the undisturbed numbers, or in the faulty round those of a run without that client."""
    data = make("ridge", (6, 9, 4), 3, weights=(1.0, 2.0, 0.5))

    def gone(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
        absent = (request.client, request.round, request.phase) == (VICTIM, FAULTY, phase)
        return None if absent and fault in ABSENT else work()

    expected = Federation(tmp_path / "expected", data, method, event=gone, rules=RULES)
    expected.run(ROUNDS)
    faults = Faults(fault, phase)
    federation = faults.federation = Federation(tmp_path / "run", data, method, event=faults, rules=RULES)
    loses_gradient = phase == "train" and fault.startswith("disk") and isinstance(method, fs.FedLin)
    if fault in HARMLESS and not loses_gradient:
        federation.rules = replace(RULES, min_clients=3)
    federation.run(ROUNDS)
    assert faults.times
    if loses_gradient:
        assert federation.results[FAULTY].counted == (0, 2)  # its gradient is gone, so it cannot take local steps
        return
    np.testing.assert_array_equal(federation.ledger.server.theta, expected.ledger.server.theta)
    if federation.config.has_client_state:
        assert federation.drift() < 1e-13
        federation.check_backup()


@pytest.mark.parametrize("what", ["zeroed", "cut", "flipped", "gone"])
def test_a_damaged_backup_is_built_again(tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """The server asks the clients for their states once; then a client that loses its disk is helped as before."""
    data = make("ridge", (6, 9, 4), 3)
    quiet = Federation(tmp_path / "quiet", data, METHODS[0])
    quiet.run(7)
    federation = Federation(tmp_path / "run", data, METHODS[0])
    federation.run(3)
    for path in (tmp_path / "run" / "server" / "clients").iterdir():
        content = bytearray(path.read_bytes())
        if what == "zeroed":
            content[-40:] = bytes(40)
        elif what == "cut":
            content = content[:-10]
        elif what == "flipped":
            content[-20] ^= 1
        path.unlink() if what == "gone" else path.write_bytes(content)
    federation.restart_server()
    federation.run(5)
    federation.check_backup()
    shutil.rmtree(federation.state_dir(VICTIM))
    federation.run(7)
    np.testing.assert_array_equal(federation.ledger.server.theta, quiet.ledger.server.theta)
    assert federation.ledger.resets == 0


def test_an_array_that_claims_to_be_huge_is_not_believed(tmp_path: Path) -> None:
    """The header of an array claims more numbers than memory holds, with a checksum that is right."""
    npz.write(tmp_path / "x.states", {"a": np.zeros(3)}, {})
    with zipfile.ZipFile(tmp_path / "x.states") as whole, zipfile.ZipFile(tmp_path / "y.states", "w") as changed:
        for name in whole.namelist():
            changed.writestr(name, whole.read(name).replace(b"(3,), }" + b" " * 18, b"(3" + b"0" * 18 + b",), }"))
    with pytest.raises(ValueError, match=r"y\.states was not written by fedscaffold"):
        npz.read(tmp_path / "y.states")


def test_one_damaged_state_of_a_backup_is_lost_alone(tmp_path: Path) -> None:
    """Other clients' states in the same file are used."""
    federation = Federation(tmp_path, make("ridge", (6, 9, 4), 3), METHODS[0])
    federation.run(1)
    folder = federation.backup.folder
    assert folder is not None
    (path,) = folder.glob("*.states")
    with zipfile.ZipFile(path) as whole:
        parts = {name: whole.read(name) for name in whole.namelist()}
    (victim,) = (name for name in parts if name.startswith(f"{VICTIM}/"))
    with zipfile.ZipFile(path, "w") as changed:
        for name, data in parts.items():
            changed.writestr(name, data[:-1] + bytes([data[-1] ^ 1]) if name == victim else data)
    everyone = range(federation.config.n_clients)
    known = StateBackup(folder).load_all(federation.config, federation.ledger, everyone)
    assert sorted(known) == sorted({*everyone} - {VICTIM})

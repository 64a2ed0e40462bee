"""What a site gives away to a server that asks for more than it should, and what both keep private and whole."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import exclusive
from fedscaffold.core.random.stream import Batches
from fedscaffold.federation import (
    ClientUpdate,
    ProblemTask,
    Refusal,
    RefusalCode,
    RoundRules,
    RunConfig,
    SitePolicy,
    TrainRequest,
    handle_request,
    initial_ledger,
    run_status,
    train_request,
)
from fedscaffold.federation.client import store
from fedscaffold.federation.client.requests import Site, answer_request
from fedscaffold.federation.messages import Reply, pack
from fedscaffold.federation.server.session import open_session
from tests.federation.federation import Federation
from tests.samples import make

ROWS, DIM = 40, 3


def records() -> Any:
    return make("ridge", (ROWS, 50), DIM).subset([0])


def config_of(name: str = "run", *, batch: int | None = 10, method: Any = None, **more: Any) -> RunConfig:
    chosen = method or fs.FedAvg(step_size=0.1, local_steps=1)
    return RunConfig(name=name, method=chosen, n_clients=2, dim=DIM, batches=Batches(batch), **more)


def ask(config: RunConfig, folder: Path, policy: SitePolicy | None = None, theta: Any = None) -> Any:
    ledger = initial_ledger(config, np.zeros(DIM) if theta is None else theta)
    work = ProblemTask(records(), "reference")
    return handle_request(train_request(config, ledger, 0), work, folder, policy or SitePolicy())


def recovered(folder: Path, policy: SitePolicy, runs: int) -> int:
    """Records found from single steps on single records, under fresh names: the step from θ = 0 is γ·y·x."""
    problem = records()
    scaled = problem.y[:, None] * problem.x
    found: set[int] = set()
    for k in range(runs):
        config = config_of(f"harmless-{k}", batch=1, seed=k)
        try:
            reply = ask(config, folder, policy)
        except Refusal:
            continue
        distance = np.linalg.norm(reply.vector / 0.1 - scaled, axis=1)
        found |= set(np.flatnonzero(distance < 1e-9).tolist())
    return len(found)


def test_records_cannot_be_recovered_one_by_one(tmp_path: Path) -> None:
    """A site that allows anything gives most of its records away; one with the default policy none."""
    assert recovered(tmp_path / "open", SitePolicy.for_simulation(), 60) > ROWS // 2
    assert recovered(tmp_path / "default", SitePolicy(), 60) == 0


REFUSED = {
    "single records": (config_of(batch=1), {}, RefusalCode.POLICY_BATCH),
    "for ever": (
        config_of(method=fs.FedAvg(step_size=0.1, local_steps=2**31 - 1)), {}, RefusalCode.POLICY_LOCAL_STEPS,
    ),
    "another method": (config_of(), {"methods": ("Scaffold",)}, RefusalCode.POLICY_METHOD),
    "another name": (config_of(), {"run_names": ("pilot-*",)}, RefusalCode.POLICY_RUN_NAME),
    "too few rows": (config_of(), {"min_rows": ROWS + 1}, RefusalCode.POLICY_ROWS),
}  # fmt: skip


@pytest.mark.parametrize(("config", "rules", "code"), REFUSED.values(), ids=REFUSED)
def test_the_policy_is_obeyed_before_any_work(
    tmp_path: Path, config: RunConfig, rules: dict[str, Any], code: RefusalCode
) -> None:
    policy = SitePolicy(**rules)
    with pytest.raises(Refusal) as refused:
        ask(config, tmp_path, policy)
    assert refused.value.code is code
    assert not list(tmp_path.glob("*/*.state"))


def test_what_needs_no_table_is_refused_before_it_is_read(tmp_path: Path) -> None:
    def load() -> Any:
        raise AssertionError("the table was read")

    config = config_of(method=fs.FedAvg(step_size=0.1, local_steps=2**31 - 1))
    site = Site(client=lambda: 0, task=load, state_dir=lambda: tmp_path, policy=SitePolicy)
    request = train_request(config, initial_ledger(config, np.zeros(DIM)), 0)
    assert answer_request(lambda: pack(request), site).values["code"] == "policy-local-steps"


def test_rounds_and_runs_are_counted(tmp_path: Path) -> None:
    """Also when a server asks for one round again and again with other models."""
    config, policy = config_of(), SitePolicy(max_rounds=3, max_runs=2)
    ledger, work = initial_ledger(config, np.zeros(DIM)), ProblemTask(records(), "reference")
    for k in range(3):
        moved = ledger._replace(server=config.method.init_server(np.full((1, DIM), float(k))))
        handle_request(train_request(config, moved, 0), work, tmp_path, policy)
    with pytest.raises(Refusal) as refused:
        handle_request(train_request(config, ledger, 0), work, tmp_path, policy)
    assert refused.value.code is RefusalCode.POLICY_ROUNDS
    ask(config_of("second"), tmp_path, policy)
    with pytest.raises(Refusal) as refused:
        ask(config_of("third"), tmp_path, policy)
    assert refused.value.code is RefusalCode.POLICY_RUNS


def test_rows_that_are_kept_back_never_train(tmp_path: Path) -> None:
    config = config_of(batch=None)
    reply = ask(config, tmp_path, SitePolicy(keep_back=0.5, min_rows=5))
    assert 5 <= reply.n_rows < ROWS - 5
    assert not np.allclose(reply.vector, ask(config, tmp_path / "all", SitePolicy()).vector)
    assert ask(config, tmp_path / "quiet", SitePolicy(tell_rows=False)).n_rows is None


def test_draws_depend_on_a_secret_of_the_site(tmp_path: Path) -> None:
    one, two = (ask(config_of(), tmp_path / name).vector for name in ("one", "two"))
    assert not np.array_equal(one, two)
    seeded = SitePolicy(draws="seed")
    three, four = (ask(config_of(), tmp_path / name, seeded).vector for name in ("three", "four"))
    np.testing.assert_array_equal(three, four)
    assert stat.S_IMODE((tmp_path / "one" / "site.key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_batch_size = 0", "min_batch_size must be greater than or equal to 1, got 0"),
        ("min_batch = 5", "min_batch is not a setting of the policy"),
        ("keep_back = 1.0", "keep_back must be less than 1, got 1.0"),
        ("tell_rows = 1", "tell_rows must be a valid boolean, got 1"),
        ("run_names = 5", "run_names must be a valid tuple, got 5"),
        ("draws = 'both'", "draws must be 'secret' or 'seed', got both"),
        (
            "min_rows = 0\ndelta = 2",
            r"2 problems:\n- min_rows must be .*\n- delta must be less than 1",
        ),
        ("min_rows = ", "cannot read the policy"),
        ("\x00", "cannot read the policy"),
    ],
)
def test_a_policy_that_makes_no_sense_lets_nothing_through(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        SitePolicy.load(path)
    site = Site(
        client=lambda: 0, task=lambda: ProblemTask(records()), state_dir=lambda: tmp_path,
        policy=lambda: SitePolicy.load(path),
    )  # fmt: skip
    request = train_request(config_of(), initial_ledger(config_of(), np.zeros(DIM)), 0)
    assert answer_request(lambda: pack(request), site).values["code"] == "policy-file"


class Noisy:
    """Local steps with new noise in every call."""

    dim, n_rows = DIM, ROWS

    @contextmanager
    def open(self, batches: Batches, *, seed: int, client: int) -> Iterator[Any]:
        class Steps:
            def __call__(self, theta: Any, correction: Any, **rest: Any) -> Any:
                return theta[:, None, :] + np.random.default_rng().normal(size=(1, 1, DIM))

            def gradients(self, theta: Any, **rest: Any) -> Any:
                return np.random.default_rng().normal(size=(1, 1, DIM))

        yield Steps()


@pytest.mark.parametrize(
    "method", [fs.FedAvg(step_size=0.1, local_steps=1), fs.Scaffold(step_size=0.1, local_steps=1)], ids=repr
)
def test_noise_is_kept_whatever_the_method(tmp_path: Path, method: Any) -> None:
    """The same request brings the same reply, so that asking often does not average the noise away."""
    config = config_of(method=method)
    request = train_request(config, initial_ledger(config, np.zeros(DIM)), 0)
    replies = [handle_request(request, Noisy(), tmp_path) for _ in range(20)]
    assert len({reply.vector.tobytes() for reply in replies if isinstance(reply, ClientUpdate)}) == 1


def test_gradients_are_kept_too(tmp_path: Path) -> None:
    config = config_of(method=fs.FedLin(step_size=0.1, local_steps=1))
    request = train_request(config, initial_ledger(config, np.zeros(DIM)), 0, phase="gradient")
    work = ProblemTask(records(), "reference")
    first = handle_request(request, work, tmp_path)
    work.open = None  # type: ignore[method-assign, assignment]  # must not be called
    again = handle_request(request, work, tmp_path)
    assert isinstance(first, ClientUpdate)
    assert isinstance(again, ClientUpdate)
    np.testing.assert_array_equal(first.vector, again.vector)


def test_folders_are_their_owners_alone(tmp_path: Path) -> None:
    federation = Federation(
        tmp_path / "run", make("ridge", (6, 9), DIM), fs.Scaffold(step_size=0.1, local_steps=2)
    )
    with open_session(
        tmp_path / "server", federation.config, np.zeros(DIM), rules=RoundRules(min_clients=1), rounds=1
    ) as session:
        session.begin(lambda: (federation.problem.weights, federation.problem.sizes))
        session.run_round(federation.send)
    for folder in (tmp_path / "server", federation.state_dir(0)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix in (".npz", ".states", ".state", ".jsonl", ".key"):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert run_status(tmp_path / "server").state == "finished"
    metrics = (tmp_path / "server" / "metrics.prom").read_text()
    assert 'fedscaffold_rounds_total{name="test",run="' in metrics


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the site a code for the server; at the server a sentence, and the last round stays on disk."""
    problem = make("ridge", (6, 9), DIM)
    federation = Federation(tmp_path / "run", problem, fs.Scaffold(step_size=0.1, local_steps=2))
    request = train_request(federation.config, federation.ledger, 0)

    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Refusal, match="No space left") as refused:
            federation.handle(request)
        assert refused.value.code is RefusalCode.CANNOT_WRITE

    def two_rounds(patch: pytest.MonkeyPatch) -> None:
        """The disk is full when the last client of the second round has answered."""
        given: dict[str, Any] = {"rules": RoundRules(min_clients=1), "rounds": 3}
        answered: list[int] = []
        with open_session(tmp_path / "server", federation.config, np.zeros(DIM), **given) as session:
            session.begin(lambda: (problem.weights, problem.sizes))
            session.run_round(federation.send)

            def event(request: TrainRequest, work: Callable[[], Reply]) -> Reply:
                reply = work()
                answered.append(request.client)
                if len(answered) == 2:
                    patch.setattr(os, "fsync", full)
                return reply

            federation.event = event
            session.run_round(federation.send)

    with (
        monkeypatch.context() as patch,
        pytest.raises(InvalidInput, match=r"server cannot be written: No space left.*continues after the last"),
    ):
        two_rounds(patch)
    assert run_status(tmp_path / "server").state == "stopped"
    assert run_status(tmp_path / "server").round == 1


def test_two_processes_on_one_clients_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of()
    request = train_request(config, initial_ledger(config, np.zeros(DIM)), 0)
    task = ProblemTask(records(), "reference")
    handle_request(request, task, tmp_path)
    lock = next(tmp_path.glob("*/client-00000.lock"))
    monkeypatch.setattr(store, "LOCK_WAIT", 0.0)
    with exclusive(lock, "the file"), pytest.raises(Refusal) as refused:
        handle_request(request, task, tmp_path)
    assert refused.value.code is RefusalCode.BUSY


def test_the_server_names_a_client_whose_number_of_rows_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the site goes on with changed data, because its policy says so."""
    policy = SitePolicy.for_simulation().model_copy(update={"changed_data": "warn"})
    federation = Federation(
        tmp_path, make("ridge", (6, 9), DIM), fs.Scaffold(step_size=0.1, local_steps=2), policy=policy
    )
    federation.run(1)
    federation.works[1] = ProblemTask(federation.problem.subset([1]).take_rows(np.arange(4)), "reference")
    federation.run(2)
    assert "client 1 has 4 rows now, and had 9 when the run began" in caplog.text

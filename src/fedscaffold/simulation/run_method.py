"""Many rounds: problem × method × engine → trace."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core import provenance
from fedscaffold.core.checks import given, suggest_names, whole_number
from fedscaffold.core.display import Progress, progress_bar
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.privacy import Privacy
from fedscaffold.core.protocols import Availability, Engine, Method, Observer, Problem, Tracker
from fedscaffold.core.random.stream import Batches, Sampling, round_uniforms
from fedscaffold.core.types import Array
from fedscaffold.simulation.block import message_length
from fedscaffold.simulation.checkpoint import CheckpointFile
from fedscaffold.simulation.observers import Callback, Recorded, Recorder, resolve_observers
from fedscaffold.simulation.rounds import State, open_rounds, participants_of, run_rounds
from fedscaffold.simulation.setup import RunSetup, validate_run
from fedscaffold.simulation.trace import Trace


@suggest_names
def run(
    problem: Problem,
    method: Method,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int = 0,
    repetitions: int = 1,
    engine: str | Engine = "auto",
    theta0: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = None,
    sampling: Sampling = "with_replacement",
    record: Iterable[Recorded] = ("mse",),
    control_variates0: ArrayLike | None = None,
    checkpoint_every: int | None = None,
    client_state_dir: str | os.PathLike[str] | None = None,
    availability: Availability | None = None,
    privacy: Privacy | None = None,
    callback: Callback | None = None,
    track: Iterable[Tracker] = (),
) -> Trace:
    """Run a method on a problem and return the trace: final models, recorded metrics, costs and provenance.

    Parameters
    ----------
    problem
        The objective, for example `fedscaffold.problems.Ridge(X, y)`.
    method
        The steps of clients and server, for example `fedscaffold.Scaffold(step_size=0.05, local_steps=100)`.
    rounds
        T, the number of rounds.
    batch_size
        Number of records in each stochastic gradient; None for full gradients.
    seed
        Chooses the records that are drawn. The same seed gives the same bits, on any number of threads.
    repetitions
        Number of independent runs, side by side.
    engine
        "auto" (native if it knows the loss, else JAX or PyTorch, else the reference engine), "native", "jax",
        "torch", "reference", "ray", or an engine such as `engines.Native(threads=1)`; provenance names it.
    theta0
        Initial model, (dim,) or (repetitions, dim), a tree like the parameters of `problems.Differentiable`, or a
        module or `state_dict` like those of `problems.Torch`. By default the parameters that such a problem was
        given, and zero for other problems.
    checkpoint
        Checkpoint path, written every `checkpoint_every` rounds; the same call resumes from it.
    progress
        None for a progress bar on terminals, False for none, True for one always, or a function (done, rounds).
    sampling
        "with_replacement" or "without_replacement", within a batch.
    record
        Observers: "mse" (‖θ − θ*‖², which needs θ*), "loss", "accuracy", "average", "client_losses",
        "worst_loss", objects from `fedscaffold.simulation`, or functions of one model θ, (dim,), that return a
        number or an array; a function is recorded under its `__name__`.
    control_variates0
        Initial control variates of Scaffold, (n_clients, dim), with Σ w_c ξ_c = 0; zero by default.
    checkpoint_every
        Rounds between two checkpoints; a twentieth of the run by default.
    client_state_dir
        Folder for the client state, for runs in which the control variates of all clients do not fit in memory and
        a cohort of them takes part in a round: only the cohort's rows are then read and written. Files of an
        earlier run in it are overwritten.
    availability
        Which clients are available in which rounds, such as `fedscaffold.simulation.Periodic(4)`: of these all
        take part, or as many as the method takes, drawn at random. By default all are available.
    privacy
        Clipping and noise: `privacy.RecordLevel(...)` in every local step or `privacy.ClientLevel(...)` in what
        clients send; none by default. The noise of a run follows from its seed: it shows what privacy costs, and
        protects no records, except with `engines.Reference(secret_noise=True)`.
    callback
        Called as callback(round, values) before the first round (as round 0) and after each round, with the values
        that were just recorded by name, one row per repetition. An exception that it raises ends the run.
    track
        Trackers that the recorded values are sent to, such as `fedscaffold.trackers.TensorBoard("runs/one")`.

    Returns
    -------
    Trace
        Final models, recorded metrics, costs and provenance.

    Raises
    ------
    InvalidInput
        If an argument cannot be used; before any work.
    Diverged
        If θ grows beyond all bounds. Its `trace` holds the rounds before.
    CheckpointMismatch
        If the checkpoint belongs to another run.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=10)
    >>> trace = fs.run(problem, fs.Scaffold(step_size=0.05, local_steps=10), rounds=20, batch_size=10)
    >>> bool(trace.mse[0, -1] < trace.mse[0, 0])
    True
    """
    setup = validate_run(
        problem, method, rounds=rounds, batch_size=batch_size, seed=seed, repetitions=repetitions, engine=engine,
        theta0=theta0, sampling=sampling, control_variates0=control_variates0, client_state_dir=client_state_dir,
        availability=availability, privacy=privacy,
    )  # fmt: skip
    observers = resolve_observers(record)
    file = checkpoint_file(setup, checkpoint, checkpoint_every, observers)
    saved = None if file is None else file.load(method, setup.theta, setup.rounds, n_clients=problem.n_clients)
    if callback is not None and not callable(callback):
        raise InvalidInput(f"callback must be a function of (round, values), got {given(callback)}")
    with ExitStack() as stack:
        callbacks = [stack.enter_context(tracker.open(_settings(setup))) for tracker in checked_trackers(track)]
        recorder = Recorder(observers, problem, saved, callbacks if callback is None else [*callbacks, callback])
        advance = stack.enter_context(progress_bar(type(method).__name__, progress))
        state = run_to_end(
            setup, None if saved is None else saved.state, record=recorder.record, file=file,
            arrays=lambda: (recorder.metrics(), {}), progress=lambda done: advance(done, setup.rounds),
        )  # fmt: skip
    return make_trace(setup, state, recorder.metrics())


def checked_trackers(track: Any) -> Iterable[Tracker]:
    """Return the trackers; raise if one is none."""
    trackers = list(track) if isinstance(track, Iterable) and not isinstance(track, str) else [track]
    for tracker in trackers:
        if isinstance(tracker, str | os.PathLike | type) or not isinstance(tracker, Tracker):
            raise InvalidInput(
                f"track must hold trackers such as fedscaffold.trackers.TensorBoard('runs'), got {given(tracker)}"
            )
    return trackers


def _settings(setup: RunSetup) -> dict[str, Any]:
    """Return a run's settings as plain values by name, "problem.kind" and so on."""
    groups = {
        "method": provenance.describe(setup.method),
        "problem": setup.problem.describe(),
        **_described(setup),
    }
    each = {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    return {
        **each,
        "rounds": setup.rounds,
        "repetitions": len(setup.theta),
        "batch_size": setup.batches.size,
        "sampling": setup.batches.sampling,
        "seed": setup.seed,
        "engine": setup.engine.name,
    }


def checkpoint_file(
    setup: RunSetup,
    path: str | os.PathLike[str] | None,
    every: int | None,
    observers: Iterable[Observer] = (),
    **more: Any,
) -> CheckpointFile | None:
    """Return the checkpoint of a run, bound to all of its settings but the number of rounds; None without a path.

    By default it is written twenty times in a run: often enough to lose little, too seldom to take time.
    """
    every = max(1, setup.rounds // 20) if every is None else whole_number("checkpoint_every", every, least=1)
    if path is None:
        return None
    start = [setup.theta]
    if setup.control_variates is not None:
        start.append(np.asarray(setup.control_variates, np.float64))
    identity = {
        "problem": setup.problem.fingerprint(),
        "method": provenance.describe(setup.method),
        "batches": provenance.describe(setup.batches),
        "seed": setup.seed,
        "repetitions": len(setup.theta),
        "engine": setup.engine.name,
        "start": _digest(*start),
        "record": [provenance.describe(observer) for observer in observers],
        **_described(setup),
        **more,
    }
    return CheckpointFile(path, every, identity)


def run_to_end(
    setup: RunSetup,
    state: State | None,
    *,
    record: Callable[[State], bool],
    arrays: Callable[[], tuple[Mapping[str, Array], Mapping[str, Array]]],
    file: CheckpointFile | None,
    progress: Callable[[int], None],
) -> State:
    """Run rounds until all are done or `record` returns True, and gather the client state as named arrays.

    `state` is the one to continue from; with None, `record` is called with the initial state too. `arrays` returns
    recorded metrics, and what else a checkpoint keeps besides the state. If θ leaves the limit, raise Diverged,
    whose `trace` ends with the last round before.
    """
    with np.errstate(over="ignore", invalid="ignore"), open_rounds(setup) as step:
        if state is None:
            state = step.initial_state()
            record(state)
        else:
            state = step.scatter(state)
        last = state

        def record_last(new: State) -> bool:
            nonlocal last
            ended = record(new)
            last = new
            return ended

        def save(state: State) -> None:
            if file is not None:
                file.save(step.gather(state), *arrays())

        try:
            state = run_rounds(
                step, state, until=setup.rounds, record=record_last, progress=progress, save=save,
                save_every=setup.rounds if file is None else file.every,
            )  # fmt: skip
        except Diverged as error:
            error.trace = make_trace(setup, step.gather(last), arrays()[0])
            raise
        return step.gather(state)


def make_trace(setup: RunSetup, state: State, metrics: Mapping[str, Array], **more: Any) -> Trace:
    """Return the trace of a run that ended in this state; `more` goes to its provenance."""
    problem, method = setup.problem, setup.method
    xi = method.correction(state.client_state, state.server, None)
    repetitions = len(state.theta)
    gradients, vectors = costs(
        problem, method, setup.batches, seed=setup.seed, repetitions=repetitions, rounds=state.round,
        availability=setup.availability,
    )  # fmt: skip
    sent, received = bits(problem, method, rounds=state.round, availability=setup.availability)
    return Trace(
        theta=state.theta,
        control_variates=np.broadcast_to(xi, (repetitions, problem.n_clients, problem.dim)),
        metrics=metrics,
        rounds=state.round,
        gradients_per_client=gradients,
        vectors_per_client=vectors,
        bits_sent_per_client=sent,
        bits_received_per_client=received,
        provenance={
            "method": provenance.describe(method),
            "problem": problem.describe(),
            "fingerprint": problem.fingerprint(),
            "theta0": _digest(setup.theta) if setup.theta.any() else "zero",
            "batch_size": setup.batches.size,
            "sampling": setup.batches.sampling,
            "seed": setup.seed,
            "repetitions": repetitions,
            "engine": setup.engine.name,
            **_described(setup),
            **provenance.origin(),
            "elapsed_seconds": round(time.perf_counter() - setup.began, 3),
            **more,
        },
    )


def _described(setup: RunSetup) -> dict[str, Any]:
    """Return availability and privacy as plain values, for identity and provenance; nothing for a run without."""
    found = {"availability": setup.availability, "privacy": setup.privacy}
    return {name: provenance.describe(value) for name, value in found.items() if value is not None}


def _digest(*arrays: Array) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def costs(
    problem: Problem,
    method: Method,
    batches: Batches,
    *,
    seed: int,
    repetitions: int,
    rounds: int,
    availability: Availability | None = None,
) -> tuple[Array, Array]:
    """Return the minibatch gradients and vectors per client up to each round, on average over the clients.

    Shapes (repetitions, rounds + 1) and (rounds + 1,). A full gradient counts as n_c/B minibatch gradients.
    """
    share = shares(problem, method, rounds, availability)
    uniform = round_uniforms(seed, repetitions, range(rounds)).reshape(-1)
    each = method.local_step_counts(problem.n_clients, uniform).mean(axis=1)
    if method.exchange is not None:
        full = method.exchange in ("full", "own") and batches.size is not None
        each = each + (float(np.mean(problem.sizes)) / (batches.size or 1) if full else 1.0)
    each = share * np.broadcast_to(each, uniform.shape).reshape(repetitions, rounds)
    gradients = np.concatenate([np.zeros((repetitions, 1)), np.cumsum(each, axis=1)], axis=1)
    return gradients, method.vectors_per_round * _summed(share)


def shares(problem: Problem, method: Method, rounds: int, availability: Availability | None) -> Array:
    """Return the share of the clients that takes part in each round, (rounds,)."""
    counts = [
        participants_of(method, problem.n_clients, round, availability)[1]
        for round in range(rounds if availability is not None else 1)
    ]
    return np.broadcast_to(np.array(counts) / problem.n_clients, (rounds,))


def _summed(values: Array) -> Array:
    """Return the sums up to each round, from 0 on."""
    return np.concatenate([np.zeros(1), np.cumsum(values)])


def bits(
    problem: Problem, method: Method, *, rounds: int, availability: Availability | None = None
) -> tuple[Array, Array]:
    """Return bits sent and received up to each round, on average over the clients, (rounds + 1,) each.

    A number has 64 bits. A client sends its message, compressed by some methods, and what it exchanges.
    """
    participants = method.participants(problem.n_clients)
    vector, exchanged = 64.0 * problem.dim, int(method.exchange in ("minibatch", "full"))
    sent, message = 1, vector
    if method.compressor is not None:
        message = method.compressor.bits(problem.dim, participants)
    else:
        sent = message_length(method, 1)
        message *= sent
    counted = _summed(shares(problem, method, rounds, availability))
    received = (method.vectors_per_round - sent - exchanged) * vector
    if method.download is not None:
        received = method.download.bits(problem.dim, participants)
    return counted * (message + exchanged * vector), counted * received

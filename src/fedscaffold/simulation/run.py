"""The round loop: problem × method × engine → trace."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import CheckpointMismatch, InvalidInput
from fedscaffold.core.files import check_writable
from fedscaffold.core.progress import Progress, progress_bar
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.random.stream import round_uniforms
from fedscaffold.core.types import Array, Engine, Method, Observer, Problem
from fedscaffold.engines import resolve as resolve_engine
from fedscaffold.simulation import checkpoint as checkpoints
from fedscaffold.simulation import provenance
from fedscaffold.simulation.checkpoint import Stored
from fedscaffold.simulation.observers import resolve as resolve_observers
from fedscaffold.simulation.recorder import Recorder
from fedscaffold.simulation.rounds import State, divergence_limit, open_rounds
from fedscaffold.simulation.trace import Trace

CHECKPOINTS_PER_RUN = 20


def run(
    problem: Problem,
    method: Method,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int = 0,
    repetitions: int = 1,
    engine: str | Engine = "auto",
    theta0: ArrayLike | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = None,
    sampling: Sampling = "with_replacement",
    record: Iterable[str | Observer] = ("mse",),
    control_variates0: ArrayLike | None = None,
    checkpoint_every: int | None = None,
    client_state_dir: str | os.PathLike[str] | None = None,
) -> Trace:
    """Run a method on a problem and return what the observers recorded.

    Parameters
    ----------
    problem
        What to minimise, for example `fedscaffold.problems.Ridge(X, y)`.
    method
        For example `fedscaffold.Scaffold(step_size=0.05, local_steps=100)`.
    rounds
        T, how many rounds.
    batch_size
        Records in each stochastic gradient; None for full gradients.
    seed
        Chooses the records that are drawn. The same seed gives the same bits, on any number of threads.
    repetitions
        Independent runs of the same thing, side by side.
    engine
        "numba" (the default), "jax", "reference", or an engine such as `engines.Numba(threads=1)`.
    theta0
        Where to start: (dim,) or (repetitions, dim); zero by default.
    checkpoint
        A file. It is written now and then, and the same call goes on from it.
    progress
        None for a bar on terminals, False for none, True for one always, or a function (done, rounds).
    sampling
        "with_replacement" or "without_replacement", within a batch.
    record
        Observers: "mse", "loss", "average", or objects from `fedscaffold.simulation`.
    control_variates0
        Scaffold's ξ_c to start from: (n_clients, dim), with Σ w_c ξ_c = 0; zero by default.
    checkpoint_every
        Rounds between two checkpoints; a twentieth of the run by default.
    client_state_dir
        A folder for the clients' memory, when control variates of all clients are more than fits in this machine's
        memory and a cohort of them takes part in a round: only its rows are then read and written. What an earlier
        run left there is overwritten.
    """
    batches, chosen_engine, theta = opening(
        problem, rounds=rounds, batch_size=batch_size, seed=seed, repetitions=repetitions, engine=engine,
        theta0=theta0, sampling=sampling,
    )  # fmt: skip
    if checkpoint_every is not None:
        whole_number("checkpoint_every", checkpoint_every, least=1)
    every = checkpoint_every or max(1, rounds // CHECKPOINTS_PER_RUN)
    observers = resolve_observers(record)
    gradients, vectors = costs(problem, method, batches, seed=seed, repetitions=repetitions, rounds=rounds)
    if control_variates0 is not None:  # refused here, before any work, if they make no sense
        method.init_clients(repetitions, problem.weights, problem.dim, control_variates0)
    stored: Stored | None = None
    identity: dict[str, Any] = {}
    if checkpoint is not None:
        check_writable(checkpoint)
        identity = _identity(problem, method, batches, seed, chosen_engine, theta, control_variates0, observers)
        stored = checkpoints.load(checkpoint, identity)
        if stored is not None and stored.round > rounds:
            raise CheckpointMismatch(f"{checkpoint} is at round {stored.round}, past the {rounds} asked for")
    recorder = Recorder(observers, problem, stored.records if stored is not None else {})

    with (
        np.errstate(over="ignore", invalid="ignore"),
        open_rounds(
            problem, method, chosen_engine, batches, seed=seed, limit=divergence_limit(theta), folder=client_state_dir
        ) as step,
        progress_bar(type(method).__name__, progress) as advance,
    ):
        if stored is None:
            state = step.first(theta, control_variates0)
            recorder.see(state.round, state.theta)
        else:
            state = step.placed(_resumed(stored, problem, method, theta))

        def save() -> None:
            if checkpoint is not None:
                now = step.collected(state)
                found = Stored(now.round, now.server._asdict(), now.memory._asdict(), recorder.records())
                checkpoints.save(checkpoint, found, identity)

        try:
            advance(state.round, rounds)
            while state.round < rounds:
                new = step(state)
                recorder.see(new.round, new.theta)
                state = new
                if state.round % every == 0 or state.round == rounds:
                    save()
                advance(state.round, rounds)
        except KeyboardInterrupt:
            if recorder.round == state.round and step.holds(state):  # not caught between two of them
                save()
            raise
        state = step.collected(state)

    return ended(
        problem, method, batches, chosen_engine, seed=seed, state=state, records=recorder.records(),
        gradients=gradients, vectors=vectors,
    )  # fmt: skip


def _resumed(stored: Stored, problem: Problem, method: Method, theta: Array) -> State:
    """The state of a checkpoint."""
    nobody = method.init_clients(len(theta), problem.weights[:0], problem.dim, None)
    return State(stored.round, type(method.init_server(theta))(**stored.server), type(nobody)(**stored.memory))


def ended(
    problem: Problem,
    method: Method,
    batches: Batches,
    engine: Engine,
    *,
    seed: int,
    state: State,
    records: Mapping[str, Array],
    gradients: Array,
    vectors: Array,
    **more: Any,
) -> Trace:
    """The trace of a run that has ended in this state; more goes to its provenance."""
    xi = method.correction(state.memory, state.server, None)
    repetitions = len(state.theta)
    return Trace(
        theta=state.theta,
        control_variates=np.broadcast_to(xi, (repetitions, problem.n_clients, problem.dim)),
        records=records,
        rounds=state.round,
        gradients_per_client=gradients,
        vectors_per_client=vectors,
        provenance={
            "method": provenance.describe(method),
            "problem": problem.describe(),
            "batch_size": batches.size,
            "sampling": batches.sampling,
            "seed": seed,
            "repetitions": repetitions,
            "engine": engine.name,
            "versions": provenance.versions(),
            "machine": provenance.machine(),
            "finished": provenance.now(),
            **more,
        },
    )


def opening(
    problem: Problem,
    *,
    rounds: int,
    batch_size: int | None,
    seed: int,
    repetitions: int,
    engine: str | Engine,
    theta0: ArrayLike | None,
    sampling: Sampling,
) -> tuple[Batches, Engine, Array]:
    """Batches, engine and first θ (repetitions, dim), from arguments that are refused if they make no sense."""
    whole_number("rounds", rounds, least=1)
    whole_number("repetitions", repetitions, least=1)
    if whole_number("seed", seed, least=0) >= 2**64:
        raise InvalidInput(f"seed must be below 2**64, got {seed}")
    batches = Batches(batch_size, sampling)
    batches.check_fits(problem.sizes)
    return batches, resolve_engine(engine), _starting_point(theta0, repetitions, problem.dim)


def costs(
    problem: Problem, method: Method, batches: Batches, *, seed: int, repetitions: int, rounds: int
) -> tuple[Array, Array]:
    """Minibatch gradients and vectors per client up to each round, on average over the clients.

    Shapes (repetitions, rounds + 1) and (rounds + 1,). A full gradient counts as n_c/B minibatch gradients.
    """
    share = method.participants(problem.n_clients) / problem.n_clients
    round_uniform = round_uniforms(seed, repetitions, range(rounds)).reshape(-1)
    each = method.local_step_counts(problem.n_clients, round_uniform).mean(axis=1)
    if method.exchange is not None:
        each = each + (1.0 if method.exchange == "minibatch" or batches.size is None else _epoch(problem, batches))
    each = np.broadcast_to(share * each, round_uniform.shape).reshape(repetitions, rounds)
    gradients = np.concatenate([np.zeros((repetitions, 1)), np.cumsum(each, axis=1)], axis=1)
    return gradients, share * method.vectors_per_round * np.arange(rounds + 1.0)


def _epoch(problem: Problem, batches: Batches) -> float:
    return float(np.mean(problem.sizes)) / (batches.size or 1)


def _starting_point(theta0: ArrayLike | None, repetitions: int, dim: int) -> Array:
    if theta0 is None:
        return np.zeros((repetitions, dim))
    try:
        given = np.asarray(theta0, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"theta0 must hold numbers: {error}") from None
    if given.shape not in ((dim,), (repetitions, dim)):
        raise InvalidInput(f"theta0 must have shape ({dim},) or ({repetitions}, {dim}), got {given.shape}")
    if not np.isfinite(given).all():
        raise InvalidInput("theta0 holds NaN or infinite values")
    return np.broadcast_to(given, (repetitions, dim)).copy()


def _identity(
    problem: Problem,
    method: Method,
    batches: Batches,
    seed: int,
    engine: Engine,
    theta: Array,
    control_variates: ArrayLike | None,
    observers: Iterable[Observer],
) -> dict[str, Any]:
    """What must be the same for a checkpoint to be gone on from."""
    start = [theta] if control_variates is None else [theta, np.asarray(control_variates, dtype=np.float64)]
    digest = hashlib.sha256(b"".join(array.tobytes() for array in start))
    return {
        "problem": problem.fingerprint(),
        "method": provenance.describe(method),
        "batches": provenance.describe(batches),
        "seed": seed,
        "repetitions": len(theta),
        "engine": engine.name,
        "start": digest.hexdigest(),
        "record": [provenance.describe(observer) for observer in observers],
    }

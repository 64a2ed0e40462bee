"""The round loop: problem × method × engine → trace."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.batches import Batches, Sampling
from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import CheckpointMismatch, Diverged, InvalidInput
from fedscaffold.core.files import check_writable
from fedscaffold.core.types import Array, Engine, LocalSgd, Method, Observer, Problem
from fedscaffold.engines import resolve as resolve_engine
from fedscaffold.progress import Progress, progress_bar
from fedscaffold.traces import checkpoint as checkpoints
from fedscaffold.traces import provenance
from fedscaffold.traces.checkpoint import Stored
from fedscaffold.traces.observers import resolve as resolve_observers
from fedscaffold.traces.recorder import Recorder
from fedscaffold.traces.trace import Trace

EXPLODED = 1e15  # times 1 + the largest number of theta0
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
        "numba" (the default), "reference", or an engine such as `engines.Numba(threads=1)`.
    theta0
        Where to start: (dim,) or (repetitions, dim); zero by default.
    checkpoint
        A file. It is written now and then, and the same call goes on from it.
    progress
        None for a bar on terminals, False for none, True for one always, or a function (done, rounds).
    sampling
        "with_replacement" or "without_replacement", within a batch.
    record
        Observers: "mse", "loss", "average", or objects from `fedscaffold.traces`.
    control_variates0
        Scaffold's ξ_c to start from: (n_clients, dim), with Σ w_c ξ_c = 0; zero by default.
    checkpoint_every
        Rounds between two checkpoints; a twentieth of the run by default.
    """
    whole_number("rounds", rounds, least=1)
    whole_number("repetitions", repetitions, least=1)
    if whole_number("seed", seed, least=0) >= 2**64:
        raise InvalidInput(f"seed must be below 2**64, got {seed}")
    if checkpoint_every is not None:
        whole_number("checkpoint_every", checkpoint_every, least=1)
    every = checkpoint_every or max(1, rounds // CHECKPOINTS_PER_RUN)
    batches = Batches(batch_size, sampling)
    batches.check_fits(problem.sizes)
    chosen_engine, observers = resolve_engine(engine), resolve_observers(record)
    theta = _starting_point(theta0, repetitions, problem.dim)
    memory = method.start(repetitions, problem.weights, problem.dim, control_variates0)
    limit = EXPLODED * (1.0 + np.abs(theta).max())

    state = State(0, theta, memory)
    earlier: Mapping[str, Array] = {}
    identity: dict[str, Any] = {}
    if checkpoint is not None:
        check_writable(checkpoint)
        identity = _identity(problem, method, batches, seed, chosen_engine, state, observers)
        stored = checkpoints.load(checkpoint, identity)
        if stored is not None:
            if stored.round > rounds:
                raise CheckpointMismatch(f"{checkpoint} is at round {stored.round}, past the {rounds} asked for")
            state = State(stored.round, stored.theta, type(memory)(**stored.memory))
            earlier = stored.records
    recorder = Recorder(observers, problem, earlier)

    def save() -> None:
        if checkpoint is not None:
            arrays = state.memory._asdict()
            checkpoints.save(checkpoint, Stored(state.round, state.theta, arrays, recorder.records()), identity)

    with (
        np.errstate(over="ignore", invalid="ignore"),
        chosen_engine.open(problem, batches, seed=seed) as local_sgd,
        progress_bar(type(method).__name__, progress) as advance,
    ):
        if not earlier:
            recorder.see(state.round, state.theta)
        try:
            advance(state.round, rounds)
            while state.round < rounds:
                new = one_round(state, problem, method, local_sgd, batches, limit)
                recorder.see(new.round, new.theta)
                state = new
                if state.round % every == 0 or state.round == rounds:
                    save()
                advance(state.round, rounds)
        except KeyboardInterrupt:
            if recorder.round == state.round:  # not caught between the two
                save()
            raise

    xi = method.correction(state.memory, state.theta)
    return Trace(
        theta=state.theta,
        control_variates=np.broadcast_to(xi, (repetitions, problem.n_clients, problem.dim)).copy(),
        records=recorder.records(),
        rounds=rounds,
        gradients_per_round=method.local_steps,
        vectors_per_round=method.vectors_per_round,
        provenance={
            "method": provenance.describe(method),
            "problem": problem.describe(),
            "batch_size": batch_size,
            "sampling": sampling,
            "seed": seed,
            "repetitions": repetitions,
            "engine": chosen_engine.name,
            "versions": provenance.versions(),
            "machine": provenance.machine(),
            "finished": provenance.now(),
        },
    )


class State(NamedTuple):
    """All that the next round depends on."""

    round: int
    theta: Array
    memory: Any


def one_round(
    state: State, problem: Problem, method: Method, local_sgd: LocalSgd, batches: Batches, limit: float
) -> State:
    """Local steps on every client, then the server's step, then the clients' memory."""
    correction = method.correction(state.memory, state.theta)
    local = local_sgd(
        state.theta, correction, step_size=method.step_size, local_steps=method.local_steps, round=state.round
    )
    theta = method.aggregate(state.theta, weighted_mean(local, problem.weights))
    if not np.abs(theta).max() < limit:
        raise _diverged(problem, method, batches, state.round + 1, local)
    return State(state.round + 1, theta, method.remember(state.memory, local, theta))


def weighted_mean(local: Array, weights: Array) -> Array:
    """Σ_c w_c θ_c for each repetition, in the order of the clients."""
    return np.einsum("c,rcj->rj", weights, local)


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
    start: State,
    observers: Iterable[Observer],
) -> dict[str, Any]:
    """What must be the same for a checkpoint to be gone on from."""
    digest = hashlib.sha256(b"".join(array.tobytes() for array in (start.theta, *start.memory)))
    return {
        "problem": problem.fingerprint(),
        "method": provenance.describe(method),
        "batches": provenance.describe(batches),
        "seed": seed,
        "repetitions": len(start.theta),
        "engine": engine.name,
        "start": digest.hexdigest(),
        "record": [provenance.describe(observer) for observer in observers],
    }


def _diverged(problem: Problem, method: Method, batches: Batches, round: int, local: Array) -> Diverged:
    """Which client went first, and what would have been safe."""
    sizes = np.nan_to_num(np.abs(local), nan=np.inf).max(axis=(0, 2))
    client = int(sizes.argmax())
    safe = method.safe_step_size(problem.smoothness(batches), problem.strong_convexity())
    return Diverged(
        f"{type(method).__name__} diverged in round {round}: client {client}'s model reached {sizes[client]:.3g} "
        f"with step_size={method.step_size:g}, local_steps={method.local_steps}. "
        f"step_size={safe:.3g} is safe for this problem and batch size.",
        round=round,
        client=client,
        safe_step_size=safe,
    )

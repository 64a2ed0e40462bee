"""What every kind of run does: checks, the identity of its checkpoint, rounds to the end, costs, trace."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core import provenance
from fedscaffold.core.checks import check_problem_and_method, given, numbers, seed_number, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import Privacy
from fedscaffold.core.protocols import Availability, Engine, Method, Observer, Problem
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.random.stream import WORDS_PER_ROUND, round_uniforms
from fedscaffold.core.storage.memory_limit import check_memory
from fedscaffold.core.types import Array
from fedscaffold.engines import choose_engine
from fedscaffold.simulation.block import message_length, takes_anchor
from fedscaffold.simulation.checkpoint import CheckpointFile
from fedscaffold.simulation.divergence import divergence_limit
from fedscaffold.simulation.protection import check_privacy
from fedscaffold.simulation.rounds import State, open_rounds, participants_of, run_rounds
from fedscaffold.simulation.trace import Trace

CHECKPOINTS_PER_RUN = 20
BYTES_PER_DRAW = 64  # of a batch, in words, indices and margins


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """The arguments of a run, checked: problem, method, rounds, batches, engine, seed and the first θ."""

    problem: Problem
    method: Method
    rounds: int
    batches: Batches
    engine: Engine
    seed: int
    theta: Array  # (repetitions, dim)
    availability: Availability | None = None
    privacy: Privacy | None = None

    def checkpoint_file(
        self,
        path: str | os.PathLike[str] | None,
        every: int | None,
        *,
        control_variates: ArrayLike | None = None,
        observers: Iterable[Observer] = (),
        **more: Any,
    ) -> CheckpointFile:
        """The checkpoint of this run, bound to all of its settings but the number of rounds.

        It is written every so many rounds; by default twenty times in a run.
        """
        if every is None:
            every = max(1, self.rounds // CHECKPOINTS_PER_RUN)
        every = whole_number("checkpoint_every", every, least=1)
        if path is None:
            return CheckpointFile(None, every, {})
        start = (
            [self.theta] if control_variates is None else [self.theta, np.asarray(control_variates, np.float64)]
        )
        identity = {
            "problem": self.problem.fingerprint(),
            "method": provenance.describe(self.method),
            "batches": provenance.describe(self.batches),
            "seed": self.seed,
            "repetitions": len(self.theta),
            "engine": self.engine.name,
            "start": hashlib.sha256(b"".join(array.tobytes() for array in start)).hexdigest(),
            "record": [provenance.describe(observer) for observer in observers],
            **self.described_availability(),
            **self.described_privacy(),
            **more,
        }
        return CheckpointFile(path, every, identity)

    def described_availability(self) -> dict[str, Any]:
        """Who is available, where not everyone is."""
        return {} if self.availability is None else {"availability": provenance.describe(self.availability)}

    def described_privacy(self) -> dict[str, Any]:
        """Clipping and noise as plain values, for identity and provenance; nothing for a run without."""
        return {} if self.privacy is None else {"privacy": provenance.describe(self.privacy)}

    def run_to_end(
        self,
        state: State | None,
        *,
        record: Callable[[State], bool],
        arrays: Callable[[], tuple[Mapping[str, Array], Mapping[str, Array]]],
        file: CheckpointFile,
        progress: Callable[[int], None],
        method: Method | None = None,
        control_variates: ArrayLike | None = None,
        first_step: int = 0,
        folder: str | os.PathLike[str] | None = None,
    ) -> State:
        """Run rounds until all are done or `record` returns True; the client state comes back as named arrays.

        Parameters
        ----------
        state
            Where to continue; None to begin.
        record
            Called with the initial state and with that after each round.
        arrays
            What a checkpoint keeps besides the state: recorded metrics, and what else the kind of run needs.
        file, progress
            The checkpoint, and a function of the number of rounds done.
        method
            Another method than the run's own, such as one with half of its step size.
        control_variates
            Initial control variates of the clients; None for the method's own.
        first_step, folder
            As for `open_rounds`.
        """
        with (
            np.errstate(over="ignore", invalid="ignore"),
            open_rounds(
                self.problem, method or self.method, self.engine, self.batches, seed=self.seed,
                limit=divergence_limit(self.theta), first_step=first_step, folder=folder,
                availability=self.availability, privacy=self.privacy,
            ) as step,
        ):  # fmt: skip
            if state is None:
                state = step.initial_state(self.theta, control_variates)
                record(state)
            else:
                state = step.scatter(state)

            def save(state: State) -> None:
                if file.path is not None:
                    file.save(step.gather(state), *arrays())

            state = run_rounds(
                step, state, until=self.rounds, record=record, progress=progress, save=save, save_every=file.every
            )
            return step.gather(state)


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
    """Minibatch gradients and vectors per client up to each round, on average over the clients.

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
    """The share of the clients that takes part in each round, (rounds,)."""
    counts = [
        participants_of(method, problem.n_clients, round, availability)[1]
        for round in range(rounds if availability is not None else 1)
    ]
    return np.broadcast_to(np.array(counts) / problem.n_clients, (rounds,))


def _summed(values: Array) -> Array:
    """Sums up to each round, from 0 on."""
    return np.concatenate([np.zeros(1), np.cumsum(values)])


def bits(
    problem: Problem, method: Method, *, rounds: int, availability: Availability | None = None
) -> tuple[Array, Array]:
    """Bits sent and received per client up to each round, on average over the clients, (rounds + 1,) each.

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


def validate_run(
    problem: Problem,
    method: Method,
    *,
    rounds: int,
    batch_size: int | None,
    seed: int,
    repetitions: int,
    engine: str | Engine,
    theta0: ArrayLike | None,
    sampling: Sampling,
    availability: Availability | None = None,
    privacy: Privacy | None = None,
) -> RunSetup:
    """Check the arguments that all kinds of runs share, before any work."""
    check_problem_and_method(problem, method)
    rounds = whole_number("rounds", rounds, least=1)
    repetitions = whole_number("repetitions", repetitions, least=1)
    seed = seed_number("seed", seed)
    batches = Batches(batch_size, sampling)
    batches.check_fits(problem.sizes)
    method.participants(problem.n_clients)  # both refuse settings that do not fit the problem
    if availability is not None:
        if isinstance(availability, type) or not isinstance(availability, Availability):
            raise InvalidInput(
                f"availability must be one such as fedscaffold.simulation.Periodic(4), got {given(availability)}"
            )
        availability.available(0, problem.n_clients)
        if privacy is not None:
            raise InvalidInput(
                "the cost of privacy is known for clients that are drawn at random from all; give privacy or "
                "availability, not both"
            )
    counts = method.local_step_counts(problem.n_clients, np.full(1, 0.5))
    check_draws(batches, int(counts.max()))
    if privacy is not None:
        check_privacy(privacy, problem, method, int(counts.max()))
    models = (
        f"the models of {repetitions:,} repetitions and {problem.n_clients:,} clients with dim={problem.dim:,}"
    )
    check_memory(models, 8 * repetitions * problem.n_clients * problem.dim)
    check_memory(f"what {rounds:,} rounds of {repetitions:,} repetitions record", 16 * rounds * repetitions)
    return RunSetup(
        problem=problem,
        method=method,
        rounds=rounds,
        batches=batches,
        engine=choose_engine(engine, problem, anchored=takes_anchor(method, problem.dim)),
        seed=seed,
        theta=_starting_point(theta0, repetitions, problem.dim),
        availability=availability,
        privacy=privacy,
    )


def check_draws(batches: Batches, local_steps: int) -> None:
    """Refuse rounds that would draw more words than a client's stream has, or more records than memory holds."""
    if batches.size is None:
        return
    if batches.size * local_steps > WORDS_PER_ROUND:
        raise InvalidInput(
            f"batch_size={batches.size:,} and {local_steps:,} local steps draw {batches.size * local_steps:,} "
            f"records in a round, but the random stream has {WORDS_PER_ROUND:,} for it; take fewer"
        )
    check_memory(f"batches of {batches.size:,} records", BYTES_PER_DRAW * batches.size)


def make_trace(setup: RunSetup, state: State, metrics: Mapping[str, Array], **more: Any) -> Trace:
    """The trace of a run that ended in this state; `more` goes to its provenance."""
    xi = setup.method.correction(state.client_state, state.server, None)
    repetitions = len(state.theta)
    gradients, vectors = costs(
        setup.problem, setup.method, setup.batches, seed=setup.seed, repetitions=repetitions, rounds=setup.rounds,
        availability=setup.availability,
    )  # fmt: skip
    sent, received = bits(setup.problem, setup.method, rounds=setup.rounds, availability=setup.availability)
    return Trace(
        theta=state.theta,
        control_variates=np.broadcast_to(xi, (repetitions, setup.problem.n_clients, setup.problem.dim)),
        metrics=metrics,
        rounds=state.round,
        gradients_per_client=gradients,
        vectors_per_client=vectors,
        bits_sent_per_client=sent,
        bits_received_per_client=received,
        provenance={
            "method": provenance.describe(setup.method),
            "problem": setup.problem.describe(),
            "batch_size": setup.batches.size,
            "sampling": setup.batches.sampling,
            "seed": setup.seed,
            "repetitions": repetitions,
            **setup.described_availability(),
            "engine": setup.engine.name,
            **setup.described_privacy(),
            "versions": provenance.versions(),
            "machine": provenance.machine(),
            "finished": provenance.now(),
            **more,
        },
    )


def _starting_point(theta0: ArrayLike | None, repetitions: int, dim: int) -> Array:
    if theta0 is None:
        return np.zeros((repetitions, dim))
    try:
        start = numbers(theta0)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"theta0 must hold numbers: {error}") from None
    if start.shape not in ((dim,), (repetitions, dim)):
        raise InvalidInput(f"theta0 must have shape ({dim},) or ({repetitions}, {dim}), got {start.shape}")
    if not np.isfinite(start).all():
        raise InvalidInput("theta0 holds NaN or infinite values")
    return np.broadcast_to(start, (repetitions, dim)).copy()

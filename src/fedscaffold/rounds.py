"""One round: who takes part, local steps, the server's step, the clients' memory."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.batches import Batches
from fedscaffold.core.errors import Diverged
from fedscaffold.core.stream import chances, cohorts
from fedscaffold.core.types import Array, Engine, Exchanged, LocalSgd, Method, Problem, Whole

AT_ONCE = 64  # rounds whose chances are drawn at a time
EXPLODED = 1e15  # times 1 + the largest number of the first θ


class State(NamedTuple):
    """All that the next round depends on."""

    round: int
    server: Any  # a named tuple of arrays (repetition, coordinate), θ first
    memory: Any  # a named tuple of arrays (repetition, client, coordinate)

    @property
    def theta(self) -> Array:
        """θ, (repetitions, dim)."""
        return self.server.theta


Step = Callable[[State], State]


def largest_sound(theta: Array) -> float:
    """A number above which entries of θ are taken for divergence, for a run from this θ."""
    return EXPLODED * (1.0 + float(np.abs(theta).max()))


def first_state(problem: Problem, method: Method, theta: Array, control_variates: Any = None) -> State:
    """Before the first round, from θ (repetitions, dim)."""
    memory = method.start(len(theta), problem.weights, problem.dim, control_variates)
    return State(0, method.begin(theta), memory)


@contextmanager
def stepping(
    problem: Problem,
    method: Method,
    engine: Engine,
    batches: Batches,
    *,
    seed: int,
    limit: float,
    first_step: int = 0,
) -> Iterator[Step]:
    """A function from a state to the state one round later; raises `Diverged` when θ has an entry above the limit.

    Local steps draw as steps first_step, ... of their rounds would, so that two runs may share draws or not.
    """
    with ExitStack() as stack:
        local_sgd = gradients_by = stack.enter_context(engine.open(problem, batches, seed=seed))
        if method.exchange == "full":
            gradients_by = stack.enter_context(engine.open(problem, Batches(), seed=seed))

        @lru_cache(maxsize=1)
        def chances_of(block: int, repetitions: int) -> Array:
            return chances(seed, repetitions, range(block * AT_ONCE, (block + 1) * AT_ONCE))

        def step(state: State) -> State:
            repetitions = len(state.theta)
            count = method.participants(problem.n_clients)
            everyone = count == problem.n_clients
            clients = None if everyone else cohorts(seed, repetitions, state.round, count, problem.n_clients)
            block, within = divmod(state.round, AT_ONCE)
            chance = chances_of(block, repetitions)[:, within]
            lengths = _of(method.lengths(problem.n_clients, chance), clients)
            memory = (
                state.memory if clients is None else type(state.memory)(*(_of(a, clients) for a in state.memory))
            )
            weights, share = _weights(problem, clients)

            exchanged = None
            if method.exchange is not None:
                own = _gradients(gradients_by, state, clients, first_step + int(lengths.max()))
                exchanged = Exchanged(own, weighted_mean(own, weights))
            correction = method.correction(memory, state.server, exchanged)
            local = local_sgd(
                state.theta, correction, step_size=method.step_size, local_steps=lengths, round=state.round,
                clients=clients, first_step=first_step,
            )  # fmt: skip
            sent = method.send(local, state.server, lengths)
            server = method.aggregate(state.server, weighted_mean(sent, weights), share)
            if not np.abs(server.theta).max() < limit:
                raise _diverged(problem, method, batches, state.round + 1, local, clients)
            memory = method.remember(memory, sent, state.server, server)
            return State(state.round + 1, server, _merged(state.memory, memory, clients))

        yield step


def weighted_mean(values: Array, weights: Array) -> Array:
    """Σ_c w_c v_c for each repetition, in the order of the clients; weights are (clients,) or one row each."""
    if weights.ndim == 1:
        return np.einsum("c,rcj->rj", weights, values)
    return np.einsum("rc,rcj->rj", weights, values)


def _of(values: Any, clients: Whole | None) -> Any:
    """The part of (repetitions or 1, clients or 1, ...) that belongs to each repetition's cohort."""
    if clients is None or values.shape[1] == 1:
        return values
    rows = np.arange(len(clients))[:, None] if len(values) > 1 else 0
    return values[rows, clients]


def _weights(problem: Problem, clients: Whole | None) -> tuple[Array, Array]:
    """Weights that sum to one over those who take part, and their share of all weight."""
    if clients is None:
        return problem.weights, np.ones(1)
    part = problem.weights[clients]
    share = part.sum(axis=1)
    return part / share[:, None], share


def _gradients(local_sgd: LocalSgd, state: State, clients: Whole | None, first_step: int) -> Array:
    """Each client's gradient at θ: one local step of size one, without correction."""
    nothing = np.zeros((1, 1, state.theta.shape[-1]))
    after = local_sgd(
        state.theta, nothing, step_size=1.0, local_steps=1, round=state.round, clients=clients,
        first_step=first_step,
    )  # fmt: skip
    return state.theta[:, None, :] - after


def _merged(everyone: Any, cohort: Any, clients: Whole | None) -> Any:
    """Memory in which those who took part have theirs replaced."""
    if clients is None:
        return cohort
    rows = np.arange(len(clients))[:, None]
    merged = [array.copy() for array in everyone]
    for array, part in zip(merged, cohort, strict=True):
        array[rows, clients] = part
    return type(everyone)(*merged)


def _diverged(
    problem: Problem, method: Method, batches: Batches, round: int, local: Array, clients: Whole | None
) -> Diverged:
    """Which client went first, and what would have been safe."""
    sizes = np.nan_to_num(np.abs(local), nan=np.inf).max(axis=2)
    r, k = np.unravel_index(int(sizes.argmax()), sizes.shape)
    client = int(k if clients is None else clients[r, k])
    safe = method.safe_step_size(problem.smoothness(batches), problem.strong_convexity())
    advice = f"step_size={safe:.3g} is safe for this problem and batch size."
    if getattr(problem, "smoothness_is_local", False):
        advice = f"Going by the curvature where it started, step_size={safe:.3g} should do; this is an estimate."
    if safe == 0.0:
        advice = "No step size can be vouched for here; try a tenth of this one."
    return Diverged(
        f"{type(method).__name__} diverged in round {round}: client {client}'s model reached {sizes[r, k]:.3g} "
        f"with {_in_words(method)}. {advice}",
        round=round,
        client=client,
        safe_step_size=safe,
    )


def _in_words(method: Method) -> str:
    """step_size=0.05, local_steps=100 and what else was chosen."""
    if not is_dataclass(method):
        return f"step_size={method.step_size:g}"
    chosen = ((field.name, getattr(method, field.name), field.default) for field in fields(method))
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value, default in chosen
        if value != default
    )

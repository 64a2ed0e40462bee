"""Several methods on one problem, at equal rounds, gradients or vectors, with the same random draws for all."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedscaffold.benchmarking.client_numbers import check_client_numbers
from fedscaffold.benchmarking.costs import holds_from
from fedscaffold.benchmarking.curves import Curve
from fedscaffold.benchmarking.newton import FedNewton
from fedscaffold.core import provenance
from fedscaffold.core.checks import check_method, check_problem, given, positive, seed_number, whole_number
from fedscaffold.core.display.progress import Progress, progress_bar
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.protocols import Engine, Method, Problem
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.storage import npz as arrays
from fedscaffold.core.storage.files import folder_at
from fedscaffold.core.types import Array
from fedscaffold.engines import choose_engine
from fedscaffold.problems import Logistic, Ridge, paper
from fedscaffold.problems.newton import SmoothFunction
from fedscaffold.problems.paper import L2
from fedscaffold.simulation.block import takes_anchor
from fedscaffold.simulation.observers import squared_distance
from fedscaffold.simulation.rounds import initial_state, open_rounds
from fedscaffold.simulation.run_method import bits, costs
from fedscaffold.simulation.setup import RunSetup, divergence_limit

Candidate = Method | FedNewton
Methods = Mapping[str, Candidate | Sequence[Candidate]]
UNLIMITED = np.inf
NEWTON_ROUNDS = 100  # more are never needed where it converges at all


@dataclass(frozen=True)
class _Setting:
    """What all candidates of a comparison share."""

    problem: Problem
    optimum: Array
    batches: Batches
    seed: int
    repetitions: int
    engine: Engine
    budget: dict[str, float]
    target: float | None

    def identity(self, method: Method, most: tuple[float, float]) -> dict[str, Any]:
        return {
            "problem": self.problem.fingerprint(),
            "method": provenance.describe(method),
            "batches": provenance.describe(self.batches),
            "seed": self.seed,
            "repetitions": self.repetitions,
            "engine": self.engine.name,
            "budget": {name: value for name, value in self.budget.items() if value < UNLIMITED},
            "target": self.target,
            "most": [None if value == UNLIMITED else value for value in most],
            "version": provenance.versions()["fedscaffold"],
        }


def compare(
    problem: Problem,
    methods: Methods,
    *,
    rounds: int | None = None,
    gradients: float | None = None,
    vectors: float | None = None,
    targets: Iterable[float] = (),
    batch_size: int | None = None,
    sampling: Sampling = "with_replacement",
    seed: int = 0,
    repetitions: int = 10,
    engine: str | Engine = "auto",
    cells: Path | None = None,
    progress: Progress = None,
) -> list[Curve]:
    """Run every candidate of every method, with the same draws for all, within one budget.

    Without targets every candidate uses the budget up. With targets a candidate stops when the smallest of them is
    reached and kept (`costs.holds_from`), or when it can no longer be the cheapest of its method for any target,
    neither in rounds nor in gradients; this changes no result of `costs.cheapest`.

    Parameters
    ----------
    problem
        The federated problem.
    methods
        By name, a method or a sequence of candidates among which the best is to be found; `FedNewton()` too.
    rounds, gradients, vectors
        The budget: rounds, stochastic gradients per client, vectors received and sent per client. At least one.
    targets
        Mean squared errors to reach.
    batch_size, sampling, seed, repetitions, engine
        As in `fedscaffold.run`.
    cells
        A folder. Each finished candidate is kept there, and the same call does not compute it again.
    progress
        As in `fedscaffold.run`; counts candidates.

    Returns
    -------
    One `Curve` per candidate, in the order in which they were given.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.benchmarking import compare
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(4, 20, 2)) * rng.uniform(0.5, 2, size=(4, 1, 1)), rng.normal(size=(4, 20))
    >>> problem = fs.problems.Ridge(X, y, l2=0.1)
    >>> methods = {kind.__name__: kind(step_size=0.05, local_steps=10) for kind in (fs.Scaffold, fs.FedAvg)}
    >>> scaffold, fedavg = compare(problem, methods, rounds=30, repetitions=1, engine="reference", progress=False)
    >>> bool(scaffold.mean[-1] < 1e-3 * fedavg.mean[-1])  # full gradients: FedAvg keeps its bias
    True
    """
    check_problem(problem)
    budget = _budget(rounds, gradients, vectors)
    candidates = _candidates(methods)
    try:
        target = min((positive("target", target) for target in targets), default=None)
    except TypeError:
        raise InvalidInput(f"targets must be a list of numbers, got {given(targets)}") from None
    repetitions, seed = whole_number("repetitions", repetitions, least=1), seed_number("seed", seed)
    batches = Batches(batch_size, sampling)
    batches.check_fits(problem.sizes)
    anchored = any(not isinstance(m, FedNewton) and takes_anchor(m, problem.dim) for _, m in candidates)
    chosen = choose_engine(engine, problem, anchored=anchored)
    cells = None if cells is None else folder_at(cells)
    for _, method in candidates:
        if not isinstance(method, FedNewton):
            initial_state(problem, method, np.zeros((1, problem.dim)))
            method.local_step_counts(problem.n_clients, np.full(1, 0.5))
            method.participants(problem.n_clients)

    curves: list[Curve] = []
    most: dict[str, tuple[float, float]] = {}
    setting = _Setting(problem, problem.optimum(), batches, seed, repetitions, chosen, budget, target)
    with progress_bar(f"N = {problem.n_clients:,}", progress) as advance:
        for done, (name, method) in enumerate(candidates):
            advance(done, len(candidates))
            worth = most.get(name, (UNLIMITED, UNLIMITED))
            found = _cell(setting, name, method, worth, cells)
            curves.append(found)
            at = None if target is None else holds_from(found.mean, target)
            if at is not None:
                most[name] = min(worth[0], float(at)), min(worth[1], float(found.gradients[at]))
        advance(len(candidates), len(candidates))
    return curves


def _cell(setting: _Setting, name: str, method: Candidate, most: tuple[float, float], cells: Path | None) -> Curve:
    """The curve of one candidate, read from its file if there is one."""
    if isinstance(method, FedNewton):
        return _newton(setting, name, method)
    if cells is None:
        return _simulate(setting, name, method, most)
    identity = arrays.plain(setting.identity(method, most))
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]
    file = cells / f"{type(method).__name__.lower()}-{setting.problem.n_clients}-{digest}.npz"
    stored = _stored(file, identity, name)
    if stored is not None:
        return stored
    found = _simulate(setting, name, method, most)
    kept = {"mse": found.mse, "gradients": found.gradients, "vectors": found.vectors, "bits": found.bits}
    arrays.write(file, kept, {"identity": identity, "diverged": found.diverged})
    return found


def _stored(file: Path, identity: dict[str, Any], name: str) -> Curve | None:
    """The curve in a file; None if it must be computed: no file, a damaged one, or another candidate's."""
    try:
        kept, description = arrays.read(file)
    except (FileNotFoundError, ValueError):
        return None
    if description.get("identity") != identity or not {"mse", "gradients", "vectors", "bits"} <= kept.keys():
        return None
    n_clients = int(file.name.split("-")[1])
    return Curve(
        name=name, method=identity["method"], n_clients=n_clients, diverged=bool(description["diverged"]), **kept
    )


def _simulate(setting: _Setting, name: str, method: Method, most: tuple[float, float]) -> Curve:
    """Rounds until the budget is used up; with a target, until it is kept or cannot be reached at less cost."""
    problem, target = setting.problem, setting.target
    allowed, gradients, vectors = _affordable(setting, method)
    last = allowed if target is None else 2 * allowed  # a target reached at round t must be kept until 2t
    state = initial_state(problem, method, np.zeros((setting.repetitions, problem.dim)))
    errors = [squared_distance(state.theta, setting.optimum)]
    means = [float(errors[0].mean())]
    diverged = False
    setup = RunSetup(
        problem=problem, method=method, engine=setting.engine, theta=state.theta, batches=setting.batches,
        seed=setting.seed, limit=divergence_limit(state.theta),
    )  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"), open_rounds(setup) as step:
        while state.round < last:
            half = state.round // 2
            if target is not None:
                if means[half] <= target and holds_from(np.array(means), target) is not None:
                    break
                if half >= most[0] and gradients[half] >= most[1]:
                    break
            try:
                state = step(state)
            except Diverged:
                diverged = True
                break
            errors.append(squared_distance(state.theta, setting.optimum))
            means.append(float(errors[-1].mean()))
    return Curve(
        name=name,
        method=arrays.plain(provenance.describe(method)),
        n_clients=problem.n_clients,
        mse=np.stack(errors, axis=1),
        gradients=gradients[: len(errors)],
        vectors=vectors[: len(errors)],
        bits=np.sum(bits(problem, method, rounds=len(errors) - 1), axis=0),
        diverged=diverged,
    )


def _newton(setting: _Setting, name: str, method: FedNewton) -> Curve:
    """Newton's path within the budget; each round takes one pass over the records."""
    problem, dim = setting.problem, setting.problem.dim
    if not isinstance(problem, SmoothFunction):
        raise InvalidInput(f"FedNewton needs the clients' Hessians, which {type(problem).__name__} does not have")
    batch = setting.batches.size
    per_round = {
        "rounds": 1.0,
        "gradients": float(np.mean(problem.sizes)) / batch if batch else 1.0,
        "vectors": method.bits(dim) / (64.0 * dim),
    }
    allowed = int(min([NEWTON_ROUNDS, *(setting.budget[each] / per_round[each] for each in per_round)]))
    done = np.arange(1 + (allowed if setting.target is None else 2 * allowed), dtype=np.float64)
    errors = squared_distance(method.path(problem, len(done) - 1), setting.optimum)
    return Curve(
        name=name, method={"type": "FedNewton"}, n_clients=problem.n_clients,
        mse=np.tile(errors, (setting.repetitions, 1)), gradients=per_round["gradients"] * done,
        vectors=per_round["vectors"] * done, bits=method.bits(dim) * done,
    )  # fmt: skip


def _affordable(setting: _Setting, method: Method) -> tuple[int, Array, Array]:
    """The most rounds within the budget, and gradients and vectors per client up to twice as many."""
    budget, problem = setting.budget, setting.problem
    share = method.participants(problem.n_clients) / problem.n_clients
    per_round = {"rounds": 1.0, "gradients": share, "vectors": share * method.vectors_per_round}
    bound = int(min(budget[name] / least for name, least in per_round.items()))  # a round has a gradient at least
    rounds = min(64, bound)
    while True:
        gradients, vectors = costs(
            problem, method, setting.batches, seed=setting.seed, repetitions=setting.repetitions, rounds=2 * rounds
        )
        mean = gradients.mean(axis=0)
        within = mean[: rounds + 1] <= budget["gradients"]
        if rounds == bound or not within.all():
            return int(np.flatnonzero(within)[-1]), mean, vectors
        rounds = min(4 * rounds, bound)


def _budget(rounds: int | None, gradients: float | None, vectors: float | None) -> dict[str, float]:
    if rounds is None and gradients is None and vectors is None:
        raise InvalidInput("a comparison needs a budget: rounds, gradients or vectors")
    return {
        "rounds": UNLIMITED if rounds is None else float(whole_number("rounds", rounds, least=1)),
        "gradients": UNLIMITED if gradients is None else positive("gradients", gradients),
        "vectors": UNLIMITED if vectors is None else positive("vectors", vectors),
    }


def _candidates(methods: Any) -> list[tuple[str, Candidate]]:
    if not isinstance(methods, Mapping) or not methods:
        raise InvalidInput('methods must be given by name, for example {"Scaffold": Scaffold(...)}')
    lists = {name: list(each) if isinstance(each, Sequence) else [each] for name, each in methods.items()}
    for name, several in lists.items():
        if not several:
            raise InvalidInput(f"{name!r} has no candidates")
        for method in several:
            if not isinstance(method, FedNewton):
                check_method(method)
    return [(name, method) for name, several in lists.items() for method in several]


def nested_problems(
    kind: Literal["regression", "classification"], clients: Sequence[int], *, l2: float = L2, seed: int = 0
) -> dict[int, Ridge | Logistic]:
    """The paper's problem for several numbers of clients N, the smaller ones on some clients of the largest.

    So f is nearly the same for all N; the paper's data generated for each N would be different problems.

    Parameters
    ----------
    kind
        "regression" or "classification".
    clients
        Even, different numbers of clients.
    l2, seed
        As in `fedscaffold.problems.paper`.

    Returns
    -------
    Problems by number of clients, from the smallest to the largest.

    Examples
    --------
    >>> from fedscaffold.benchmarking import nested_problems
    >>> {n: problem.n_clients for n, problem in nested_problems("regression", [8, 2]).items()}
    {2: 2, 8: 8}
    """
    check_client_numbers(clients, multiple_of=2)
    whole = paper(kind, n_clients=max(clients), l2=l2, seed=seed)
    middle = whole.n_clients // 2
    return {
        n: whole if n == whole.n_clients else whole.subset([*range(n // 2), *range(middle, middle + n // 2)])
        for n in sorted(clients)
    }

"""Several methods on one problem, at equal rounds, gradients or vectors, with the same random draws for all.

`compare` runs every candidate of every method and returns a `MethodComparison`: a `Curve` for each candidate, the
`Cost` at which each method reached each target, the best curve of each method, tables, files and figures.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedscaffold.benchmarking.cells import BatchSize, Cell, chosen_batch, finished, text_table
from fedscaffold.core import npz, provenance
from fedscaffold.core.checks import check_method, check_problem, choice, given, positive, seed_number, whole_number
from fedscaffold.core.display import Progress, progress_bar
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.files import folder_at, write_frame, write_text
from fedscaffold.core.imports import load_optional
from fedscaffold.core.protocols import Engine, Method, Observer, Problem, Watch
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.problems.newton import NoMinimiser, SmoothFunction, minimise
from fedscaffold.reports.figures import CurvePanel, draw_curves, draw_panel
from fedscaffold.simulation.observers import resolve_observers
from fedscaffold.simulation.rounds import State
from fedscaffold.simulation.run_method import bits, costs, run_to_end
from fedscaffold.simulation.setup import RunSetup, validate_run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

CostName = Literal["rounds", "gradients", "vectors", "bits"]
DRAWN: dict[CostName, str] = {
    "rounds": "round",
    "gradients": "gradients per client",
    "vectors": "vectors per client",
}
FILES = ("comparison.json", "curves.parquet")


@dataclass(frozen=True)
class FedNewton:
    """θ⁺ = θ − (Σ_c w_c ∇²f_c(θ))⁻¹ Σ_c w_c ∇f_c(θ), from each client's loss, gradient and Hessian at θ.

    A round costs a pass over all records and d(d + 1)/2 + d + 1 numbers from every client, while methods of local
    steps send d. If neither the loss nor the gradient has become smaller, the server goes half of the way back.
    Only `compare` takes it.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.benchmarking import FedNewton
    >>> rng = np.random.default_rng(0)
    >>> problem = fs.problems.Ridge(rng.normal(size=(4, 20, 2)), rng.normal(size=(4, 20)), l2=0.1)
    >>> path = FedNewton().path(problem, rounds=1)  # one step solves a quadratic problem
    >>> bool(np.allclose(path[1], problem.optimum()))
    True
    >>> FedNewton().bits(dim=2)  # sent and received by a client in a round
    512.0
    """

    def path(self, problem: SmoothFunction, rounds: int) -> Array:
        """Return θ before the first and after each round, from θ = 0, (rounds + 1, dim).

        A step that must be halved takes a round for each half.
        """
        models = [np.zeros(problem.dim)]
        with suppress(NoMinimiser):
            minimise(problem, visit=models.append)
        models = models[: rounds + 1]
        return np.stack([*models, *models[-1:] * (rounds + 1 - len(models))])

    def bits(self, dim: int) -> float:
        """Return the bits that a client sends and receives in a round."""
        return 64.0 * (dim * (dim + 1) / 2 + dim + 1 + dim)


Candidate = Method | FedNewton
Methods = Mapping[str, Candidate | Sequence[Candidate]]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Curve:
    """One candidate by round: the recorded values and the costs, from round 0 to the round in which it stopped.

    Attributes
    ----------
    name
        Name under which the method was given to `compare`.
    method
        Type and fields of the candidate, as plain data.
    n_clients
        N.
    values
        Recorded values, (repetitions, rounds + 1); ‖θ_t − θ*‖² unless another observer was given.
    gradients
        Stochastic gradients per client up to each round, mean over repetitions, (rounds + 1,).
    vectors
        Vectors received and sent per client up to each round, (rounds + 1,).
    bits
        Bits received and sent per client up to each round, (rounds + 1,).
    metric
        Name of the observer.
    diverged
        Whether the run ended because θ left every bound.
    """

    name: str
    method: dict[str, Any]
    n_clients: int
    values: Array
    gradients: Array
    vectors: Array
    bits: Array
    metric: str = "mse"
    diverged: bool = False

    def __repr__(self) -> str:
        rounds = self.values.shape[1] - 1
        end = "diverged" if self.diverged else f"final {self.metric} {self.mean[-1]:.3g}"
        return f"Curve({self.name}, N = {self.n_clients:,}, rounds 0 to {rounds:,}, {end})"

    @property
    def mean(self) -> Array:
        """Mean of the values over the repetitions, (rounds + 1,)."""
        return self.values.mean(axis=0)

    def cost(self, name: CostName) -> Array:
        """Return one cost up to each round, (rounds + 1,): "rounds", "gradients", "vectors" or "bits"."""
        choice("cost", name, get_args(CostName))
        return np.arange(self.values.shape[1], dtype=np.float64) if name == "rounds" else getattr(self, name)


def holds_from(mean: Array, target: float) -> int | None:
    """Return the first round t with m_t ≤ target and mean(m_t, ..., m_2t) ≤ target.

    The second condition excludes curves that fall below the target for a few rounds only, through noise or on
    their way to another point. None if no round of the mean values m, (rounds + 1,), satisfies both.
    """
    last = (mean.size - 1) // 2
    sums = np.concatenate([[0.0], np.cumsum(mean)])
    t = np.arange(last + 1)
    with np.errstate(invalid="ignore"):  # after divergence
        kept = (sums[2 * t + 1] - sums[t]) / (t + 1.0)
    found = np.flatnonzero((mean[: last + 1] <= target) & (kept <= target))
    return int(found[0]) if found.size else None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost at which the cheapest of a method's candidates reached a target; None if no candidate reached it.

    Attributes
    ----------
    name, n_clients, target
        The method's name, N, and the target.
    cheapest_in
        Whether the candidate has the fewest "rounds" or the fewest "gradients".
    rounds, gradients, vectors, bits
        Rounds, and stochastic gradients, vectors and bits per client, up to the round in which the target is
        reached.
    method
        Type and fields of the candidate.
    """

    name: str
    n_clients: int
    target: float
    cheapest_in: Literal["rounds", "gradients"]
    rounds: int | None = None
    gradients: float | None = None
    vectors: float | None = None
    bits: float | None = None
    method: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class MethodComparison:
    """A sequence of curves, one for each candidate, with the costs, tables and figures that follow from them.

    Attributes
    ----------
    curves
        One for each candidate, in the order in which they were given to `compare`.
    targets
        Values to reach; empty if every candidate uses up the budget.
    """

    curves: Sequence[Curve]
    targets: Sequence[float] = ()

    def __getitem__(self, index: int) -> Curve:
        return self.curves[index]

    def __iter__(self) -> Iterator[Curve]:
        return iter(self.curves)

    def __len__(self) -> int:
        return len(self.curves)

    def __repr__(self) -> str:
        return self.table()

    @property
    def costs(self) -> list[Cost]:
        """The candidate with the fewest rounds, and the one with the fewest gradients, by method, N and target.

        If candidates are equal in one, the other decides. All candidates of one method send the same number of
        vectors a round, so the fewest rounds are also the fewest vectors. Targets fall.
        """
        found = []
        for (name, n_clients), candidates in self._by_method().items():
            for target in sorted(self.targets, reverse=True):
                reached = [(at, each) for each in candidates if (at := holds_from(each.mean, target)) is not None]
                for measure in ("rounds", "gradients"):
                    cost = Cost(name=name, n_clients=n_clients, target=target, cheapest_in=measure)
                    if reached:
                        at, curve = min(reached, key=lambda pair: _order(pair[0], pair[1], measure))
                        spent: dict[str, Any] = {
                            each: float(curve.cost(each)[at]) for each in ("gradients", "vectors", "bits")
                        }
                        cost = replace(cost, rounds=at, method=curve.method, **spent)
                    found.append(cost)
        return found

    @property
    def best(self) -> list[Curve]:
        """The candidate with the smallest mean value at its end, by method and N; diverged ones are left out."""
        ended = [[curve for curve in group if not curve.diverged] for group in self._by_method().values()]
        return [min(group, key=lambda curve: float(curve.mean[-1])) for group in ended if group]

    def table(self) -> str:
        """Return the costs to reach the targets, or without targets the smallest values, as lines of text."""
        metric = self.curves[0].metric if self.curves else "mse"
        if not self.targets:
            columns = ["method", "N", metric, "rounds", "gradients", "vectors", "with"]
            rows = [
                [curve.name, f"{curve.n_clients:,}", f"{curve.mean[-1]:.3g}"]
                + [f"{curve.cost(name)[-1]:,.0f}" for name in DRAWN]
                + [_settings(curve.method)]
                for curve in self.best
            ]
            return f"Best of each method at the end of the budget, per client\n{text_table(columns, rows)}"
        columns = ["method", "N", metric, "fewest", "rounds", "gradients", "kbit", "with"]
        rows = []
        for cost in self.costs:
            row = [cost.name, f"{cost.n_clients:,}", f"{cost.target:g}", cost.cheapest_in]
            if cost.rounds is None or cost.method is None:
                rows.append([*row, "–", "–", "–", "not in the budget"])
            else:
                spent = [f"{cost.rounds:,}", f"{cost.gradients:,.0f}", f"{(cost.bits or 0.0) / 1000:,.4g}"]
                rows.append([*row, *spent, _settings(cost.method)])
        return f"Cost to reach each target, per client\n{text_table(columns, rows)}"

    def to_frame(self) -> "pd.DataFrame":
        """Return the curves as a DataFrame with one row per curve, repetition and round."""
        pd = load_optional("pandas", "tables need pandas", extra="reproduce")
        parts = []
        for curve in self.curves:
            repetitions, length = curve.values.shape
            columns = {
                "method": curve.name,
                "settings": json.dumps(curve.method),
                "n_clients": curve.n_clients,
                "repetition": np.repeat(np.arange(repetitions), length),
                "round": np.tile(np.arange(length), repetitions),
                **{f"{name}_per_client": np.tile(curve.cost(name), repetitions)
                   for name in ("gradients", "vectors", "bits")},
                curve.metric: curve.values.reshape(-1),
            }  # fmt: skip
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def plot(self, ax: "Axes | None" = None, *, cost: CostName = "rounds") -> "Axes":
        """Draw one curve of each method against one cost, for the largest N; return the axes."""
        choice("cost", cost, get_args(CostName))
        return draw_panel(self._panel(cost, max((each.n_clients for each in self._shown(cost)), default=0)), ax)

    def draw(self, file: Path) -> None:
        """Draw a row of panels for each number of clients, a panel for each cost, to a PNG, SVG or PDF file."""
        numbers = {curve.n_clients for curve in self._shown("rounds")} or {0}  # N at which a target was reached
        draw_curves([[self._panel(cost, n) for cost in DRAWN] for n in sorted(numbers)], [file])

    def save(self, out: Path, settings: Mapping[str, Any]) -> None:
        """Write costs and settings to comparison.json, and one curve for each method to curves.parquet."""
        costs = [asdict(cost) for cost in self.costs]
        content = {"settings": dict(settings), "costs": costs, **provenance.origin()}
        write_text(out / "comparison.json", json.dumps(content, indent=2) + "\n")
        shown = {id(curve): curve for cost in DRAWN for curve in self._shown(cost)}
        if shown:
            write_frame(out / "curves.parquet", MethodComparison(list(shown.values())).to_frame())

    def _by_method(self) -> dict[tuple[str, int], list[Curve]]:
        found: dict[tuple[str, int], list[Curve]] = {}
        for curve in self.curves:
            found.setdefault((curve.name, curve.n_clients), []).append(curve)
        return found

    def _shown(self, cost: CostName) -> list[Curve]:
        """Return the curve that stands for each method and N.

        With targets it is the cheapest to the smallest target that the method reached, otherwise the best.
        """
        if not self.targets:
            return self.best
        cheapest_in = "gradients" if cost == "gradients" else "rounds"
        rows = [each for each in self.costs if each.cheapest_in == cheapest_in and each.rounds is not None]
        last = {(row.name, row.n_clients): row.method for row in rows}  # targets fall
        return [curve for curve in self.curves if last.get((curve.name, curve.n_clients)) == curve.method]

    def _panel(self, cost: CostName, n_clients: int) -> CurvePanel:
        curves = [curve for curve in self._shown(cost) if curve.n_clients == n_clients]
        if not curves:
            raise InvalidInput("nothing to draw: no method reached a target; give a larger budget or target")
        lines = {curve.name: (curve.cost(cost), curve.values) for curve in curves}
        label = DRAWN.get(cost, "bits per client")
        return CurvePanel(
            title=f"N = {n_clients:,}", x=label, y=curves[0].metric, lines=lines, levels=self.targets, log_x=True
        )


def _order(at: int, curve: Curve, measure: str) -> tuple[float, float]:
    """Return the sort key of a candidate that reached a target in round `at`."""
    pair = float(at), float(curve.gradients[at])
    return pair if measure == "rounds" else pair[::-1]


def _settings(method: Mapping[str, Any]) -> str:
    """Return step size and local steps of a candidate, for tables."""
    if "step_size" not in method:
        return ""
    steps = f" H={method['local_steps']}" if "local_steps" in method else ""
    if "communication_probability" in method:
        steps = f" 1/p={1 / method['communication_probability']:.3g}"
    return f"γ={method['step_size']:g}{steps}"


@dataclass(frozen=True)
class _Setting:
    """The settings that all candidates of a comparison share, on one problem."""

    problem: Problem
    observer: Observer
    watch: Watch
    batches: Batches
    seed: int
    repetitions: int
    engine: str | Engine
    budget: Mapping[CostName, float]
    target: float | None

    def setup(self, method: Method) -> RunSetup:
        """Return the settings of a run of this method, checked; the rounds are counted here."""
        return validate_run(
            self.problem, method, rounds=1, batch_size=self.batches.size, sampling=self.batches.sampling,
            seed=self.seed, repetitions=self.repetitions, engine=self.engine, theta0=None,
        )  # fmt: skip

    def identity(self, method: Candidate, most: tuple[float, float]) -> dict[str, Any]:
        return {
            "problem": self.problem.fingerprint(),
            "method": provenance.describe(method),
            "record": provenance.describe(self.observer),
            "batches": provenance.describe(self.batches),
            "seed": self.seed,
            "repetitions": self.repetitions,
            "engine": None if isinstance(method, FedNewton) else self.setup(method).engine.name,
            "budget": {name: value for name, value in self.budget.items() if value < np.inf},
            "target": self.target,
            "most": [None if value == np.inf else value for value in most],
        }

    def values(self, round: int, theta: Array, previous: Array | None) -> Array:
        """Return the recorded value of every repetition."""
        found = np.asarray(self.watch(round, theta, previous), dtype=np.float64)
        if found.shape != (len(theta),):
            raise InvalidInput(
                f"compare needs an observer that records one number per repetition and round; "
                f"{self.observer.name!r} records an array of shape {found.shape}"
            )
        return found


def compare(
    problem: Problem | Iterable[Problem],
    methods: Methods,
    *,
    rounds: int | None = None,
    gradients: float | None = None,
    vectors: float | None = None,
    targets: Iterable[float] = (),
    record: str | Observer = "mse",
    batch_size: BatchSize = None,
    sampling: Sampling = "with_replacement",
    seed: int = 0,
    repetitions: int = 10,
    engine: str | Engine = "auto",
    cells: Path | None = None,
    progress: Progress = None,
) -> MethodComparison:
    """Run every candidate of every method, with the same draws for all, within one budget.

    Without targets every candidate uses the budget up. With targets a candidate stops when the smallest of them is
    reached and kept (`holds_from`), or when it can no longer be the cheapest of its method for any target, neither
    in rounds nor in gradients; this changes no cost.

    Parameters
    ----------
    problem
        The federated problem, or several with different numbers of clients.
    methods
        By name, a method or a sequence of candidates among which the best is to be found; `FedNewton()` too.
    rounds, gradients, vectors
        The budget: rounds, stochastic gradients per client, vectors received and sent per client. At least one.
    targets
        Values to reach: mean squared errors, or levels of another observer.
    record
        The observer to compare by: "mse" (needs θ*), "loss", or an object that records one number per round, which
        falls as the model improves.
    batch_size
        Records in each stochastic gradient, None for all, or "auto": all if clients have few, else a small batch.
    sampling, seed, repetitions, engine
        As in `fedscaffold.run`.
    cells
        A folder. Each finished candidate is kept there, and the same call does not compute it again.
    progress
        As in `fedscaffold.run`; counts candidates.

    Returns
    -------
    A sequence with one `Curve` per candidate, in the order in which they were given, and what follows from them.

    Raises
    ------
    InvalidInput
        If there is no budget, or a problem, method or setting cannot be used.

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
    problems = _problems(problem)
    budget = _budget(rounds, gradients, vectors)
    candidates = _candidates(methods)
    (observer,) = resolve_observers((record,))
    if observer.keep != "every":
        raise InvalidInput(
            f"compare needs an observer that records every round, such as 'loss'; got {given(record)}"
        )
    wanted = _targets(targets, squared=observer.name == "mse")
    repetitions, seed = whole_number("repetitions", repetitions, least=1), seed_number("seed", seed)
    folder = None if cells is None else folder_at(cells)
    settings = []
    for each in problems:
        batches, target = Batches(chosen_batch(batch_size, each), sampling), min(wanted, default=None)
        watch = observer.watch(each)
        settings.append(_Setting(each, observer, watch, batches, seed, repetitions, engine, budget, target))
        for _, method in candidates:
            if isinstance(method, FedNewton):
                batches.check_fits(each.sizes)
            else:
                settings[-1].setup(method)  # raises before any work
    curves: list[Curve] = []
    with progress_bar("Compare", progress) as advance:
        for setting in settings:
            most: dict[str, tuple[float, float]] = {}
            for name, method in candidates:
                advance(len(curves), len(problems) * len(candidates))
                worth = most.get(name, (np.inf, np.inf))
                found = _curve(setting, name, method, worth, folder)
                curves.append(found)
                at = None if setting.target is None else holds_from(found.mean, setting.target)
                if at is not None:
                    most[name] = min(worth[0], float(at)), min(worth[1], float(found.gradients[at]))
        advance(len(curves), len(curves))
    return MethodComparison(curves, wanted)


def _curve(
    setting: _Setting, name: str, method: Candidate, most: tuple[float, float], folder: Path | None
) -> Curve:
    """Return the curve of one candidate, from its file if there is one."""

    def compute() -> Cell:
        if isinstance(method, FedNewton):
            return _newton(setting, method), {"diverged": False}
        return _simulate(setting, method, most)

    kind = f"{type(method).__name__.lower()}-{setting.problem.n_clients}"
    identity = {} if folder is None else setting.identity(method, most)  # which reads all records
    arrays, facts = finished(folder, kind, identity, compute)
    return Curve(
        name=name, method=npz.plain(provenance.describe(method)), n_clients=setting.problem.n_clients,
        metric=setting.observer.name, diverged=bool(facts["diverged"]), **arrays,
    )  # fmt: skip


def _simulate(setting: _Setting, method: Method, most: tuple[float, float]) -> Cell:
    """Run rounds until the budget is used up, or a target is kept or cannot be reached at less cost."""
    problem, target = setting.problem, setting.target
    allowed, gradients, vectors = _affordable(setting, method)
    last = allowed if target is None else 2 * allowed  # a target reached at round t must be kept until 2t
    values: list[Array] = []
    means: list[float] = []

    def record(state: State) -> bool:
        """Keep the values of a round; return True if the target is kept, or cannot be reached at less cost."""
        values.append(setting.values(state.round, state.theta, values[-1] if values else None))
        means.append(float(values[-1].mean()))
        if target is None:
            return False
        half = state.round // 2
        kept = means[half] <= target and holds_from(np.array(means), target) is not None
        return kept or (half >= most[0] and gradients[half] >= most[1])

    setup, diverged = replace(setting.setup(method), rounds=last), False
    try:
        run_to_end(setup, None, record=record, arrays=lambda: ({}, {}), file=None, progress=lambda done: None)
    except Diverged:
        diverged = True
    arrays = {
        "values": np.stack(values, axis=1),
        "gradients": gradients[: len(values)],
        "vectors": vectors[: len(values)],
        "bits": np.sum(bits(problem, method, rounds=len(values) - 1), axis=0),
    }
    return arrays, {"diverged": diverged}


def _newton(setting: _Setting, method: FedNewton) -> dict[str, Array]:
    """Compute Newton's path within the budget; each round takes one pass over the records."""
    problem, dim = setting.problem, setting.problem.dim
    if not isinstance(problem, SmoothFunction):
        raise InvalidInput(f"FedNewton needs the clients' Hessians, which {type(problem).__name__} does not have")
    batch = setting.batches.size
    per_round: dict[CostName, float] = {
        "rounds": 1.0,
        "gradients": float(np.mean(problem.sizes)) / batch if batch else 1.0,
        "vectors": method.bits(dim) / (64.0 * dim),
    }
    most = 100  # Newton's method has converged long before, if it converges at all
    allowed = int(min([most, *(setting.budget[each] / per_round[each] for each in per_round)]))
    done = np.arange(1 + (allowed if setting.target is None else 2 * allowed), dtype=np.float64)
    path = method.path(problem, len(done) - 1)
    values: list[Array] = []
    for round, theta in enumerate(path):
        values.append(setting.values(round, theta[None], values[-1] if values else None))
    return {
        "values": np.tile(np.concatenate(values), (setting.repetitions, 1)),
        "gradients": per_round["gradients"] * done,
        "vectors": per_round["vectors"] * done,
        "bits": method.bits(dim) * done,
    }


def _affordable(setting: _Setting, method: Method) -> tuple[int, Array, Array]:
    """Return the most rounds within the budget, and gradients and vectors per client up to twice that round."""
    budget, problem = setting.budget, setting.problem
    share = method.participants(problem.n_clients) / problem.n_clients
    per_round: dict[CostName, float] = {
        "rounds": 1.0, "gradients": share, "vectors": share * method.vectors_per_round,
    }  # fmt: skip
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


def _problems(problem: Any) -> list[Problem]:
    alone = hasattr(problem, "n_clients") or isinstance(problem, np.ndarray) or not isinstance(problem, Iterable)
    several = [problem] if alone else list(problem)
    for each in several:
        check_problem(each)
    if not several or len({each.n_clients for each in several}) < len(several):
        raise InvalidInput("give one problem, or several with different numbers of clients")
    return several


def _budget(rounds: int | None, gradients: float | None, vectors: float | None) -> dict[CostName, float]:
    if rounds is None and gradients is None and vectors is None:
        raise InvalidInput("a comparison needs a budget: rounds, gradients or vectors")
    return {
        "rounds": np.inf if rounds is None else float(whole_number("rounds", rounds, least=1)),
        "gradients": np.inf if gradients is None else positive("gradients", gradients),
        "vectors": np.inf if vectors is None else positive("vectors", vectors),
    }


def _targets(targets: Any, *, squared: bool) -> list[float]:
    """Return the targets as numbers; squared errors must be positive."""
    try:
        found = np.array(list(targets), dtype=np.float64).tolist()
    except (TypeError, ValueError):
        raise InvalidInput(f"targets must be a list of numbers, got {given(targets)}") from None
    if not np.isfinite(found).all():
        raise InvalidInput(f"targets must be finite, got {found}")
    return [positive("target", target) for target in found] if squared else found


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

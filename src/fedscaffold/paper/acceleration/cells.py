"""The runs of the study: problems of a given condition number, and four ways of communicating on them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from fedscaffold.benchmarking.client_numbers import check_client_numbers
from fedscaffold.core.checks import positive, seed_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.methods import FedLin, ProxSkip, Scaffold
from fedscaffold.problems import LogisticStream, Ridge
from fedscaffold.theory import predict

CONDITIONS = (10.0, 31.6, 100.0, 316.0, 1000.0, 3160.0, 10000.0)
CLIENTS = (10, 30, 100, 300, 1000, 3000, 10000)
DIM, NOISE = 4, 0.3
FEW_CLIENTS, SMALL_STEP = 16, 0.02  # where κ varies
REDUCTION = 1e-3  # of the squared error, where κ varies
LARGE_STEP = 0.08  # γL of the most clients; γ is proportional to N
ABOVE_PLATEAU = 4.0  # target over predicted plateau, where N varies
LOGISTIC_TARGET = 2e-3
LOGISTIC_CONDITION = 100.0  # of the features' variances
LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)  # γHL
SPARE = 1.5  # times the rounds that the slowest direction needs without noise
RUNS, MODELS = 4, 4000  # most repetitions, and clients times repetitions, at least one repetition

Part = Literal["condition", "length", "clients", "logistic"]
SHORT, LONG, SKIP, FEDLIN = "Scaffold, γHL = 1", "Scaffold, γHL = √κ", "ProxSkip, γL/p = √κ", "FedLin, γHL = 1"
RECIPES = (SHORT, LONG, SKIP, FEDLIN)


@dataclass(frozen=True, kw_only=True)
class AccelerationSettings:
    """Condition numbers and numbers of clients, at least three of each, and the seed of data and runs."""

    conditions: Sequence[float] = CONDITIONS
    clients: Sequence[int] = CLIENTS
    seed: int = 0

    def __post_init__(self) -> None:
        seed_number("seed", self.seed)
        check_client_numbers(self.clients, fewest=3)
        found = [positive("conditions", each) for each in self.conditions]
        if len(set(found)) < 3 or len(set(found)) < len(found) or min(found) < 2.0:
            raise InvalidInput(
                f"conditions must be three or more different numbers, each at least 2; got {list(self.conditions)}"
            )

    @property
    def condition_for_clients(self) -> float:
        """The condition number where the number of clients varies: a moderate one."""
        return sorted(self.conditions)[max(0, len(self.conditions) // 2 - 1)]

    @property
    def condition_for_lengths(self) -> float:
        """The condition number where γHL varies: a large one."""
        return sorted(self.conditions)[len(self.conditions) // 2 + 1]


@dataclass(frozen=True, kw_only=True)
class AccelerationRun:
    """One method on one problem: how it runs, and the error to reach."""

    part: Part
    recipe: str
    condition: float
    n_clients: int
    length: float  # γHL
    method: Method
    target: float
    rounds: int  # the most to run
    repetitions: int

    @property
    def label(self) -> str:
        """A name for files."""
        name = self.recipe.split(",")[0].lower()
        return (
            f"{self.part}-{name}-{self.condition:g}-{self.n_clients}-{self.length:.4g}-{self.method.step_size:.6g}"
        )

    @property
    def steps(self) -> float:
        """Local steps of a client in a round, on average."""
        if isinstance(self.method, ProxSkip):
            return 1.0 / self.method.communication_probability
        assert isinstance(self.method, Scaffold | FedLin)
        return float(self.method.local_steps)  # type: ignore[arg-type]

    @property
    def work(self) -> float:
        """Local steps of all clients in all rounds and repetitions; a round costs as much as 2,000 of them."""
        return self.rounds * (self.steps * self.n_clients * self.repetitions + 2000.0)


def stiff(condition: float, *, n_clients: int, seed: int = 0) -> Ridge:
    """Clients whose Hessians have eigenvalues from 1/κ to 1 and differ as much as these bounds allow.

    One direction has curvature 1/κ on every client, so that this is also the smallest curvature of their mean. In
    the other directions, which each client turns in its own way, one curvature is 1 and the others are log-uniform
    in [1/κ, 1]. Each client has an optimum of its own. A client has two records for each of its eigenvectors, with
    targets a little above and below, so that gradients stay noisy at the optimum, in proportion to the Hessian.
    """
    rng = np.random.default_rng([seed, 15])
    lam = condition ** -rng.uniform(size=(n_clients, DIM))
    lam[:, 0], lam[:, -1] = 1.0 / condition, 1.0
    turn = np.zeros((n_clients, DIM, DIM))
    turn[:, 0, 0] = 1.0
    turn[:, 1:, 1:] = np.linalg.qr(rng.normal(size=(n_clients, DIM - 1, DIM - 1)))[0]
    x = np.sqrt(DIM * lam)[:, :, None] * np.swapaxes(turn, 1, 2)
    y = np.einsum("cij,cj->ci", x, 1.0 + 0.5 * rng.normal(size=(n_clients, DIM)))
    return Ridge(np.concatenate([x, x], axis=1), np.concatenate([y + NOISE, y - NOISE], axis=1))


def logistic(n_clients: int, seed: int = 0) -> LogisticStream:
    """Streamed clients whose features have variances from 1 to 1/LOGISTIC_CONDITION and scales of their own."""
    spectrum = np.geomspace(1.0, 1.0 / LOGISTIC_CONDITION, DIM)
    return LogisticStream(
        n_clients=n_clients, dim=DIM, spectrum=spectrum, scale_spread=0.9, signal=3.0, heterogeneity=1.0, l2=0.0,
        seed=seed,
    )  # fmt: skip


def made(recipe: str, gamma: float, length: float) -> Method:
    """The method of a recipe with γ, and γH (on average) of this length."""
    H = max(1, round(length / gamma))
    if recipe == SKIP:
        return ProxSkip(step_size=gamma, communication_probability=min(1.0, gamma / length))
    if recipe == FEDLIN:
        return FedLin(step_size=gamma, local_steps=H)
    return Scaffold(step_size=gamma, local_steps=H)


def relative_length(recipe: str, condition: float) -> float:
    """γHL of a recipe."""
    return math.sqrt(condition) if recipe in (LONG, SKIP) else 1.0


def problem_of(cell: AccelerationRun, seed: int) -> Ridge | LogisticStream:
    """The problem that a cell runs on."""
    if cell.part == "logistic":
        return logistic(cell.n_clients, seed)
    return stiff(cell.condition, n_clients=cell.n_clients, seed=seed)


def all_cells(settings: AccelerationSettings) -> Iterator[AccelerationRun]:
    """Every run of the study."""
    yield from _by_condition(settings)
    yield from _by_length(settings)
    yield from _by_clients(settings)
    yield from _logistic(settings)


def _cell(
    part: Part, recipe: str, problem: Ridge, condition: float, gamma: float, x: float, target: float
) -> AccelerationRun:
    """A cell on `stiff` clients, where L = 1 and μ = 1/κ, that runs long enough to reach its target."""
    start = float(problem.optimum() @ problem.optimum())
    rounds = math.ceil(SPARE * 0.5 * math.log(start / target) * max(condition / x, x)) + 20
    return AccelerationRun(
        part=part, recipe=recipe, condition=condition, n_clients=problem.n_clients, length=x,
        method=made(recipe, gamma, x), target=target, rounds=rounds, repetitions=_repetitions(problem.n_clients),
    )  # fmt: skip


def _repetitions(n_clients: int) -> int:
    return max(1, min(RUNS, MODELS // n_clients))


def _by_condition(settings: AccelerationSettings) -> Iterator[AccelerationRun]:
    for condition in sorted(settings.conditions):
        problem = stiff(condition, n_clients=FEW_CLIENTS, seed=settings.seed)
        target = REDUCTION * float(problem.optimum() @ problem.optimum())
        for recipe in RECIPES:
            x = relative_length(recipe, condition)
            yield _cell("condition", recipe, problem, condition, SMALL_STEP, x, target)


def _by_length(settings: AccelerationSettings) -> Iterator[AccelerationRun]:
    condition = settings.condition_for_lengths
    problem = stiff(condition, n_clients=FEW_CLIENTS, seed=settings.seed)
    target = REDUCTION * float(problem.optimum() @ problem.optimum())
    for x in (x for x in LENGTHS if x < condition):
        for recipe in (LONG, SKIP, FEDLIN):
            yield _cell("length", recipe, problem, condition, SMALL_STEP, x, target)


def _by_clients(settings: AccelerationSettings) -> Iterator[AccelerationRun]:
    condition, clients = settings.condition_for_clients, sorted(settings.clients)
    per_client = LARGE_STEP / clients[-1]
    fewest = stiff(condition, n_clients=clients[0], seed=settings.seed)
    first = made(LONG, per_client * clients[0], math.sqrt(condition))
    target = ABOVE_PLATEAU * predict(fewest, first, batch_size=1).mse
    for n in clients:
        problem = stiff(condition, n_clients=n, seed=settings.seed)
        for recipe in RECIPES:
            x = relative_length(recipe, condition)
            yield _cell("clients", recipe, problem, condition, per_client * n, x, target)


def _logistic(settings: AccelerationSettings) -> Iterator[AccelerationRun]:
    few = logistic(FEW_CLIENTS, settings.seed)
    optimum = few.optimum()
    largest = float(np.linalg.eigvalsh(few.client_hessians(optimum)).max())
    smallest = float(np.linalg.eigvalsh(few.hessian(optimum)).min())
    condition, start = largest / smallest, float(optimum @ optimum)
    for recipe in (SHORT, LONG, SKIP):
        x = relative_length(recipe, condition)
        for n in sorted(settings.clients):
            gamma = logistic_step_size(x / largest, n, settings.seed)
            rounds = math.ceil(0.5 * SPARE * 0.5 * math.log(start / LOGISTIC_TARGET) * condition / x) + 20
            yield AccelerationRun(
                part="logistic", recipe=recipe, condition=condition, n_clients=n, length=x,
                method=made(recipe, gamma, x / largest), target=LOGISTIC_TARGET, rounds=rounds,
                repetitions=_repetitions(n),
            )  # fmt: skip


def logistic_step_size(length: float, n_clients: int, seed: int) -> float:
    """The largest γ with which N clients' plateau is half the target: aγ/N of noise and bγ² of squared bias."""
    a, b = _parts(length, seed)
    noise = a / n_clients
    half = 0.5 * LOGISTIC_TARGET
    return 2.0 * half / (noise + math.sqrt(noise**2 + 4.0 * b * half))


@cache
def _parts(length: float, seed: int) -> tuple[float, float]:
    """The two factors a and b, by a prediction in the middle of the step sizes that are used."""
    gamma = 0.02
    method = made(LONG, gamma, length)
    many = predict(logistic(1000, seed), method, batch_size=1, accuracy=0.05)
    return 1000.0 * many.variance / gamma, many.squared_bias / gamma**2

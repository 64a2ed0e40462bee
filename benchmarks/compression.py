"""Bits until the squared error has fallen a million times, with and without compression.

`python -m benchmarks.compression [--quick] [--only NAME]`: a few minutes. Ten and a hundred clients that differ,
d = 300, κ = 10,000, full gradients, and Hessians whose eigenvectors are not the coordinates that compressors keep
or leave. Scaffold is there twice: with H = 2 and the largest step size that Lemma 4.1 allows, and with γ = 1/L and
longer rounds. All methods but the first are the best in bits sent of a small grid, and are measured with other
seeds than those that chose. `--only NAME` measures one method and Scaffold, in a file of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.core.errors import Diverged
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import LocalSgd, Method
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array, IntArray
from fedscaffold.problems import Ridge
from fedscaffold.simulation.rounds import initial_state, open_rounds
from fedscaffold.simulation.run_method import bits
from fedscaffold.simulation.setup import RunSetup

CLIENTS, DIM, CONDITION, REDUCTION = (10, 100), 300, 1e4, 1e-6
TUNING_SEED, SEEDS = 0, (1, 2)
MOST_ROUNDS = 200_000


@dataclass(frozen=True)
class LocalStepsInClosedForm:
    """An engine for full gradients of f_c(θ) = ½(θ − m_c)ᵀQ diag(λ_c) Qᵀ(θ − m_c).

    H steps move each coordinate of Qᵀθ towards where it would rest, by the H-th power of 1 − γλ. So a round costs
    two products with Q, however many local steps it has.
    """

    basis: Array  # Q, (dim, dim)
    eigenvalues: Array  # λ_c, (clients, dim)
    minima: Array  # Qᵀm_c, (clients, dim)
    name: str = "closed form"

    @contextmanager
    def open(
        self,
        problem: Ridge,
        batches: Batches,
        *,
        seed: int,
        first_client: int = 0,
        privacy: RecordLevel | None = None,
    ) -> Iterator[LocalSgd]:
        """The function that does the local steps of all clients."""
        if batches.size is not None or privacy is not None:
            raise NotImplementedError("only full gradients have a closed form here")

        def local_sgd(
            theta: Array, correction: Array, *, step_size: float, local_steps: int | IntArray, round: int,
            clients: IntArray | None = None, first_step: int = 0, pull: float = 0.0, anchor: Array | None = None,
        ) -> Array:  # fmt: skip
            assert clients is None, "all clients take part"
            assert anchor is None, "no gradients are subtracted"
            begin = (theta if theta.ndim == 3 else theta[:, None, :]) @ self.basis
            forces = self.eigenvalues * self.minima - correction @ self.basis + pull * begin
            rest = forces / (self.eigenvalues + pull)
            left = (1.0 - step_size * (self.eigenvalues + pull)) ** np.asarray(local_steps)[..., None]
            return (rest + left * (begin - rest)) @ self.basis.T

        yield local_sgd


def rotated(condition: float, n_clients: int, dim: int) -> tuple[Ridge, LocalStepsInClosedForm]:
    """Clients with optima of their own and Hessians Q diag(λ_c) Qᵀ, with eigenvalues from 1/κ to 1."""
    generator = np.random.default_rng(0)
    eigenvalues = np.geomspace(1.0 / condition, 1.0, dim) * np.ones((n_clients, 1))
    eigenvalues[:, 1:-1] *= generator.uniform(0.5, 2.0, size=(n_clients, dim - 2))
    eigenvalues = np.clip(eigenvalues, 1.0 / condition, 1.0)
    basis = np.linalg.qr(generator.normal(size=(dim, dim)))[0]
    minima = generator.normal(size=(n_clients, dim))
    roots = np.sqrt(dim * eigenvalues)  # a client's records are √(d λ_j) times Q's columns
    return Ridge(roots[:, :, None] * basis.T, roots * minima), LocalStepsInClosedForm(basis, eigenvalues, minima)


def contestants(condition: float, n_clients: int) -> Mapping[str, Sequence[Method]]:
    """The settings that each method may choose from, for L = 1 and μ = 1/κ."""
    root = np.sqrt(condition)
    longer = [round(factor * root) for factor in (0.25, 0.5, 1.0, 2.0)]

    def scallion(compression: str, server_levels: int | None = None) -> list[Method]:
        return [
            fs.Scallion(
                step_size=1.0, local_steps=H, compression=compression, damping=damping, server_levels=server_levels
            )
            for H, damping in product(longer, (None, 1.0))
        ]

    tamuna = [
        fs.Tamuna(step_size=1.0, communication_probability=min(1.0, factor * theory / root), owners=owners)
        for owners in (2, 3, 5)
        for theory in [np.sqrt((n_clients - 1.0) / (owners - 1.0))]
        for factor in (1.0, 1.5)
    ]
    lemma = fs.Scaffold(step_size=0.5 / (1.0 + 1.0 / condition), local_steps=2)
    return {
        **({"scaffold_lemma": [lemma]} if n_clients == CLIENTS[0] else {}),  # slow with more
        "scaffold": [fs.Scaffold(step_size=1.0, local_steps=H) for H in longer],
        "proxskip": [fs.ProxSkip(step_size=1.0, communication_probability=1.0 / H) for H in longer],
        "tamuna": tamuna,
        "scallion_natural": scallion("natural"),
        "scallion_quantised": scallion("quantised:31"),
        "scallion_top_k": scallion("top_k:0.1"),
        "scallion_both_ways": scallion("quantised:31", server_levels=31),
    }


def rounds_needed(
    problem: Ridge, engine: LocalStepsInClosedForm, method: Method, *, seed: int, most: float
) -> int | None:
    """Rounds until the squared error has fallen a million times; None where that takes more than `most`."""
    optimum = problem.optimum()
    state = initial_state(problem, method, np.zeros((1, problem.dim)))
    goal = REDUCTION * float(np.sum((state.theta - optimum) ** 2))
    setup = RunSetup(problem=problem, method=method, engine=engine, theta=state.theta, seed=seed, limit=1e6)
    with open_rounds(setup) as step:
        try:
            while state.round < most:
                state = step(state)
                if float(np.sum((state.theta - optimum) ** 2)) <= goal:
                    return state.round
        except Diverged:
            pass
    return None


@dataclass(frozen=True)
class Found:
    """What a method needed, with the setting that sends the fewest bits."""

    method: Method
    rounds: float  # in the mean over seeds
    sent: float  # bits per client
    received: float

    def figures(self, scaffold: Mapping[str, "Found"]) -> dict[str, str | float]:
        """The numbers for the file, and how many times fewer bits these are than each Scaffold's."""
        times = {f"sent_times_fewer_than_{name}": base.sent / self.sent for name, base in scaffold.items()}
        times |= {
            f"times_fewer_than_{name}": (base.sent + base.received) / (self.sent + self.received)
            for name, base in scaffold.items()
        }
        costs = {"rounds": self.rounds, "bits_sent": self.sent, "bits_received": self.received}
        return {"setting": repr(self.method), **costs, **times}


def measure(problem: Ridge, engine: LocalStepsInClosedForm, settings: Sequence[Method]) -> Found:
    """The setting that sends the fewest bits with one seed, and what it needs with others."""

    def bits_sent(method: Method) -> float:
        return float(bits(problem, method, rounds=1)[0][-1])

    best, fewest = settings[0], np.inf
    for method in settings if len(settings) > 1 else ():
        most = min(MOST_ROUNDS, fewest / bits_sent(method))  # beyond that it is not the best
        count = rounds_needed(problem, engine, method, seed=TUNING_SEED, most=most)
        if count is not None:
            best, fewest = method, count * bits_sent(method)
    seeds = SEEDS[:1] if isinstance(best, fs.Scaffold) else SEEDS  # Scaffold draws nothing here
    counts = [rounds_needed(problem, engine, best, seed=seed, most=MOST_ROUNDS) for seed in seeds]
    reached = [count for count in counts if count is not None]
    if len(reached) < len(counts):
        raise SystemExit(f"{best} does not get there in {MOST_ROUNDS:,} rounds")
    rounds = float(np.mean(reached))
    sent, received = (float(each[-1]) for each in bits(problem, best, rounds=1))
    return Found(best, rounds, rounds * sent, rounds * received)


def main() -> None:
    """Print and save the table."""
    parser = measured.parser(__doc__)
    parser.add_argument("--only", help="the one method to measure, beside Scaffold")
    options = parser.parse_args()
    condition, dim = (100.0, 20) if options.quick else (CONDITION, DIM)
    figures = {}
    for n_clients in CLIENTS[: 1 if options.quick else None]:
        problem, engine = rotated(condition, n_clients, dim)
        settings = contestants(condition, n_clients)
        if options.only:
            settings = {name: settings[name] for name in ("scaffold", options.only)}
        found = {name: measure(problem, engine, each) for name, each in settings.items()}
        scaffold = {name: each for name, each in found.items() if name.startswith("scaffold")}
        written = {name: each.figures(scaffold) for name, each in found.items()}
        table = Table("method", *list(written["scaffold"])[1:], title=f"{n_clients} clients")
        for name, row in written.items():
            table.add_row(name, *(f"{value:,.4g}" for value in row.values() if isinstance(value, float)))
        Console(width=160).print(table)
        figures[f"clients_{n_clients}"] = written
    note = f"d = {dim}, κ = {condition:g}, full gradients; to a squared error of 1e-6 of the first."
    name = f"compression_{options.only}" if options.only else "compression"
    measured.save(name, figures, options, note=note)


if __name__ == "__main__":
    main()

"""Nanoseconds per client and local step of whole rounds, for each method, relative to FedAvg.

`make bench` or `python -m benchmarks.methods [--quick]`. Methods take turns, one round each, after a warm-up, on
one thread; of each turn's round the best of three counts, in processor time, which other programs on the machine
disturb less than the clock's.
Where a method exchanges gradients before its local steps, that part is timed once more by itself, and the local
steps are what is left. Random numbers of local steps are those of rounds in which their mean is H.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import contenders, measured
from benchmarks.contenders import BATCH, LOCAL_STEPS, SEED, workload
from fedscaffold.core.protocols import Method, Problem
from fedscaffold.core.random.stream import Batches, round_uniforms
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation.rounds import initial_state, open_rounds
from fedscaffold.simulation.setup import RunSetup, divergence_limit

BASE, BEST_OF = "fedavg", 3


def contestants(gamma: float, n_clients: int) -> dict[str, Method]:
    """Every method with the same mean number of local steps."""
    H = LOCAL_STEPS
    return {
        BASE: fs.FedAvg(step_size=gamma, local_steps=H),
        "scaffold": fs.Scaffold(step_size=gamma, local_steps=H),
        "scaffold_unequal_steps": fs.Scaffold(
            step_size=gamma, local_steps=[H - 10 + c % 21 for c in range(n_clients)]
        ),
        "scaffold_half_cohort": fs.Scaffold(step_size=gamma, local_steps=H, participation=0.5),
        "two_sided": fs.TwoSidedScaffold(step_size=gamma, local_steps=H, server_step_size=1.0),
        "proxskip": fs.ProxSkip(step_size=gamma, communication_probability=1.0 / H),
        "fedlin_minibatch": fs.FedLin(step_size=gamma, local_steps=H, correction_gradients="minibatch"),
        "fedlin_full": fs.FedLin(step_size=gamma, local_steps=H),
        "fedprox": fs.FedProx(step_size=gamma, local_steps=H, proximal_weight=0.1),
        "fedsplit": fs.FedSplit(step_size=gamma, local_steps=H, proximal_weight=0.1),
        "apda": fs.Apda(step_size=gamma, local_steps=H, smoothness=1.0, strong_convexity=0.01),
        "scallion": fs.Scallion(step_size=gamma, local_steps=H, compression="natural"),
        "amplified_scaffold": fs.AmplifiedScaffold(step_size=gamma, local_steps=H, window=4),
        "tamuna": fs.Tamuna(step_size=gamma, communication_probability=1.0 / H, owners=2),
        "randprox": fs.RandProx(step_size=gamma, communication_probability=1.0 / H, share=0.5),
        "local_svrg": fs.LocalSvrg(step_size=gamma, local_steps=H),
        "vr_proxskip": fs.VRProxSkip(step_size=gamma, communication_probability=1.0 / H),
    }


class Timing(NamedTuple):
    """Nanoseconds per client that takes part and local step."""

    round: float  # of whole rounds
    exchange: float  # of the gradients that are exchanged before the local steps

    @property
    def steps(self) -> float:
        """What is left for the local steps, the messages and the updates."""
        return self.round - self.exchange


def measure(problem: Problem, gamma: float, *, turns: int) -> dict[str, Timing]:
    """The timings, by method."""
    batches, engine = Batches(BATCH), fs.engines.Native(threads=1)
    spent: dict[str, float] = {}
    exchanging: dict[str, float] = {}
    steps: dict[str, float] = {}
    first = first_round(turns)
    with ExitStack() as stack:
        ready = {}
        for name, method in contestants(gamma, problem.n_clients).items():
            state = initial_state(problem, method, np.zeros((1, problem.dim)))
            setup = RunSetup(
                problem=problem, method=method, engine=engine, theta=state.theta, batches=batches, seed=SEED,
                limit=divergence_limit(state.theta),
            )  # fmt: skip
            step = stack.enter_context(open_rounds(setup))
            ready[name] = (method, step, step(state))  # compiled and warm
        for turn in range(turns):
            for name, (method, step, state) in ready.items():
                moved = state._replace(round=first + turn)
                spent[name] = spent.get(name, 0.0) + best_time(partial(step, moved))
                if method.exchange is not None:
                    exchange = partial(step.clients.exchange, moved.server, step.round_info(moved))
                    exchanging[name] = exchanging.get(name, 0.0) + best_time(exchange)
                steps[name] = steps.get(name, 0.0) + local_steps_of_round(method, problem.n_clients, moved.round)
    return {
        name: Timing(spent[name] * 1e9 / steps[name], exchanging.get(name, 0.0) * 1e9 / steps[name])
        for name in spent
    }


def best_time(function: Callable[[], object]) -> float:
    """Seconds of processor time that a call takes, the best of a few."""
    found = []
    for _ in range(BEST_OF):
        begin = time.process_time()
        function()
        found.append(time.process_time() - begin)
    return min(found)


def first_round(turns: int) -> int:
    """A round from which on ProxSkip's numbers of local steps have mean H, within 1 %, over `turns` rounds."""
    method = fs.ProxSkip(step_size=1.0, communication_probability=1.0 / LOCAL_STEPS)
    counts = method.local_step_counts(1, round_uniforms(SEED, 1, range(20_000))[0])[:, 0]
    means = np.convolve(counts, np.ones(turns) / turns, mode="valid")
    return 1 + int(np.argmax(np.abs(means[1:] / LOCAL_STEPS - 1.0) < 0.01))


def local_steps_of_round(method: Method, n_clients: int, round: int) -> float:
    """Local steps of all clients in a round; the gradients that FedLin exchanges are not counted."""
    round_uniform = round_uniforms(SEED, 1, range(round, round + 1))[:, 0]
    return method.participants(n_clients) * float(method.local_step_counts(n_clients, round_uniform).mean())


def main() -> None:
    """Print and save the table."""
    options = measured.parser(__doc__).parse_args()
    n_clients, turns = (50, 3) if options.quick else (1000, 10)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for kind in (Ridge, Logistic):
        work = workload(kind, n_clients, 20)
        found = measure(work.problem, work.step_size, turns=turns)
        title = f"{kind.kind}, N = {n_clients:,}, d = 20, B = {BATCH}, H = {LOCAL_STEPS}, 1 thread"
        table = Table("method", "ns per client and step", "times FedAvg", "without exchange", title=title)
        for name, timing in found.items():
            whole, alone = timing.round / found[BASE].round, timing.steps / found[BASE].round
            row = {"ns": timing.round, "times_fedavg": whole, "steps_times_fedavg": alone}
            figures.setdefault(name, {})[kind.kind] = row
            table.add_row(name, f"{timing.round:,.1f}", f"{whole:.3f}", f"{alone:.3f}")
        Console().print(table)
    note = (
        "Processor time per client that takes part and local step, whole rounds, one thread; "
        f"N = {n_clients:,}, 200 records × 20 features, batches of {BATCH}, H = {LOCAL_STEPS}."
    )
    measured.save("methods", figures, options, note=note)


if __name__ == "__main__":
    contenders.use_cores(1)
    main()

"""How well plans keep their targets over random problems: simulated error over target, refusals, processor time.

`python -m benchmarks.plans [--quick] [--first SEED] [--count N] [--minutes M] [--rows FILE]`, slow. Where a plan
is refused, a grid of step sizes and local steps is simulated: a refusal is false if one of them reaches the target
within the limits.
"""

import json
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.core.random.stream import Sampling
from fedscaffold.problems import Logistic, Ridge

WORK = 2e7  # local steps of clients in a simulation, at most
PRECISION = 0.02  # standard error over mean at which a simulation ends
MOST_RUNS = 20_000
RUNS = 3  # of a plan, the fastest of which counts
LONG = 0.02  # seconds: shorter runs take hardly longer than a call of `run` on anything


@dataclass(frozen=True, eq=False)
class PlanCase:
    """A problem, and what is asked of a plan for it."""

    seed: int
    problem: Ridge | Logistic
    request: dict[str, Any]
    traits: tuple[str, ...]

    @property
    def batching(self) -> dict[str, Any]:
        """How batches are drawn, by the names of `fedscaffold.run`."""
        return {name: self.request[name] for name in ("batch_size", "sampling")}


def plan_case(seed: int) -> PlanCase:
    """The case of a seed; ridge where it is even, logistic regression where it is odd."""
    rng = np.random.default_rng([seed, 77])
    ridge = seed % 2 == 0
    N = int(rng.choice([1, 2, 3, 5, 12, 40, 150], p=[0.1, 0.15, 0.15, 0.2, 0.2, 0.1, 0.1]))
    d = int(rng.choice([1, 2, 3, 5, 10, 20], p=[0.1, 0.2, 0.25, 0.25, 0.1, 0.1]))
    few, heavy, loud = rng.random() < 0.25, rng.random() < 0.25, N > 1 and rng.random() < 0.2
    sizes = rng.integers(2, 6, size=N) if few else rng.integers(10, 80, size=N)
    spread = 10.0 ** (-rng.choice([0.0, 0.0, 0.5, 1.0]) * np.linspace(0.0, 1.0, d))
    own = rng.normal(size=d)
    X, y = [], []
    for c, n in enumerate(sizes):
        x = rng.standard_t(3.0, size=(n, d)) if heavy else rng.normal(size=(n, d))
        x = (
            (x * rng.uniform(0.5, 1.5) + 0.3 * rng.normal(size=d))
            * spread
            * (10.0 if loud and c == N // 2 else 1.0)
        )
        z = x @ ((own + 0.5 * rng.normal(size=d)) / spread) + rng.normal(size=n)
        X.append(x)
        y.append(z if ridge else np.where(z > 0, 1.0, -1.0))
    weights, weighted = None, N > 1 and rng.random() < 0.25
    if weighted:
        weights = np.full(N, 0.1 / (N - 1))
        weights[N // 3] = 0.9
    l2 = float(rng.choice([1e-3, 0.05, 0.3]) if ridge else rng.choice([1e-2, 0.05, 0.3]))
    problem: Ridge | Logistic = (Ridge if ridge else Logistic)(X, y, l2=l2, weights=weights)
    smallest = int(sizes.min())
    drawn: list[tuple[int, Sampling]] = [
        (1, "with_replacement"),
        (1, "with_replacement"),
        (4, "with_replacement"),
        (16, "with_replacement"),
        (max(1, smallest // 2), "without_replacement"),
        (smallest, "without_replacement"),
    ]
    batch_size, sampling = drawn[int(rng.integers(len(drawn)))]
    optimum = problem.optimum()
    request = {
        "target_mse": 10.0 ** rng.uniform(-3.0, -0.7) * float(optimum @ optimum),
        "batch_size": batch_size,
        "sampling": sampling,
        "max_local_steps": [None, None, 64, 8][int(rng.integers(4))],
        "round_cost": float(rng.choice([1.0, 100.0, 100.0, 1000.0])),
    }
    names = (("few", few), ("heavy", heavy), ("loud", loud), ("weight_0.9", weighted))
    return PlanCase(seed, problem, request, tuple(name for name, has in names if has))


def simulated(case: PlanCase, plan: fs.Plan) -> tuple[float, float]:
    """Mean squared error after the last round over the target, and its standard error."""
    assert plan.target_mse is not None
    each = plan.gradients_per_client * case.problem.n_clients
    most = int(np.clip(WORK / each, 60, MOST_RUNS))
    found: list[float] = []
    runs = min(200, most)
    while True:
        trace = fs.run(
            case.problem,
            plan.method,
            rounds=plan.rounds,
            repetitions=runs,
            seed=1 + len(found),
            progress=False,
            **case.batching,
        )
        found += list(trace.mse[:, -1] / plan.target_mse)
        mean, error = float(np.mean(found)), float(np.std(found) / np.sqrt(len(found)))
        if error <= PRECISION * mean or len(found) >= most:
            return mean, error
        runs = min(3 * len(found), most - len(found)) or 1


def a_way(case: PlanCase) -> str | None:
    """A step size and local steps on a grid that reach the target by simulation, within the limits."""
    longest = case.request["max_local_steps"] or 1024
    curvatures = np.linalg.eigvalsh(case.problem.client_hessians(case.problem.optimum()))
    for H in sorted({longest, *(h for h in (1, 8, 64, 256) if h < longest)}, reverse=True):
        for gamma in 2.0 / curvatures.max() * 2.0 ** -np.arange(10.0):
            rounds = int(np.clip(WORK / (20 * H * case.problem.n_clients), 1, 2000))
            method = fs.Scaffold(step_size=float(gamma), local_steps=H)
            try:
                trace = fs.run(
                    case.problem, method, rounds=rounds, repetitions=20, progress=False, **case.batching
                )
            except fs.Diverged:
                continue
            mean = trace.mse.mean(axis=0)
            if (mean[1:] <= 0.9 * case.request["target_mse"]).any():
                return f"step_size={gamma:.3g}, local_steps={H}"
    return None


def measure(case: PlanCase) -> dict[str, Any]:
    """What became of one plan."""
    case.problem.optimum()
    begin = time.process_time()
    line: dict[str, Any] = {"seed": case.seed, "clients": case.problem.n_clients, "dim": case.problem.dim}
    line["traits"] = case.traits
    try:
        plan = fs.plan(case.problem, optimum=case.problem.optimum(), progress=False, **case.request)
    except fs.InvalidInput as error:
        line |= {"seconds": time.process_time() - begin, "refused": str(error)}
        return line | {"a_way": a_way(case)}
    line["seconds"] = time.process_time() - begin
    share, error_of_share = simulated(case, plan)
    return line | {
        "share": share,
        "error": error_of_share,
        "predicted": plan.predicted_mse / plan.target_mse,
        "step_size": plan.method.step_size,
        "local_steps": plan.method.uniform_local_steps,
        "rounds": plan.rounds,
        "cost": plan.cost,
        "run_seconds": min(run_seconds(case, plan) for _ in range(RUNS)),
    }


def run_seconds(case: PlanCase, plan: fs.Plan) -> float:
    """Processor time of one run of a plan, the kernels of which are compiled."""
    begin = time.process_time()
    fs.run(case.problem, plan.method, rounds=plan.rounds, progress=False, **case.batching)
    return time.process_time() - begin


def measured_plan(seed: int) -> dict[str, Any]:
    """What became of the plan of a seed."""
    return measure(plan_case(seed))


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of many plans; a share is outside where it is so by more than two standard errors."""
    made = [line for line in lines if "share" in line]
    refused = [line for line in lines if "refused" in line]
    return {
        "problems": len(lines),
        "planned": len(made),
        "above_105_percent": sum(line["share"] - 2 * line["error"] > 1.05 for line in made),
        "below_half": sum(line["share"] + 2 * line["error"] < 0.5 for line in made),
        "largest_share": max(line["share"] for line in made),
        "refused": len(refused),
        "falsely_refused": sum(line["a_way"] is not None for line in refused),
        "median_seconds": float(np.median([line["seconds"] for line in lines])),
        "largest_seconds": max(line["seconds"] for line in lines),
        "plan_over_run": plan_over_run(made),
        "plan_over_run_of_long_runs": plan_over_run([line for line in made if line["run_seconds"] >= LONG]),
    }


def plan_over_run(made: list[dict[str, Any]]) -> dict[str, float]:
    """Processor time of plans over that of one run of each: how many, quantiles, and the share up to 25."""
    ratios = [line["seconds"] / line["run_seconds"] for line in made]
    if not ratios:
        return {"plans": 0}
    names = ("tenth", "quarter", "median", "three_quarters", "nine_tenths")
    found = dict(zip(names, map(float, np.percentile(ratios, [10, 25, 50, 75, 90])), strict=True))
    return {"plans": len(ratios), **found, "up_to_25": float(np.mean(np.array(ratios) <= 25.0))}


def main() -> None:
    """Measure, print and save."""
    parser = measured.parser(__doc__)
    parser.add_argument("--first", type=int, default=1000, help="first seed")
    parser.add_argument("--count", type=int, default=200, help="number of problems")
    parser.add_argument("--minutes", type=float, default=np.inf, help="begin no further problem after so long")
    parser.add_argument(
        "--rows", type=Path, help="file of problems done, from which a stopped run of the same code goes on"
    )
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    begin, rows = time.monotonic(), measured.KeptRows(options.rows, ("seed",))
    for seed in range(options.first, options.first + (4 if options.quick else options.count)):
        if time.monotonic() - begin > 60.0 * options.minutes:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lines.append(rows.row((seed,), partial(measured_plan, seed)))
    figures = summary(lines)
    print(json.dumps(figures, indent=1))
    note = (
        "Simulated error after the last round over the target. plan_over_run: processor time of the plan over "
        f"that of one run of it, the fastest of {RUNS}; long runs are those of {LONG} s or more."
    )
    command = f"python -m benchmarks.plans --first {options.first} --count {options.count}"
    measured.save("plans", figures, options, note=note, command=command)


if __name__ == "__main__":
    main()

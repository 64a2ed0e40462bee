"""Studies on autopilot, over tables, numbers of sites and ways to deal rows to them: do they reach what they say?

`python -m benchmarks.studies [--quick] [--part 1/4]`. Each study runs in one process, where the pooled optimum can
be computed afterwards, and is compared with it: the certified error with the true one, the exchanges of training
with the rounds that Scaffold needs with the best fixed number of local steps, chosen in hindsight knowing the
optimum. With `--part` the cases are run in pieces, which are kept beside the figures; the last one writes these.
"""

import json
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.cli.prepare import slope_length
from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.core.files import write_text
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem, problem_class
from fedscaffold.federation.study.rows import SiteRows
from fedscaffold.models.fit import Fit
from tests.federation.study.tables import TABLES, deal

TOLERANCE = 0.005
LOCAL_STEPS = (1, 4, 16, 64, 256, 1024, 4096)
MOST_ROUNDS = 400
WORK = 3e9  # numbers that Scaffold with one fixed number of local steps may read
SITES = ((2, "even"), (3, "labels"), (5, "features"), (12, "sizes"), (40, "labels"), (60, "sizes"), (200, "sizes"))
MOST_NUMBERS = 2e7  # in the Hessians of all sites, which are all in this process
MODES = ("auto", "scaffold", "gradients")


@dataclass(frozen=True, eq=False)
class RelativeDistance:
    """Observer of ‖β − β*‖ / ‖β*‖ after every round, intercepts left out."""

    optimum: Array = field(repr=False)
    name: str = field(default="relative_distance", init=False)
    keep: Literal["every"] = field(default="every", init=False)

    def watch(self, problem: Any) -> Any:
        """Return a function that computes the distance of every repetition."""
        length = slope_length(problem, self.optimum)

        def distance(round: int, theta: Array, previous: Array | None) -> Array:
            return np.array([slope_length(problem, one - self.optimum) / length for one in theta])

        return distance


class Case(NamedTuple):
    """One study."""

    table: str
    n_sites: int
    how: str
    mode: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in files."""
        return "|".join(map(str, self))


def cases() -> list[Case]:
    """All studies: every table with every mode, over numbers of sites and ways to deal that take turns."""
    found, turn = [], 0
    for name, make in TABLES.items():
        frame, kind = make()
        classes = frame["y"].nunique() if kind == "logistic" else 1
        dim = frame.shape[1] * (classes if classes > 2 else 1)
        able = [(n, how) for n, how in SITES if len(frame) >= 4 * n and n * dim**2 <= MOST_NUMBERS]
        for k in range(9):
            n_sites, how = able[turn % len(able)]
            turn += 1
            found.append(Case(name, n_sites, how, MODES[k % len(MODES)], 100 + k))
    return found


def conduct(case: Case) -> tuple[Fit, dict[str, Any]]:
    """The study of a case, and the tables of its sites."""
    frame, kind = TABLES[case.table]()
    sites = deal(frame, case.n_sites, case.how, seed=case.seed)
    study = fs.federation.Study(
        target="y", kind=kind, l2="auto", tolerance=TOLERANCE, min_cell=1, hessians=case.mode != "gradients",
        trainer="scaffold" if case.mode == "scaffold" else "auto", sums="open" if case.n_sites == 2 else "secure",
    )  # fmt: skip
    return study.run(sites, seed=case.seed), sites


def run_case(case: Case, oracle_rounds: int | None) -> dict[str, Any]:
    """What one study reached, and what it took; its exchanges beside the rounds that hindsight needs."""
    began = time.process_time()
    try:
        result, sites = conduct(case)
    except FedScaffoldError as error:
        return {"failed": str(error)[:200]}
    seconds = time.process_time() - began
    problem = all_sites(result, sites)
    optimum = problem.optimum()
    certificate = result.trained.certificate
    slopes = certificate.slopes

    def distance(theta: Array) -> float:
        return float(np.linalg.norm((theta - optimum)[slopes]) / np.linalg.norm(optimum[slopes]))

    return {
        "dim": problem.dim,
        "rows": problem.n_records,
        "smallest": int(problem.sizes.min()),
        "reached": result.reached,
        "exchanges": result.rounds,
        "certified": certificate.relative_error,
        "true": distance(certificate.theta),
        "delivered": distance(result.theta),
        "seconds": round(seconds, 3),
        "notes": list(result.trained.notes),
        "oracle_rounds": oracle_rounds,
    }


def all_sites(result: Fit, sites: dict[str, Any]) -> EncodedProblem:
    """The problem of all sites, which nobody in the study ever had."""
    parts = [SiteRows(table, result.settings, b"").problem for table in sites.values()]
    sizes = np.array([int(part.sizes[0]) for part in parts])
    first = parts[0]
    return problem_class(first.encoding)(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        np.concatenate([[0], np.cumsum(sizes)]),
        l2=first.l2,
        weights=sizes / sizes.sum(),
        client_names=tuple(sites),
        encoding=first.encoding,
    )


def oracle(case: Case) -> dict[str, Any]:
    """Rounds of Scaffold with the best fixed number of local steps to the tolerance, found by trying them all.

    The step size is the study's. None where no number of local steps gets there with the work that is allowed.
    """
    result, sites = conduct(case._replace(mode="auto"))
    problem = all_sites(result, sites)
    optimum = problem.optimum()
    step_size = 1.0 / float(problem.smoothness(Batches()))
    best, chosen = math.inf, 0
    for steps in LOCAL_STEPS:
        most = int(min(MOST_ROUNDS, best - 1, WORK / (steps * problem.x.size * problem.vectors)))
        if most < 1:
            continue
        trace = fs.run(
            problem, fs.Scaffold(step_size=step_size, local_steps=steps), rounds=most, seed=0, progress=False,
            record=(RelativeDistance(optimum),),
        )  # fmt: skip
        within = np.flatnonzero(trace.metrics["relative_distance"][0] <= TOLERANCE)
        if within.size:
            best, chosen = float(within[0]), steps
    return {"rounds": None if math.isinf(best) else int(best), "steps": chosen}


def figures(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Shares and ratios over all studies."""
    done = [one for one in found.values() if "failed" not in one]
    compared = [one for one in done if one["oracle_rounds"]]
    ratios = np.array([one["exchanges"] / one["oracle_rounds"] for one in compared])
    closed = [one["delivered"] for key, one in found.items() if "failed" not in one and one["dim"] <= 100
              and key.split("|")[3] != "gradients"]  # fmt: skip
    by_mode = {
        mode: np.array([
            one["exchanges"] / one["oracle_rounds"]
            for key, one in found.items()
            if key.split("|")[3] == mode and one.get("oracle_rounds")
        ])
        for mode in MODES
    }  # fmt: skip
    return {
        "studies": len(found),
        "tables": len({key.split("|")[0] for key in found}),
        "failed": len(found) - len(done),
        "most_sites": max(int(key.split("|")[1]) for key in found),
        "largest_dim": max(one["dim"] for one in done),
        "smallest_site": min(one["smallest"] for one in done),
        "reached": sum(one["reached"] for one in done) / len(found),
        "certified_true": sum(one["true"] <= 1.2 * one["certified"] for one in done) / len(found),
        "ratio_median": float(np.median(ratios)),
        "ratio_within_2": float((ratios <= 2.0).mean()),
        "ratio_largest": float(ratios.max()),
        "compared": len(compared),
        "delivered_largest_closed": max(closed),
        **{
            f"{mode}_{name}": value
            for mode, each in by_mode.items()
            if each.size
            for name, value in (
                ("median", float(np.median(each))),
                ("within_2", float((each <= 2.0).mean())),
                ("largest", float(each.max())),
            )
        },
    }


def main() -> None:
    """Run the cases of this part, and write the figures when all are there."""
    parser = measured.parser(__doc__)
    parser.add_argument("--part", default="1/1", help="which piece of the cases, such as 2/4")
    parser.add_argument("--oracles", action="store_true", help="only what knows the optimum, which is kept")
    options = parser.parse_args()
    part, of = map(int, options.part.split("/"))
    chosen = cases()[:: 9 if options.quick else 1]
    mine = [case for k, case in enumerate(chosen) if k % of == part - 1]
    ending = "-quick.json" if options.quick else ".json"
    oracles, studies = (Kept(measured.ROOT / "results" / f"{name}{ending}") for name in ("oracles", "studies"))
    for case in mine:
        same = case._replace(mode="any").key
        if same not in oracles.read():
            oracles.add(same, oracle(case))
            print(same, oracles.read()[same], flush=True)
        if not options.oracles and case.key not in studies.read():
            studies.add(case.key, run_case(case, oracles.read()[same]["rounds"]))
            print(case.key, {k: v for k, v in studies.read()[case.key].items() if k != "notes"}, flush=True)
    done = studies.read()
    if any(case.key not in done for case in chosen):
        sys.exit(f"{len(done)} of {len(chosen)} studies are done; run the other parts")
    measured.save("studies", figures({case.key: done[case.key] for case in chosen}), options)


class Kept:
    """Results by name in a JSON file, so that a benchmark can be run in pieces."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self.path = path

    def read(self) -> dict[str, Any]:
        """All results."""
        return dict(json.loads(self.path.read_text())) if self.path.exists() else {}

    def add(self, name: str, value: dict[str, Any]) -> None:
        """Keep one more result."""
        write_text(self.path, json.dumps({**self.read(), name: value}, indent=1))


if __name__ == "__main__":
    main()

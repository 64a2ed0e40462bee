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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem, problem_class
from fedscaffold.federation.study.prepare import recode
from fedscaffold.federation.study.result import StudyResult
from fedscaffold.federation.study.site import SiteRules
from fedscaffold.models.planning.distance import RelativeDistance
from tests.federation.study.tables import TABLES, deal

TOLERANCE = 0.005
LOCAL_STEPS = (1, 4, 16, 64, 256, 1024, 4096)
MOST_ROUNDS = 400
WORK = 1.5e10  # numbers that one search for the best fixed local steps may read
SITES = ((2, "even"), (3, "labels"), (5, "features"), (12, "sizes"), (40, "labels"), (60, "sizes"), (200, "sizes"))
MODES = ("auto", "scaffold", "gradients")


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
        rows = len(make()[0])
        able = [(n, how) for n, how in SITES if rows >= 4 * n]
        for k in range(9):
            n_sites, how = able[turn % len(able)]
            turn += 1
            found.append(Case(name, n_sites, how, MODES[k % len(MODES)], 100 + k))
    return found


def run_case(case: Case) -> dict[str, Any]:
    """What one study reached, and what it took."""
    frame, kind = TABLES[case.table]()
    sites = deal(frame, case.n_sites, case.how, seed=case.seed)
    hessians = case.mode != "gradients"
    trainer = "scaffold" if case.mode == "scaffold" else "auto"
    study = fs.federation.Study(
        target="y", kind=kind, tolerance=TOLERANCE, min_cell=1, evaluate=0.0, trainer=trainer
    )
    began = time.process_time()
    rules = SiteRules(by_the_clock=False, min_cell=1, allow_hessians=hessians)
    try:
        result = study.run(sites, seed=case.seed, rules=rules)
    except FedScaffoldError as error:
        return {"failed": str(error)[:200]}
    seconds = time.process_time() - began
    problem = all_sites(result, sites)
    optimum = problem.optimum()
    slopes = result.training.certificate.slopes

    def distance(theta: Array) -> float:
        return float(np.linalg.norm((theta - optimum)[slopes]) / np.linalg.norm(optimum[slopes]))

    certificate = result.training.certificate
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
        "notes": list(result.training.notes),
        **oracle(problem, result, optimum),
    }


def all_sites(result: StudyResult, sites: dict[str, Any]) -> EncodedProblem:
    """The problem of all sites, which nobody in the study ever had."""
    parts = [result.agreement.problem(recode(table, result.agreement)) for table in sites.values()]
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


def oracle(problem: EncodedProblem, result: StudyResult, optimum: Array) -> dict[str, Any]:
    """Rounds of Scaffold with the best fixed number of local steps to the tolerance, found by trying them all."""
    step_size = 1.0 / max(one.smoothness for one in result.measured.values())
    best, chosen, work = math.inf, 0, 0.0
    for steps in LOCAL_STEPS:
        most = int(min(MOST_ROUNDS, best - 1, WORK / (steps * problem.x.size)))
        if most < 1:
            continue
        watch = RelativeDistance(optimum)
        try:
            trace = fs.run(
                problem, fs.Scaffold(step_size=step_size, local_steps=steps), rounds=most, record=(watch,),
                progress=False,
            )  # fmt: skip
        except FedScaffoldError:
            continue
        within = np.flatnonzero(trace.metrics["relative_distance"][0] <= TOLERANCE)
        work += float(most * steps)
        if within.size:
            best, chosen = float(within[0]), steps
    return {"oracle_rounds": None if math.isinf(best) else int(best), "oracle_steps": chosen}


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
    options = parser.parse_args()
    part, of = map(int, options.part.split("/"))
    chosen = cases()[:: 9 if options.quick else 1]
    folder = measured.ROOT / "results"
    folder.mkdir(exist_ok=True)
    store = Path(folder / ("studies-quick.json" if options.quick else "studies.json"))
    for k, case in enumerate(chosen):
        kept = json.loads(store.read_text()) if store.exists() else {}
        if k % of != part - 1 or case.key in kept:
            continue
        found = run_case(case)
        kept = json.loads(store.read_text()) if store.exists() else {}
        store.write_text(json.dumps({**kept, case.key: found}, indent=1))
        shown = {name: value for name, value in found.items() if name != "notes"}
        print(case.key, shown, flush=True)
    kept = json.loads(store.read_text())
    if len(kept) < len(chosen):
        sys.exit(f"{len(kept)} of {len(chosen)} studies are done; run the other parts")
    measured.save("studies", figures({case.key: kept[case.key] for case in chosen}), options)


if __name__ == "__main__":
    main()

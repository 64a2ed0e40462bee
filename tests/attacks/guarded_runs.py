"""Runs of the native engine whose arrays touch pages that must not be read.

`python -m tests.attacks.guarded_runs SEED COUNT FOLDER` runs random cases with the library in a folder.
Each array that is handed to the kernel is copied to memory that ends, or begins, at such a page; a read or write
beyond it ends the process. Results are compared with the reference engine.
"""

import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines.native import engine, library, records
from tests.samples import KINDS, WEIGHTED_KINDS, make, systems, weighted

PAGE = mmap.PAGESIZE
PROT_NONE = 0
CHAINS: tuple[Any, Any] = ("iid", "markov")
DTYPES: tuple[Any, Any] = ("float64", "float32")
mapped: list[tuple[Any, Any, mmap.mmap]] = []  # arrays, their guarded copies, and the memory of these
state = {"at_end": True}


def guarded_address(array: Any) -> int:
    if array is None:
        return 0
    assert array.flags.c_contiguous
    pages = -(-array.nbytes // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    skip = PAGE + (pages * PAGE - array.nbytes if state["at_end"] else 0)
    copy = np.frombuffer(memory, dtype=array.dtype, count=array.size, offset=skip).reshape(array.shape)
    copy[...] = array
    for guard in (base, base + (pages + 1) * PAGE):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), PAGE, PROT_NONE) == 0
    mapped.append((array, copy, memory))
    return base + skip


def guarded_call(*arguments: Any, **options: Any) -> None:
    run(*arguments, **options)
    for array, copy, _ in mapped:
        if array.flags.writeable:
            array[...] = copy


run = library.run_clients


def guard_all_arrays() -> None:
    """From now on, in this process."""
    for module in (engine, records):
        module.address = guarded_address  # type: ignore[attr-defined]
    library.run_clients = guarded_call


def problem_of(rng: Any) -> Any:
    kind = str(rng.choice([*WEIGHTED_KINDS, "plain", "systems", "td", "stream"]))
    sizes = rng.integers(1, 40, size=rng.integers(1, 9)).tolist()
    dim = int(rng.choice([1, 2, 3, 5, 8, 13, 20, 31, 66]))
    if kind == "plain":
        return make(KINDS[rng.integers(2)], sizes, dim, n_unpenalised=int(rng.integers(0, dim + 1)))
    if kind == "systems":
        return systems(sizes, min(dim, 13))
    if kind == "td":
        return fs.problems.GarnetTD(n_clients=4, states=30, dim=min(dim, 20), sampling=CHAINS[rng.integers(2)])
    if kind == "stream":
        maker = fs.problems.RidgeStream if rng.random() < 0.5 else fs.problems.LogisticStream
        return maker(n_clients=5, dim=dim)
    return weighted(kind, sizes, dim)


def one_case(rng: Any) -> None:
    problem, dtype = problem_of(rng), DTYPES[rng.integers(2)]
    stream, n = "stream" in problem.kind, problem.n_clients
    batch = None if rng.random() < 0.2 and not stream else int(rng.choice([1, 2, 4, 5, 7, 8, 10, 13, 16, 17, 33]))
    tabular = not stream and problem.kind not in ("linear_sa", "td")
    distinct = tabular and batch is not None and rng.random() < 0.3
    if distinct:
        batch = min(batch or 1, int(np.diff(problem.offsets).min()))
    privacy = fs.privacy.RecordLevel(clip=1.0, noise_multiplier=1.0) if tabular and rng.random() < 0.3 else None
    repetitions, cohort = int(rng.integers(1, 4)), int(rng.integers(1, n + 1))
    clients = np.sort(np.stack([rng.permutation(n)[:cohort] for _ in range(repetitions)]), axis=1)
    theta, xi = 0.1 * rng.normal(size=(repetitions, problem.dim)), 0.1 * rng.normal(size=(1, cohort, problem.dim))
    anchored = tabular and problem.kind != "multinomial" and privacy is None and rng.random() < 0.3
    options: dict[str, Any] = {
        "step_size": 0.01, "local_steps": rng.integers(0, 30, size=(1, cohort)), "round": 3, "clients": clients,
        "first_step": int(rng.integers(0, 5)), "anchor": theta + 0.1 if anchored else None,
        "pull": 0.1 if rng.random() < 0.3 else 0.0,
    }  # fmt: skip
    found = []
    batches = Batches(batch, "without_replacement" if distinct else "with_replacement")
    for chosen in (fs.engines.Native(dtype=dtype, threads=2), fs.engines.Reference()):
        with chosen.open(problem, batches, seed=5, privacy=privacy) as local_sgd:
            found.append(local_sgd(theta, xi, **options))
    tolerance = 1e-9 if dtype == "float64" else 3e-3
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=tolerance * (1 + np.abs(found[1]).max()))


def main(seed: int, count: int, folder: Path) -> None:
    library.FOLDER = folder
    guard_all_arrays()
    engine.NUMBERS_WORTH_A_THREAD = 100  # so that two threads are at work
    for case in range(count):
        for at_end in (True, False):
            for level in range(library.load().fs_level(2) + 1):
                library.MOST_LEVEL, state["at_end"] = level, at_end
                rng = np.random.default_rng([seed, case])
                try:
                    one_case(rng)
                except AssertionError:
                    print(f"seed {seed}, case {case}, level {level}", file=sys.stderr)
                    raise
                mapped.clear()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

"""The compiled kernel against hand-written C, JAX and NumPy, over features, sizes of batches and losses.

`make bench` or `python -m benchmarks.kernel [--quick] [--dims 8,20] [--batches 1,10,64,all]`. One thread,
processor time, the best of many short turns; all are separate processes, which take turns. C is limit.c in each
form that this machine runs (and limit_avx512.c), of which the fastest counts. JAX and NumPy run ridge and logistic
regression on drawn batches. float32 is compared with float64.
"""

import importlib.util

from rich.console import Console
from rich.table import Table

from benchmarks import c_limit, measured
from benchmarks.contenders import CLASSES, LOCAL_STEPS, RECORDS
from benchmarks.turns import KINDS, Contender, Shape, measure

NUMBERS = 400_000  # of all clients' records, so that they do not fit the second-level cache
OURS, LIMIT, JAX, NUMPY = (Contender(name) for name in ("one_thread", "c_limit", "jax", "numpy_across"))


def n_clients(dim: int) -> int:
    """So many that the records are large for the caches, and few enough for a turn to be short."""
    return max(8, min(100, NUMBERS // (RECORDS * dim) + 8))


def main() -> None:
    """Print and save the tables."""
    parser = measured.parser(__doc__)
    parser.add_argument("--dims", default="8,20,64,200,1000")
    parser.add_argument("--batches", default="1,10,64,all")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--turns", type=int, default=25)
    options = parser.parse_args()
    dims = [8] if options.quick else [int(d) for d in options.dims.split(",")]
    batches = [None if b == "all" else int(b) for b in options.batches.split(",")]
    turns = 2 if options.quick else options.turns
    figures: dict[str, dict[str, dict[str, float | str]]] = {}
    for kind in options.kinds.split(","):
        table = Table(
            "d", "B", "C", "ours", "ours / C", "fastest C", "JAX", "NumPy", "float32", "gain", title=kind
        )  # fmt: skip
        for dim in dims:
            for batch in batches:
                shape = Shape(kind, n_clients(dim), dim, batch)
                row = compare(shape, turns)
                figures.setdefault(kind, {})[f"d{dim}_b{batch or 'all'}"] = row
                table.add_row(
                    str(dim), str(batch or "all"), *(f"{row[k]:,.1f}" for k in ("c_limit", "ours")),
                    f"{row['ours_over_c']:.2f}", str(row["form"]),
                    *(f"{row[k]:,.1f}" if k in row else "" for k in ("jax", "numpy_across", "float32")),
                    f"{row['float32_gain']:.2f}",
                )  # fmt: skip
        Console().print(table)
    note = (
        f"Nanoseconds of processor time per client and local step, one thread, {RECORDS} records per client, "
        f"{LOCAL_STEPS} local steps, multinomial with {CLASSES} classes; the names say features d and batch b."
    )
    measured.save("kernel", figures, options, note=note)


def compare(shape: Shape, turns: int) -> dict[str, float | str]:
    """Nanoseconds of ours, C, JAX and NumPy, the ratio of the first two, and what single precision gains."""
    contenders = [OURS, LIMIT] if c_limit.compiler() else [OURS]
    if shape.kind != "multinomial" and shape.batch is not None:
        contenders += [JAX, NUMPY] if importlib.util.find_spec("jax") else [NUMPY]
    double = measure(contenders, shape, turns)
    single = measure([OURS], Shape(shape.kind, shape.n_clients, shape.dim, shape.batch, "float32"), turns)
    ours, narrow = double[OURS.name].processor, single[OURS.name].processor
    found: dict[str, float | str] = {"ours": ours, "float32": narrow, "float32_gain": ours / narrow}
    found |= {c.name: double[c.name].processor for c in (JAX, NUMPY) if c.name in double}
    limit = double.get(LIMIT.name)
    if limit is None:
        return {**found, "c_limit": float("nan"), "ours_over_c": float("nan"), "form": "no compiler"}
    return {**found, "c_limit": limit.processor, "ours_over_c": ours / limit.processor, "form": limit.form}


if __name__ == "__main__":
    main()

"""Nanoseconds per client and local step: the native engine, other implementations, and hand-written C.

`make bench` or `python -m benchmarks.local_steps [--quick]`. Read ratios: the contenders of a line are processes
of their own, which take turns, on one core unless they say otherwise, after a warm-up; the best turn counts. Those
on one core are compared by processor time; two threads are compared with one by the clock. `benchmarks.kernel`
compares ours with C for other numbers of features, sizes of batches and losses.
"""

from rich.console import Console
from rich.table import Table

from benchmarks import c_limit, measured
from benchmarks.contenders import BATCH, LOCAL_STEPS, RECORDS
from benchmarks.turns import Contender, Shape, measure

OURS = "one_thread"
BY_CLOCK = ("two_threads",)


def contenders_here() -> list[Contender]:
    """The contenders that can run on this machine."""
    all_ = [
        Contender(OURS),
        Contender("two_threads", cores=2),
        Contender("numpy_across", at_most=1000),
        Contender("numpy_loop", at_most=20),
    ]
    if c_limit.compiler() is not None:
        all_.insert(0, Contender("c_limit"))
    try:
        import jax  # noqa: F401
    except ImportError:
        Console(stderr=True).print("JAX is not installed: left out")
    else:
        all_.insert(3, Contender("jax"))
    return all_


def main() -> None:
    """Print and save the tables."""
    options = measured.parser(__doc__).parse_args()
    sizes = [(100, 20)] if options.quick else [(n, d) for d in (20, 200) for n in (100, 1000, 10000)]
    figures: dict[str, dict[str, float]] = {}
    gains: dict[str, float] = {}
    for kind in ("ridge", "logistic"):
        for n_clients, dim in sizes:
            turns = 3 if options.quick else 15 if n_clients < 10000 else 5
            found = measure(contenders_here(), Shape(kind, n_clients, dim), turns)
            title = f"{kind}, N = {n_clients:,}, d = {dim}, B = {BATCH}, H = {LOCAL_STEPS}"
            table = Table("contender", "ns per client and step", "times ours", title=title)
            size = f"{kind}_{n_clients}" + f"_d{dim}" * (dim != 20)
            for name, timing in found.items():
                nanoseconds = timing.clock if name in BY_CLOCK else timing.processor
                own = found[OURS].clock if name in BY_CLOCK else found[OURS].processor
                figures.setdefault(name, {})[size] = nanoseconds
                table.add_row(name, f"{nanoseconds:,.1f}", f"{nanoseconds / own:,.2f}")
            gains[size] = found[OURS].clock / found["two_threads"].clock
            Console().print(table)
    note = (
        f"One core unless a name says otherwise, {RECORDS} records × 20 features (or as many as follow the d of a "
        f"name), batches of {BATCH}, {LOCAL_STEPS} local steps, float64; the number after the problem is N. "
        "Processor time on one core, the clock's on two."
    )
    measured.save(
        "local_steps", {"ns_per_client_and_step": figures, "two_threads_over_one": gains}, options, note=note
    )


if __name__ == "__main__":
    main()

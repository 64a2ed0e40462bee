"""`fedscaffold run`: one run, from options or a TOML file."""

import time
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedscaffold.cli.errors import RESUMABLE, refusals
from fedscaffold.cli.options import METHOD_NAMES, batch_size_of, candidates_of
from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.storage.files import check_writable, write_frame
from fedscaffold.engines import Jax, Numba, Ray, choose_engine
from fedscaffold.problems import LogisticStream, RidgeStream, paper
from fedscaffold.problems.paper import L2
from fedscaffold.simulation import Trace
from fedscaffold.simulation.run_method import run

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold run --clients 100\n\n"
    "  fedscaffold run --problem classification --method fedavg --step-size 0.01 --out trace.npz\n\n"
    "  fedscaffold run --method scaffold:participation=0.1 --local-steps 20 --rounds 1000\n\n"
    "  fedscaffold run --config run.toml --rounds 500      options win over the file\n\n"
    'A file holds the options\' names:  problem = "regression"  clients = 1000  step-size = 0.05'
)
PAPER = ("regression", "classification")
STREAMS: dict[str, type[RidgeStream] | type[LogisticStream]] = {
    "ridge-stream": RidgeStream,
    "logistic-stream": LogisticStream,
}
PROBLEMS = (
    "regression or classification (the paper's data; the latter need scikit-learn), ridge-stream or "
    "logistic-stream (clients that are distributions)."
)
DIM = 20  # features of the streams, as many as the paper's data have
SUFFIXES = (".npz", ".csv", ".parquet")


@dataclass(frozen=True)
class RunOptions:
    """Options of `fedscaffold run` that may also come from its TOML file, with their defaults."""

    problem: str = "regression"
    clients: int = 100
    l2: float = L2
    method: str = "scaffold"
    step_size: float = 0.05
    local_steps: int = 100
    rounds: int = 100
    batch_size: int | str = 10
    sampling: str = "with_replacement"
    repetitions: int = 1
    seed: int = 0
    engine: str = "auto"
    threads: int | None = None
    dtype: str = "float64"


DEFAULTS = RunOptions()


def _option(name: str, text: str) -> Any:
    """An option that may also come from the file, with its default in the help."""
    default = getattr(DEFAULTS, name)
    return typer.Option(help=text, show_default=False if default is None else str(default))


def command(
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the options below.")] = None,
    problem: Annotated[str | None, _option("problem", PROBLEMS)] = None,
    clients: Annotated[int | None, _option("clients", "Number of clients, even for the paper's problems.")] = None,
    l2: Annotated[float | None, _option("l2", "Penalty.")] = None,
    method: Annotated[
        str | None,
        _option("method", f"{METHOD_NAMES}; NAME:FIELD=VALUE,... for more."),
    ] = None,
    step_size: Annotated[float | None, _option("step_size", "γ.")] = None,
    local_steps: Annotated[int | None, _option("local_steps", "H, steps between communications.")] = None,
    rounds: Annotated[int | None, _option("rounds", "T, communications.")] = None,
    batch_size: Annotated[str | None, _option("batch_size", "Records per step, or 'full'.")] = None,
    sampling: Annotated[str | None, _option("sampling", "with_replacement or without_replacement.")] = None,
    repetitions: Annotated[int | None, _option("repetitions", "Independent runs, side by side.")] = None,
    seed: Annotated[int | None, _option("seed", "Seed of data and noise.")] = None,
    engine: Annotated[str | None, _option("engine", "auto, numba, jax, ray or reference.")] = None,
    threads: Annotated[int | None, _option("threads", "Threads, or Ray's shards; all cores by default.")] = None,
    dtype: Annotated[str | None, _option("dtype", "float64 or float32.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="File to resume from after an interruption.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to save: .npz (all), .csv or .parquet (curves).")] = None,
) -> None:
    """Run one method on a synthetic problem and print where it gets.

    Without options: Scaffold in the paper's setting, on regression with 100 clients.
    """
    given = {name: value for name, value in locals().items() if name not in ("config", "checkpoint", "out")}
    advice = RESUMABLE if checkpoint else "with --checkpoint FILE the same command could resume"
    with refusals(interrupted=advice):
        settings = _merge_options(config, {name: value for name, value in given.items() if value is not None})
        if out is not None:
            if out.suffix not in SUFFIXES:
                raise InvalidInput(f"--out must end in {', '.join(SUFFIXES)}, got {out}")
            check_writable(out)
        trace, seconds = run_with(settings, checkpoint)
        if out is not None:
            _save(trace, out)
    _print(settings, trace, seconds)


def _merge_options(config: Path | None, given: dict[str, Any]) -> RunOptions:
    """Options from the command line, else from the file, else the defaults."""
    from_file: dict[str, Any] = {}
    if config is not None:
        try:
            from_file = tomllib.loads(config.read_text())
        except OSError as error:
            raise InvalidInput(f"cannot read {config}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{config} is not a TOML file: {error}") from None
    allowed = {field.name for field in fields(RunOptions)}
    merged = {name.replace("-", "_"): value for name, value in from_file.items()} | given
    unknown = sorted(merged.keys() - allowed)
    if unknown:
        raise InvalidInput(
            f"{config} has unknown settings {', '.join(unknown)}; known are {', '.join(sorted(allowed))}"
        )
    return replace(DEFAULTS, **merged)


def run_with(settings: RunOptions, checkpoint: Path | None) -> tuple[Trace, float]:
    """Run what the options say; the trace, and the seconds that the run took."""
    if not isinstance(settings.method, str):
        raise InvalidInput(f"method must be a name, got {settings.method!r}")
    method = candidates_of(
        settings.method, step_sizes=[settings.step_size], local_steps=[settings.local_steps]
    )[0]  # fmt: skip
    engine = choose_engine(settings.engine)
    if isinstance(engine, Numba):
        engine = Numba(threads=settings.threads, dtype=settings.dtype)  # type: ignore[arg-type]
    elif isinstance(engine, Ray):
        within = Numba(threads=1, dtype=settings.dtype)  # type: ignore[arg-type]
        engine = Ray(shards=settings.threads, shard_engine=within)
    elif isinstance(engine, Jax):
        engine = Jax(dtype=settings.dtype)  # type: ignore[arg-type]
    whole_number("rounds", settings.rounds, least=1)
    whole_number("repetitions", settings.repetitions, least=1)
    batch_size = batch_size_of(settings.batch_size)
    Batches(batch_size, settings.sampling)  # type: ignore[arg-type]
    problem = _problem(settings)
    begin = time.perf_counter()
    trace = run(
        problem,
        method,
        rounds=settings.rounds,
        batch_size=batch_size,
        sampling=settings.sampling,  # type: ignore[arg-type]
        seed=settings.seed,
        repetitions=settings.repetitions,
        engine=engine,
        checkpoint=checkpoint,
    )
    return trace, time.perf_counter() - begin


def _problem(settings: RunOptions) -> Any:
    """The problem that the options name."""
    given: Any = settings.problem
    if isinstance(given, str) and given in STREAMS:
        return STREAMS[given](n_clients=settings.clients, dim=DIM, l2=settings.l2, seed=settings.seed)
    if not isinstance(given, str) or given not in PAPER:
        raise InvalidInput(f"--problem must be one of {', '.join((*PAPER, *STREAMS))}, got {given!r}")
    kind: Any = given
    return paper(kind, n_clients=settings.clients, l2=settings.l2, seed=settings.seed)


def _save(trace: Trace, out: Path) -> None:
    if out.suffix == ".npz":
        trace.save(out)
    else:
        write_frame(out, trace.to_frame())


def _print(settings: RunOptions, trace: Trace, seconds: float) -> None:
    console = Console()
    problem = trace.provenance["problem"]
    table = Table(title=f"{settings.method} on {problem['kind']}, {settings.clients:,} clients", show_header=False)
    plateau = trace.plateau()
    reached = "not reached yet" if plateau is None else f"{plateau.mean:.4g} ± {plateau.standard_error:.2g}"
    since = "" if plateau is None else f", from round {plateau.from_round} on"
    for name, value in (
        ("squared error at the start", f"{trace.mse[:, 0].mean():.4g}"),
        ("after the last round", f"{trace.mse[:, -1].mean():.4g}"),
        ("plateau", reached + since),
        ("gradients per client", f"{trace.gradients_per_client[:, -1].mean():,.0f}"),
        ("vectors sent and received per client", f"{trace.vectors_per_client[-1]:,.0f}"),
        ("seconds", f"{seconds:.2f}"),
    ):
        table.add_row(name, value)
    console.print(table)

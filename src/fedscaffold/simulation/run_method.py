"""Many rounds: problem × method × engine → trace."""

import os
from collections.abc import Iterable

from numpy.typing import ArrayLike

from fedscaffold.core.display.progress import Progress, progress_bar
from fedscaffold.core.privacy import Privacy
from fedscaffold.core.protocols import Availability, Engine, Method, Observer, Problem
from fedscaffold.core.random.batches import Sampling
from fedscaffold.simulation.observers import Recorder, resolve_observers
from fedscaffold.simulation.setup import make_trace, validate_run
from fedscaffold.simulation.trace import Trace


def run(
    problem: Problem,
    method: Method,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int = 0,
    repetitions: int = 1,
    engine: str | Engine = "auto",
    theta0: ArrayLike | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = None,
    sampling: Sampling = "with_replacement",
    record: Iterable[str | Observer] = ("mse",),
    control_variates0: ArrayLike | None = None,
    checkpoint_every: int | None = None,
    client_state_dir: str | os.PathLike[str] | None = None,
    availability: Availability | None = None,
    privacy: Privacy | None = None,
) -> Trace:
    """Run a method on a problem and return the trace: final models, recorded metrics, costs and provenance.

    Parameters
    ----------
    problem
        What to minimise, for example `fedscaffold.problems.Ridge(X, y)`.
    method
        What clients and server do, for example `fedscaffold.Scaffold(step_size=0.05, local_steps=100)`.
    rounds
        T, the number of rounds.
    batch_size
        Number of records in each stochastic gradient; None for full gradients.
    seed
        Chooses the records that are drawn. The same seed gives the same bits, on any number of threads.
    repetitions
        Number of independent runs, side by side.
    engine
        "auto" (Numba where it has a kernel for the loss, else JAX, else the reference engine), "numba", "jax",
        "reference", "ray", or an engine such as `engines.Numba(threads=1)`. The trace's provenance names it.
    theta0
        Initial model, (dim,) or (repetitions, dim); zero by default.
    checkpoint
        Checkpoint path, written every `checkpoint_every` rounds; the same call resumes from it.
    progress
        None for a progress bar on terminals, False for none, True for one always, or a function (done, rounds).
    sampling
        "with_replacement" or "without_replacement", within a batch.
    record
        Observers: "mse" (‖θ − θ*‖², which needs θ*), "loss", "average", or objects from `fedscaffold.simulation`.
    control_variates0
        Initial control variates of Scaffold, (n_clients, dim), with Σ w_c ξ_c = 0; zero by default.
    checkpoint_every
        Rounds between two checkpoints; a twentieth of the run by default.
    client_state_dir
        Folder for the client state, for runs in which the control variates of all clients do not fit in memory and
        a cohort of them takes part in a round: only the cohort's rows are then read and written. What an earlier
        run left there is overwritten.
    availability
        Which clients are available in which rounds, such as `fedscaffold.simulation.Periodic(4)`: of these all
        take part, or as many as the method takes, drawn at random. By default all are available.
    privacy
        Clipping and noise: `privacy.RecordLevel(...)` in every local step or `privacy.ClientLevel(...)` in what
        clients send; none by default. The noise of a run follows from its seed: it shows what privacy costs, and
        protects nobody, except with `engines.Reference(secret_noise=True)`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=10)
    >>> trace = fs.run(problem, fs.Scaffold(step_size=0.05, local_steps=10), rounds=20, batch_size=10)
    >>> bool(trace.mse[0, -1] < trace.mse[0, 0])
    True
    """
    setup = validate_run(
        problem, method, rounds=rounds, batch_size=batch_size, seed=seed, repetitions=repetitions, engine=engine,
        theta0=theta0, sampling=sampling, availability=availability, privacy=privacy,
    )  # fmt: skip
    observers = resolve_observers(record)
    if control_variates0 is not None:
        method.init_clients(len(setup.theta), problem.weights, problem.dim, control_variates0)
    file = setup.checkpoint_file(
        checkpoint, checkpoint_every, control_variates=control_variates0, observers=observers
    )
    saved = file.load(method, setup.theta, setup.rounds, n_clients=problem.n_clients)
    recorder = Recorder(observers, problem, saved)
    with progress_bar(type(method).__name__, progress) as advance:
        state = setup.run_to_end(
            None if saved is None else saved.state, record=recorder.record, file=file,
            arrays=lambda: (recorder.metrics(), {}), progress=lambda done: advance(done, setup.rounds),
            control_variates=control_variates0, folder=client_state_dir,
        )  # fmt: skip
    return make_trace(setup, state, recorder.metrics())

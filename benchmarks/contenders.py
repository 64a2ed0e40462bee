"""Ways to run every client's local steps of one round. Each takes a workload and returns a function to time."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.engines import Numba
from fedscaffold.problems import Logistic, Ridge

RECORDS, BATCH, LOCAL_STEPS, L2 = 200, 10, 100, 0.01
SEED = 1
Round = Callable[[], Array]  # the clients' models after the round


@dataclass(frozen=True)
class Workload:
    """One round of local steps from θ = 0 and ξ = 0."""

    problem: Ridge | Logistic
    step_size: float

    @property
    def clients(self) -> int:
        return int(self.problem.n_clients)

    @property
    def dim(self) -> int:
        return int(self.problem.dim)

    def first_clients(self, n: int) -> "Workload":
        kind = type(self.problem)
        rows = n * RECORDS
        x = self.problem.x[:rows].reshape(n, RECORDS, self.dim)
        return Workload(kind(x, self.problem.y[:rows].reshape(n, RECORDS), l2=L2), self.step_size)

    def tables(self) -> tuple[Array, Array]:
        shape = (self.clients, RECORDS)
        return self.problem.x.reshape(*shape, self.dim), self.problem.y.reshape(shape)


def slope(kind: str, z: Array, y: Array) -> Array:
    """The loss's derivative at margins z."""
    return z - y if kind == "ridge" else -y / (1.0 + np.exp(y * z))


CORES = os.sched_getaffinity(0)


def use_cores(n: int) -> None:
    """Keep this thread, and those that it starts from now on, to so many cores."""
    os.sched_setaffinity(0, sorted(CORES)[:n])


@contextmanager
def ours(work: Workload, threads: int) -> Iterator[Round]:
    """fedscaffold's default engine."""
    theta, xi = np.zeros((1, work.dim)), np.zeros((1, work.clients, work.dim))
    engine = Numba(threads=threads, specialise=True)
    with engine.open(work.problem, Batches(BATCH), seed=SEED) as local_sgd:

        def one_round() -> Array:
            use_cores(threads)
            local = local_sgd(theta, xi, step_size=work.step_size, local_steps=LOCAL_STEPS, round=0)
            use_cores(1)
            return local[0]

        yield one_round


@contextmanager
def c_limit(work: Workload) -> Iterator[Round]:
    """limit.c, compiled for this number of features and this machine; the same random stream as ours."""
    pointer = ctypes.c_void_p
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "limit.so"
        flags = [
            "-O3",
            "-march=native",
            "-ffast-math",
            "-shared",
            "-fPIC",
            f"-DDIM={work.dim}",
            f"-DBATCH={BATCH}",
        ]
        source = Path(__file__).with_name("limit.c")
        subprocess.run(["cc", *flags, str(source), "-o", str(library)], check=True)
        function = getattr(ctypes.CDLL(str(library)), f"local_sgd_{work.problem.kind}")
        function.restype = None
        integer, real = ctypes.c_int64, ctypes.c_double
        function.argtypes = [pointer, pointer, integer, integer, pointer, pointer, pointer]
        function.argtypes += [real, integer, real, ctypes.c_uint64, ctypes.c_uint32]
        theta, xi = np.zeros(work.dim), np.zeros((work.clients, work.dim))
        out = np.empty_like(xi)
        x, y = work.problem.x, work.problem.y

        def one_round() -> Array:
            function(
                x.ctypes.data, y.ctypes.data, work.clients, RECORDS, theta.ctypes.data, xi.ctypes.data,
                out.ctypes.data, work.step_size, LOCAL_STEPS, L2, SEED, 0,
            )  # fmt: skip
            return out

        yield one_round


def c_limit_runs_here() -> bool:
    """A C compiler, and the vector instructions that limit.c is written with."""
    flags = Path("/proc/cpuinfo")
    return shutil.which("cc") is not None and flags.exists() and "avx512dq" in flags.read_text()


@contextmanager
def numpy_loop(work: Workload) -> Iterator[Round]:
    """What papers' code does: a Python loop over clients and steps."""
    x, y = work.tables()
    generator = np.random.default_rng(SEED)
    xi = np.zeros((work.clients, work.dim))

    def one_round() -> Array:
        local = np.zeros((work.clients, work.dim))
        for c in range(work.clients):
            theta = local[c]
            for _ in range(LOCAL_STEPS):
                rows = generator.integers(RECORDS, size=BATCH)
                records = x[c, rows]
                gradient = records.T @ slope(work.problem.kind, records @ theta, y[c, rows]) / BATCH + L2 * theta
                theta -= work.step_size * (gradient + xi[c])
        return local

    yield one_round


@contextmanager
def numpy_across(work: Workload, chunk: int = 100) -> Iterator[Round]:
    """One NumPy operation for a chunk of clients at a time."""
    x, y = work.tables()
    generator = np.random.default_rng(SEED)
    xi = np.zeros((work.clients, work.dim))

    def one_round() -> Array:
        local = np.zeros((work.clients, work.dim))
        for begin in range(0, work.clients, chunk):
            part = slice(begin, begin + chunk)
            theta, features, targets = local[part], x[part], y[part]
            which = np.arange(len(theta))[:, None]
            rows = generator.integers(RECORDS, size=(LOCAL_STEPS, len(theta), BATCH))
            for h in range(LOCAL_STEPS):
                records = features[which, rows[h]]
                z = (records @ theta[:, :, None])[:, :, 0]
                factors = slope(work.problem.kind, z, targets[which, rows[h]])[:, None, :]
                gradient = (factors @ records)[:, 0] / BATCH + L2 * theta
                theta -= work.step_size * (gradient + xi[part])
        return local

    yield one_round


@contextmanager
def jax_map(work: Workload, together: int = 10) -> Iterator[Round]:
    """The best of many JAX variants: vmap over a few clients at a time, indices drawn once per round."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    x, y = (jnp.asarray(table) for table in work.tables())
    xi = jnp.zeros((work.clients, work.dim))
    theta0 = jnp.zeros(work.dim)
    ridge = work.problem.kind == "ridge"

    def client(arguments: tuple[Any, Any, Any, Any]) -> Any:
        features, targets, correction, key = arguments
        rows = jax.random.randint(key, (LOCAL_STEPS, BATCH), 0, RECORDS)

        def step(theta: Any, batch: Any) -> tuple[Any, None]:
            records, y_ = features[batch], targets[batch]
            z = records @ theta
            factors = z - y_ if ridge else -y_ * jax.nn.sigmoid(-y_ * z)
            gradient = factors @ records / BATCH + L2 * theta
            return theta - work.step_size * (gradient + correction), None

        return jax.lax.scan(step, theta0, rows)[0]

    @jax.jit
    def all_clients(key: Any) -> Any:
        keys = jax.random.split(key, work.clients)
        return jax.lax.map(client, (x, y, xi, keys), batch_size=together)

    key = jax.random.key(SEED, impl="unsafe_rbg")
    yield lambda: np.asarray(all_clients(key).block_until_ready())

"""Ways to run every client's local steps of one round. Each takes a workload and returns a function to time."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.engines import Native
from fedscaffold.problems import Logistic, Multinomial, Ridge
from fedscaffold.problems.base import aligned_empty

RECORDS, BATCH, LOCAL_STEPS, L2, CLASSES = 200, 10, 100, 0.01, 10
SEED = 1
Round = Callable[[], Array]  # the clients' models after the round


@dataclass(frozen=True)
class Workload:
    """One round of local steps from θ = 0 and ξ = 0."""

    problem: Ridge | Logistic | Multinomial
    step_size: float
    batch: int | None = BATCH  # records of a step; None for all
    dtype: str = "float64"

    @property
    def clients(self) -> int:
        return int(self.problem.n_clients)

    @property
    def dim(self) -> int:
        return int(self.problem.dim)

    def first_clients(self, n: int) -> "Workload":
        rows = n * RECORDS
        x = self.problem.x[:rows].reshape(n, RECORDS, self.dim)
        kind = type(self.problem)
        assert kind is not Multinomial
        return replace(self, problem=kind(x, self.problem.y[:rows].reshape(n, RECORDS), l2=L2))

    def tables(self) -> tuple[Array, Array]:
        shape = (self.clients, RECORDS)
        return self.problem.x.reshape(*shape, self.dim), self.problem.y.reshape(shape)


def workload(
    kind: type[Ridge] | type[Logistic] | type[Multinomial],
    n_clients: int,
    dim: int,
    batch: int | None = BATCH,
    dtype: str = "float64",
) -> Workload:
    """Standard normal records, targets from a random model."""
    generator = np.random.default_rng(0)
    x = aligned_empty((n_clients, RECORDS, dim))
    generator.standard_normal(out=x)
    problem: Ridge | Logistic | Multinomial
    if kind is Multinomial:
        scores = x @ (generator.standard_normal((dim, CLASSES)) / np.sqrt(dim))
        y = (scores + generator.gumbel(size=scores.shape)).argmax(axis=2)
        problem = Multinomial(x, y, n_classes=CLASSES, l2=L2)
    else:
        y = x @ (generator.standard_normal(dim) / np.sqrt(dim)) + generator.standard_normal((n_clients, RECORDS))
        problem = Ridge(x, y, l2=L2) if kind is Ridge else Logistic(x, np.sign(y), l2=L2)
    return Workload(problem, step_size=1.0 / dim, batch=batch, dtype=dtype)


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
    dtype: Literal["float64", "float32"] = "float32" if work.dtype == "float32" else "float64"
    engine = Native(threads=threads, dtype=dtype)
    with engine.open(work.problem, Batches(work.batch), seed=SEED) as local_sgd:
        yield lambda: local_sgd(theta, xi, step_size=work.step_size, local_steps=LOCAL_STEPS, round=0)[0]


@contextmanager
def numpy_loop(work: Workload) -> Iterator[Round]:
    """What papers' code does: a Python loop over clients and steps."""
    x, y = work.tables()
    size = work.batch or RECORDS
    generator = np.random.default_rng(SEED)
    xi = np.zeros((work.clients, work.dim))

    def one_round() -> Array:
        local = np.zeros((work.clients, work.dim))
        for c in range(work.clients):
            theta = local[c]
            for _ in range(LOCAL_STEPS):
                rows = generator.integers(RECORDS, size=size)
                records = x[c, rows]
                gradient = records.T @ slope(work.problem.kind, records @ theta, y[c, rows]) / size + L2 * theta
                theta -= work.step_size * (gradient + xi[c])
        return local

    yield one_round


@contextmanager
def numpy_across(work: Workload, chunk: int = 100) -> Iterator[Round]:
    """One NumPy operation for a chunk of clients at a time."""
    x, y = work.tables()
    size = work.batch or RECORDS
    generator = np.random.default_rng(SEED)
    xi = np.zeros((work.clients, work.dim))

    def one_round() -> Array:
        local = np.zeros((work.clients, work.dim))
        for begin in range(0, work.clients, chunk):
            part = slice(begin, begin + chunk)
            theta, features, targets = local[part], x[part], y[part]
            which = np.arange(len(theta))[:, None]
            rows = generator.integers(RECORDS, size=(LOCAL_STEPS, len(theta), size))
            for h in range(LOCAL_STEPS):
                records = features[which, rows[h]]
                z = (records @ theta[:, :, None])[:, :, 0]
                factors = slope(work.problem.kind, z, targets[which, rows[h]])[:, None, :]
                gradient = (factors @ records)[:, 0] / size + L2 * theta
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
    ridge, size = work.problem.kind == "ridge", work.batch or RECORDS

    def client(arguments: tuple[Any, Any, Any, Any]) -> Any:
        features, targets, correction, key = arguments
        rows = jax.random.randint(key, (LOCAL_STEPS, size), 0, RECORDS)

        def step(theta: Any, batch: Any) -> tuple[Any, None]:
            records, y_ = features[batch], targets[batch]
            z = records @ theta
            factors = z - y_ if ridge else -y_ * jax.nn.sigmoid(-y_ * z)
            gradient = factors @ records / size + L2 * theta
            return theta - work.step_size * (gradient + correction), None

        return jax.lax.scan(step, theta0, rows)[0]

    @jax.jit
    def all_clients(key: Any) -> Any:
        keys = jax.random.split(key, work.clients)
        return jax.lax.map(client, (x, y, xi, keys), batch_size=together)

    key = jax.random.key(SEED, impl="unsafe_rbg")
    yield lambda: np.asarray(all_clients(key).block_until_ready())

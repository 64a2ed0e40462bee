"""The JAX engine against a hand-written `lax.map` over vmapped scans for the same work, taking turns.

`python -m benchmarks.jax_engine [--clients 1000] [--turns 15] [--at-once 10]`, on one core. Both compute in
float64, once with the loss's derivative written out and once with JAX differentiating the loss. The hand-written
ones draw their records with JAX's own generator.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from benchmarks import contenders, measured
from benchmarks.contenders import BATCH, L2, LOCAL_STEPS, RECORDS, SEED, Round, Workload, workload
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines import Jax
from fedscaffold.problems import Differentiable, Logistic, Ridge


def ridge_loss(params: Any, batch: Any) -> Any:
    return 0.5 * jnp.mean((batch[0] @ params - batch[1]) ** 2)


def logistic_loss(params: Any, batch: Any) -> Any:
    return jnp.mean(jax.nn.softplus(-batch[1] * (batch[0] @ params)))


@contextmanager
def engine(work: Workload, at_once: int | None, *, differentiate: bool = False) -> Iterator[Round]:
    """Ours, as a run calls it: from NumPy to NumPy."""
    theta, xi = np.zeros((1, work.dim)), np.zeros((1, work.clients, work.dim))
    problem: Any = work.problem
    if differentiate:
        loss = ridge_loss if problem.kind == "ridge" else logistic_loss
        problem = Differentiable(loss, np.zeros(work.dim), list(zip(*work.tables(), strict=True)), l2=L2)
    with Jax(clients_at_once=at_once, device="cpu").open(problem, Batches(BATCH), seed=SEED) as local_sgd:
        yield lambda: local_sgd(theta, xi, step_size=work.step_size, local_steps=LOCAL_STEPS, round=0)[0]


@contextmanager
def by_hand(work: Workload, together: int = 10) -> Iterator[Round]:
    """As `contenders.jax_map`, with the gradient left to JAX."""
    jax.config.update("jax_enable_x64", True)
    loss = ridge_loss if work.problem.kind == "ridge" else logistic_loss
    x, y = (jnp.asarray(table) for table in work.tables())

    def client(arguments: tuple[Any, Any, Any]) -> Any:
        features, targets, key = arguments

        def step(theta: Any, rows: Any) -> tuple[Any, None]:
            gradient = jax.grad(lambda point: loss(point, (features[rows], targets[rows])))(theta)
            return theta - work.step_size * (gradient + L2 * theta), None

        rows = jax.random.randint(key, (LOCAL_STEPS, BATCH), 0, RECORDS)
        return jax.lax.scan(step, jnp.zeros(work.dim), rows)[0]

    @jax.jit
    def all_clients(key: Any) -> Any:
        return jax.lax.map(client, (x, y, jax.random.split(key, work.clients)), batch_size=together)

    key = jax.random.key(SEED, impl="unsafe_rbg")
    yield lambda: np.asarray(all_clients(key).block_until_ready())


def measure(work: Workload, turns: int, at_once: int | None) -> dict[str, float]:
    """Best nanoseconds per client and step of each, after a warm-up."""
    best: dict[str, float] = {}
    with ExitStack() as stack:
        ready = {
            "engine_derivative_written_out": stack.enter_context(engine(work, at_once)),
            "engine_derivative_by_jax": stack.enter_context(engine(work, at_once, differentiate=True)),
            "hand_derivative_written_out": stack.enter_context(contenders.jax_map(work)),
            "hand_derivative_by_jax": stack.enter_context(by_hand(work)),
        }
        norms = [float(np.linalg.norm(one_round()[:20])) for one_round in ready.values()]
        if not np.allclose(norms, norms[0], rtol=0.15):
            raise RuntimeError(f"they do not compute the same thing: {norms}")
        for _ in range(turns):
            for name, one_round in ready.items():
                begin = time.perf_counter()
                one_round()
                nanoseconds = (time.perf_counter() - begin) * 1e9 / work.clients / LOCAL_STEPS
                best[name] = min(best.get(name, np.inf), nanoseconds)
    return best


def main() -> None:
    """Print the times and their ratios, and save the ratios."""
    parser = measured.parser(__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--at-once", type=int, default=None, help="clients_at_once of the engine")
    options = parser.parse_args()
    clients, turns = (20, 2) if options.quick else (options.clients, options.turns)
    ratios: dict[str, dict[str, float]] = {}
    for kind in (Ridge, Logistic):
        for dim in (20,) if options.quick else (20, 200):
            found = measure(workload(kind, clients, dim), turns, options.at_once)
            for derivative in ("derivative_written_out", "derivative_by_jax"):
                ours, by_hand_ = found[f"engine_{derivative}"], found[f"hand_{derivative}"]
                ratios.setdefault(derivative, {})[f"{kind.kind}_{dim}"] = ours / by_hand_
                times = f"engine {ours:,.0f} ns, by hand {by_hand_:,.0f} ns, ratio {ours / by_hand_:.2f}"
                Console().print(f"{kind.kind}, d = {dim}, {derivative.replace('_', ' ')}: {times}")
    note = (
        f"{clients:,} clients, {RECORDS} records, batches of {BATCH}, float64, one core; "
        "the number at the end of a name is the number of features."
    )
    measured.save("jax_engine", {"engine_over_hand_written": ratios}, options, note=note)


if __name__ == "__main__":
    contenders.use_cores(1)
    main()

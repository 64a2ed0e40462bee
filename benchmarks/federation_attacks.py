"""What one client that lies can do to a federation with the server's rules, and what one can do that does not.

`python -m benchmarks.federation_attacks [--quick]`. Clients run Scaffold on ridge regression with minibatches; the
server's side is the real one. One of the clients knows everything. It lies in one late round or in every round, in
several directions and sizes (`LIES`); or it only plays an honest client that has other rows: another sample of the
same population, or rows whose control variate is as long as the rules allow. The figures are the worst of each
kind: distance to the optimum over that of the undisturbed run, both as root mean squares over last rounds and sets
of data.
"""

import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.core.types import Array
from fedscaffold.federation import (
    ClientUpdate,
    RoundResult,
    RoundRules,
    RunConfig,
    StateBackup,
    TrainRequest,
    initial_ledger,
    run_round,
)
from fedscaffold.federation.messages import Reply
from fedscaffold.federation.server.checks import STATES_DIFFER, excess

ROWS, DIM, BATCH, L2, TAIL = 60, 5, 10, 0.1, 15
STEPS = 20
METHOD = fs.Scaffold(step_size=0.03, local_steps=STEPS)
DATA = {"alike": 0.0, "different": 1.0}  # deviation of the clients' own models
FACTOR = RoundRules().outlier_factor or 1.0
Direction = Callable[[Array, Array, Array, np.random.Generator], Array]
DIRECTIONS: dict[str, Direction] = {
    "always the same": lambda theta, optimum, mean, rng: np.ones(DIM),
    "away from the optimum": lambda theta, optimum, mean, rng: theta - optimum,
    "against the others": lambda theta, optimum, mean, rng: theta - mean,
    "at random": lambda theta, optimum, mean, rng: rng.normal(size=DIM),
}


@dataclass(frozen=True)
class Lie:
    """The first client sends θ plus `size` times the usual distance in a direction, from a round on; before it, θ
    itself.
    """

    direction: Direction
    size: float = 100.0
    start: int = 0


LIES = {
    **{name: Lie(way) for name, way in DIRECTIONS.items()},
    **{f"{name}, not shortened": Lie(way, size=0.99 * FACTOR) for name, way in DIRECTIONS.items()},
    **{f"{name}, after a first step of 0": Lie(way, start=1) for name, way in DIRECTIONS.items()},
}


class Clients:
    """Clients in one array, of which the first may lie."""

    def __init__(self, n: int, spread: float, seed: int) -> None:
        self.n, self.spread, self.rng = n, spread, np.random.default_rng(seed)
        self.x = self.rng.normal(size=(n, ROWS, DIM))
        self.common = self.rng.normal(size=DIM)
        own = self.common + spread * self.rng.normal(size=(n, DIM))
        self.y = np.einsum("cnd,cd->cn", self.x, own) + self.rng.normal(size=(n, ROWS))
        self.optimum = self.pooled()
        self.xi = np.zeros((n, DIM))

    def pooled(self) -> Array:
        """The optimum of all rows."""
        return fs.problems.Ridge(self.x, self.y, l2=L2).optimum()

    def another_sample(self) -> None:
        """The first client has other rows of the same population; `optimum` stays that of the true rows."""
        self.x[0] = self.rng.normal(size=(ROWS, DIM))
        own = self.common + self.spread * self.rng.normal(size=DIM)
        self.y[0] = self.x[0] @ own + self.rng.normal(size=ROWS)

    def extreme_rows(self, way: Array) -> None:
        """The first client has other outcomes, the most different ones with which its gradient at the optimum
        passes for that of an honest client.
        """
        true, least, most = self.y[0].copy(), 0.0, 1e3
        for _ in range(60):
            middle = (least + most) / 2
            self.y[0] = true + self.x[0] @ (middle * way)
            gradients, weights = self.gradients(self.pooled()), np.full(self.n, 1.0 / self.n)
            found = excess(gradients, weights, STATES_DIFFER * FACTOR, least=0.0)
            least, most = (least, middle) if 0 in found else (middle, most)

    def gradients(self, theta: Array) -> Array:
        """All rows' gradients, shape (n, DIM)."""
        return np.einsum("cnd,cn->cd", self.x, self.x @ theta - self.y) / ROWS + L2 * theta

    def local_steps(self, theta: Array) -> Array:
        """What honest clients send, shape (n, DIM)."""
        local = np.repeat(theta[None], self.n, axis=0)
        for _ in range(STEPS):
            rows = self.rng.integers(ROWS, size=(self.n, BATCH))
            x, y = np.take_along_axis(self.x, rows[..., None], 1), np.take_along_axis(self.y, rows, 1)
            residual = np.einsum("cbd,cd->cb", x, local) - y
            gradient = np.einsum("cbd,cb->cd", x, residual) / BATCH + L2 * local
            local -= METHOD.step_size * (gradient + self.xi)
        return local

    def lie(self, sent: Array, theta: Array, lie: Lie, round: int) -> Array:
        """The same with the first client's vector as the lie has it."""
        way = lie.direction(theta, self.optimum, sent[1:].mean(axis=0), self.rng)
        usual = np.median(np.linalg.norm(sent[1:] - theta, axis=1))
        size = lie.size if round >= lie.start else 0.0
        found = sent.copy()
        found[0] = theta + size * usual * way / np.linalg.norm(way)
        return found

    def restate(self, requests: Sequence[TrainRequest]) -> None:
        """Take over the control variates that the server tells."""
        for request in requests:
            if request.client_state is not None:
                self.xi[request.client] = request.client_state.xi[0, 0]

    def remember(self, sent: Array, theta: Array, result: RoundResult) -> None:
        """Enter what was counted into the control variates; limited ones come with the next request."""
        scale = np.array([result.shortened.get(c, 1.0) for c in range(self.n)])[:, None]
        after = result.ledger.server.theta[0]
        self.xi += (theta + scale * (sent - theta) - after) / (METHOD.step_size * STEPS)


def distances(
    clients: Clients, *, rounds: int, states: bool = True, lie: Lie | None = None,
    factor: float | None = FACTOR, late: Sequence[Lie] = (),
) -> tuple[list[float], list[float]]:  # fmt: skip
    """‖θ − θ*‖ after each round; and after one more round, for each lie in it."""
    n = clients.n
    config = RunConfig(name="attack", method=METHOD, n_clients=n, dim=DIM)
    ledger, weights = initial_ledger(config, np.zeros(DIM)), np.full(n, 1.0 / n)
    rules = RoundRules(outlier_factor=factor)

    with tempfile.TemporaryDirectory(prefix="fedscaffold-bench-") as folder:
        backup = StateBackup(Path(folder) if states else None)

        def close(lie: Lie | None) -> tuple[Array, RoundResult]:
            sent = np.zeros((n, DIM))

            def send(requests: Sequence[TrainRequest]) -> list[Reply]:
                theta = ledger.server.theta[0]
                clients.restate(requests)
                honest = clients.local_steps(theta)
                sent[:] = honest if lie is None else clients.lie(honest, theta, lie, ledger.round)
                return [
                    ClientUpdate(client=r.client, run=r.run, history=r.history, resets=0, round=r.round,
                                 phase=r.phase, vector=sent[r.client].copy())
                    for r in requests
                ]  # fmt: skip

            return sent, run_round(config, ledger, weights, send, backup=backup, rules=rules, limit=1e12)

        found = []
        for _ in range(rounds):
            theta = ledger.server.theta[0]
            sent, result = close(lie)
            clients.remember(sent, theta, result)
            ledger = result.ledger
            found.append(float(np.linalg.norm(ledger.server.theta[0] - clients.optimum)))
        after = [close(each)[1].ledger.server.theta[0] for each in late]
    return found, [float(np.linalg.norm(each - clients.optimum)) for each in after]


def root_mean_square(values: Sequence[float] | Sequence[Sequence[float]]) -> float:
    """√ of the mean of squares."""
    return float(np.sqrt(np.mean(np.square(values))))


def measure(n: int, spread: float, *, rounds: int, seeds: int) -> dict[str, float]:
    """Ratios of distances."""
    late = [Lie(way) for way in DIRECTIONS.values()]

    def tail(*, prepare: Callable[[Clients], None] = lambda clients: None, states: bool = True,
             lie: Lie | None = None, factor: float | None = FACTOR) -> float:  # fmt: skip
        found = []
        for seed in range(seeds):
            clients = Clients(n, spread, seed)
            prepare(clients)
            found.append(distances(clients, rounds=rounds, states=states, lie=lie, factor=factor)[0][-TAIL:])
        return root_mean_square(found)

    ways = [sign * way for way in np.eye(DIM) for sign in (1.0, -1.0)]
    quiet = tail()
    once = [distances(Clients(n, spread, seed), rounds=rounds, late=late)[1] for seed in range(seeds)]
    sustained = {name: tail(lie=lie) / quiet for name, lie in LIES.items()}
    Console().print(n, spread, {name: round(value, 2) for name, value in sustained.items()})
    return {
        "quiet": quiet,
        "one_round": max(root_mean_square([each[k] for each in once]) for k in range(len(late))) / quiet,
        "every_round": max(sustained.values()),
        "without_states": max(tail(lie=lie, states=False) for lie in LIES.values()) / quiet,
        "another_sample": tail(prepare=Clients.another_sample, factor=None) / quiet,
        "extreme_rows": max(tail(prepare=partial(Clients.extreme_rows, way=way), factor=None) for way in ways)
        / quiet,
    }


def main() -> None:
    """Print and save the ratios."""
    options = measured.parser(__doc__).parse_args()
    logging.getLogger("fedscaffold").setLevel(logging.ERROR)
    found = {
        f"{name}_{n}": measure(n, spread, rounds=20 if options.quick else 80, seeds=1 if options.quick else 4)
        for name, spread in DATA.items()
        for n in (10, 5)
    }
    Console().print(found)
    measured.save("federation_attacks", found, options, note="The same numbers on every machine, to rounding.")


if __name__ == "__main__":
    main()

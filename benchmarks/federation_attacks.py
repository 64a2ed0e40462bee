"""What one client of ten that lies can do to a federation with the server's default rules.

`python -m benchmarks.federation_attacks [--quick]`. Ten clients run Scaffold on ridge regression with minibatches;
the server's side is the real one. One client knows everything and sends, in one of four directions, the longest
vector that the rules let pass: in one late round, or in every round. The figures are the worst of the directions:
distance to the optimum over that of the undisturbed run, both as root mean squares over last rounds and sets of
data.
"""

import tempfile
from collections.abc import Callable, Sequence
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

N, ROWS, DIM, BATCH, L2, TAIL = 10, 60, 5, 10, 0.1, 15
STEPS = 20
METHOD = fs.Scaffold(step_size=0.03, local_steps=STEPS)
DATA = {"alike": 0.0, "different": 1.0}  # deviation of the clients' own models
Direction = Callable[[Array, Array, Array, np.random.Generator], Array]
DIRECTIONS: dict[str, Direction] = {
    "always the same": lambda theta, optimum, mean, rng: np.ones(DIM),
    "away from the optimum": lambda theta, optimum, mean, rng: theta - optimum,
    "against the others": lambda theta, optimum, mean, rng: theta - mean,
    "at random": lambda theta, optimum, mean, rng: rng.normal(size=DIM),
}


class Clients:
    """Ten clients in one array, of which the first may lie."""

    def __init__(self, spread: float, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.x = self.rng.normal(size=(N, ROWS, DIM))
        own = self.rng.normal(size=DIM) + spread * self.rng.normal(size=(N, DIM))
        self.y = np.einsum("cnd,cd->cn", self.x, own) + self.rng.normal(size=(N, ROWS))
        self.optimum = fs.problems.Ridge(self.x, self.y, l2=L2).optimum()
        self.xi = np.zeros((N, DIM))

    def local_steps(self, theta: Array) -> Array:
        """What honest clients send, shape (N, DIM)."""
        local = np.repeat(theta[None], N, axis=0)
        for _ in range(STEPS):
            rows = self.rng.integers(ROWS, size=(N, BATCH))
            x, y = np.take_along_axis(self.x, rows[..., None], 1), np.take_along_axis(self.y, rows, 1)
            residual = np.einsum("cbd,cd->cb", x, local) - y
            gradient = np.einsum("cbd,cb->cd", x, residual) / BATCH + L2 * local
            local -= METHOD.step_size * (gradient + self.xi)
        return local

    def lie(self, sent: Array, theta: Array, direction: Direction) -> Array:
        """The same with the first client's vector far out, but not so far that it would be refused."""
        way = direction(theta, self.optimum, sent[1:].mean(axis=0), self.rng)
        usual = np.median(np.linalg.norm(sent[1:] - theta, axis=1))
        found = sent.copy()
        found[0] = theta + 100.0 * usual * way / np.linalg.norm(way)
        return found

    def remember(self, sent: Array, theta: Array, result: RoundResult) -> None:
        """Enter what was counted into the control variates."""
        scale = np.array([result.shortened.get(c, 1.0) for c in range(N)])[:, None]
        after = result.ledger.server.theta[0]
        self.xi += (theta + scale * (sent - theta) - after) / (METHOD.step_size * STEPS)


def distances(
    folder: Path, spread: float, seed: int, *, rounds: int, states: bool, direction: Direction | None
) -> tuple[list[float], list[float]]:
    """‖θ − θ*‖ after each round; and after one more round in which the client lies, for each direction."""
    config = RunConfig(name="attack", method=METHOD, n_clients=N, dim=DIM)
    ledger, clients, weights = initial_ledger(config, np.zeros(DIM)), Clients(spread, seed), np.full(N, 1.0 / N)
    backup = StateBackup(folder / f"{seed}-{spread}-{states}-{ledger.run}" if states else None)

    def close(sent: Array) -> RoundResult:
        def send(requests: Sequence[TrainRequest]) -> list[Reply]:
            return [
                ClientUpdate(client=r.client, run=r.run, history=r.history, resets=0, round=r.round, phase=r.phase,
                             vector=sent[r.client])
                for r in requests
            ]  # fmt: skip

        return run_round(config, ledger, weights, send, backup=backup, rules=RoundRules(), limit=1e12)

    found = []
    for _ in range(rounds):
        theta = ledger.server.theta[0]
        sent = clients.local_steps(theta)
        if direction is not None:
            sent = clients.lie(sent, theta, direction)
        result = close(sent)
        clients.remember(sent, theta, result)
        ledger = result.ledger
        found.append(float(np.linalg.norm(ledger.server.theta[0] - clients.optimum)))
    theta = ledger.server.theta[0]
    sent = clients.local_steps(theta)
    after = [close(clients.lie(sent, theta, way)).ledger.server.theta[0] for way in DIRECTIONS.values()]
    return found, [float(np.linalg.norm(each - clients.optimum)) for each in after]


def measure(folder: Path, *, rounds: int, seeds: int) -> dict[str, dict[str, float]]:
    """Ratios of distances, by kind of data."""

    def root_mean_square(values: list[float] | list[list[float]]) -> float:
        return float(np.sqrt(np.mean(np.square(values))))

    found = {}
    for name, spread in DATA.items():
        runs = [
            distances(folder, spread, seed, rounds=rounds, states=True, direction=None) for seed in range(seeds)
        ]
        quiet = root_mean_square([errors[-TAIL:] for errors, _ in runs])
        once = [root_mean_square([after[k] for _, after in runs]) for k in range(len(DIRECTIONS))]

        def worst(*, states: bool, spread: float = spread) -> float:
            return max(
                root_mean_square(
                    [
                        distances(folder, spread, seed, rounds=rounds, states=states, direction=way)[0][-TAIL:]
                        for seed in range(seeds)
                    ]
                )
                for way in DIRECTIONS.values()
            )

        found[name] = {
            "one_round": max(once) / quiet,
            "every_round": worst(states=True) / quiet,
            "without_states": worst(states=False) / quiet,
        }
    return found


def main() -> None:
    """Print and save the ratios."""
    options = measured.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="fedscaffold-bench-") as name:
        found = measure(Path(name), rounds=20 if options.quick else 40, seeds=1 if options.quick else 4)
    Console().print(found)
    measured.save("federation_attacks", found, options, note="The same numbers on every machine, to rounding.")


if __name__ == "__main__":
    main()

"""What a secure sum costs: processor time and bytes, at a client and at the server, when some clients fall silent.

`python -m benchmarks.secure_sum [--quick]`. All clients and the server are in one process: a client's time is the
mean over the clients, and threads of a mask's computation are counted in.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import measured
from fedscaffold.federation.secure_sum import FixedPoint, SumSettings, conduct_sum
from fedscaffold.federation.secure_sum.in_process import new_clients, take_step


def size_of(message: Any) -> int:
    """Bytes of a message, names and framing left out."""
    if isinstance(message, np.ndarray):
        return int(message.nbytes)
    if isinstance(message, bytes):
        return len(message)
    if isinstance(message, Mapping):
        return sum(size_of(part) for part in message.values())
    return sum(size_of(part) for part in vars(message).values())


def measure(length: int, n_clients: int, silent: int) -> dict[str, float]:
    """Seconds of processor time and bytes sent over those of the plain vector; `silent` clients send no vector."""
    names = tuple(f"client {k:03d}" for k in range(n_clients))
    settings = SumSettings(sum_id="1", clients=names, length=length, threshold=-(-2 * n_clients // 3))
    numbers = FixedPoint(limit=100.0, n_clients=n_clients)
    rng = np.random.default_rng(0)
    words = {name: numbers.encode(rng.normal(size=length)) for name in names}
    clients, spent, sent = new_clients(settings), dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    at_clients = 0.0

    def exchange(step: str, messages: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal at_clients
        replies = {}
        for name, message in messages.items():
            if step == "mask" and name in names[:silent]:
                continue
            began = time.process_time()
            replies[name] = take_step(clients[name], step, message, words[name])
            spent[name] += time.process_time() - began
            sent[name] += size_of(replies[name])
        at_clients = sum(spent.values())
        return replies

    began = time.process_time()
    total, present = conduct_sum(settings, exchange)
    server = time.process_time() - began - at_clients
    assert len(present) == n_clients - silent
    np.testing.assert_array_equal(total, np.sum([words[name] for name in present], axis=0, dtype=np.uint64))
    here = [name for name in names if name in present]
    return {
        "length": length,
        "clients": n_clients,
        "silent": silent,
        "client_seconds": float(np.mean([spent[name] for name in here])),
        "server_seconds": server,
        "bytes_over_plain": float(np.mean([sent[name] for name in here])) / (8 * length),
    }


def main() -> None:
    """Measure, print and keep the figures."""
    options = measured.parser(__doc__).parse_args()
    cases = [(1000, 5, 1)] if options.quick else [(1000, 5, 1), (1000, 100, 10), (1_000_000, 100, 10)]
    found = {f"d{length}_n{n}": measure(length, n, silent) for length, n, silent in cases}
    table = Table("numbers", "clients", "silent", "client, s", "server, s", "bytes / plain")
    for row in found.values():
        table.add_row(
            f"{row['length']:,.0f}", f"{row['clients']:.0f}", f"{row['silent']:.0f}",
            f"{row['client_seconds']:.3f}", f"{row['server_seconds']:.3f}", f"{row['bytes_over_plain']:.3f}",
        )  # fmt: skip
    Console().print(table)
    measured.save("secure_sum", found, options)


if __name__ == "__main__":
    main()

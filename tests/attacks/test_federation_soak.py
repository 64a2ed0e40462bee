"""Real processes with TLS and keys, killed at random: the run ends with the simulation's numbers all the same."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedscaffold.federation import run_status
from tests.flower.test_loopback import Federation

ROUNDS, NODES, KILLS = 14, 3, 6


@pytest.mark.slow
def test_servers_and_nodes_that_are_killed_at_random(tmp_path: Path) -> None:
    """Every round waits for all clients, so that nothing but lost or doubled work could change a number."""
    federation, rng = Federation(tmp_path, NODES), np.random.default_rng(0)
    with federation.loopback as loopback:
        options = {"pause": 0.3, "min-clients": NODES}
        process = federation.start("soak", ROUNDS, **options)
        killed: list[str] = []
        end = time.monotonic() + 1500.0
        while federation.rounds_of("soak") < ROUNDS:
            assert time.monotonic() < end, killed
            time.sleep(float(rng.uniform(3.0, 9.0)))
            begun = federation.rounds_of("soak") >= 0
            victim = ["server", *(f"node-{k}" for k in range(NODES))][rng.integers(NODES + 1)]
            if begun and len(killed) < KILLS and victim == "server":
                with suppress(ProcessLookupError):
                    os.kill(int((federation.server("soak") / "pid").read_text()), signal.SIGKILL)
                federation.leave(process)
                killed.append(victim)
                process = federation.start("soak", ROUNDS, **options)
            elif begun and len(killed) < KILLS and loopback.is_running(victim):
                loopback.kill(victim)
                killed.append(victim)
            for k in range(NODES):  # as a service manager would
                if not loopback.is_running(f"node-{k}"):
                    loopback.start_node(k)
        federation.finish(process)
    print(f"killed: {killed}")
    assert len(killed) == KILLS
    federation.is_simulation("soak", ROUNDS)
    assert run_status(federation.server("soak")).state == "finished"

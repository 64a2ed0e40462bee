"""A client that lies, and honest clients that look as if they did."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks.federation_attacks import DIRECTIONS, distances
from fedscaffold.federation import RoundRules
from fedscaffold.federation.server.checks import limits, weighted_median
from tests.federation.federation import Federation
from tests.samples import make

METHOD = fs.Scaffold(step_size=0.1, local_steps=5)


def test_pushes_of_one_client_of_ten_do_not_add_up(tmp_path: Path) -> None:
    """Without a limit on control variates the same pushes carry θ ever further away."""
    way = DIRECTIONS["away from the optimum"]
    limited = {
        rounds: distances(tmp_path / "a", 0.0, 1, rounds=rounds, states=True, direction=way)[0][-1]
        for rounds in (15, 30)
    }
    free = {
        rounds: distances(tmp_path / "b", 0.0, 1, rounds=rounds, states=False, direction=way)[0][-1]
        for rounds in (15, 30)
    }
    quiet, once = distances(tmp_path / "c", 0.0, 1, rounds=30, states=True, direction=None)
    usual = float(np.sqrt(np.mean(np.square(quiet[-15:]))))
    assert max(once) < 3.0 * usual  # in one round; the mean over data and directions is on the page on security
    assert limited[30] < 1.2 * limited[15]
    assert free[30] > 1.5 * free[15]
    assert free[30] > 3.0 * limited[30]


@pytest.mark.parametrize("owner", [0, 1, 2])
def test_a_start_at_one_clients_own_optimum_gets_nobody_refused(tmp_path: Path, owner: int) -> None:
    """That client does not move; what it does is not what is usual."""
    problem = make("ridge", (26, 19, 24), 3, weights=(1.0, 3.5, 1.0))  # one has most of the weight
    federation = Federation(tmp_path, problem, METHOD, batch_size=None, rules=RoundRules())
    shutil.rmtree(tmp_path / "server")
    federation.theta0 = problem.subset([owner]).optimum()
    federation.restart_server()
    federation.run(60)
    assert all(not result.refused for result in federation.results)
    assert all(result.counted == (0, 1, 2) for result in federation.results)
    error = np.linalg.norm(federation.ledger.server.theta[0] - problem.optimum())
    assert error < 1e-2 * np.linalg.norm(federation.theta0 - problem.optimum())


def test_honest_clients_of_very_different_sizes_reach_the_pooled_optimum(tmp_path: Path) -> None:
    """Small clients differ more, which their weights allow."""
    sizes = (200, 150, 4, 6, 100, 3)
    problem = make("ridge", sizes, 3, weights=sizes)
    federation = Federation(tmp_path, problem, METHOD, batch_size=None, rules=RoundRules())
    federation.run(80)
    start = np.linalg.norm(problem.optimum())
    assert np.linalg.norm(federation.ledger.server.theta[0] - problem.optimum()) < 1e-3 * start


def test_limits_respect_weights() -> None:
    lengths: Any = np.array([1.0, 1.0, 1.0, 8.0])
    assert limits(lengths, np.full(4, 0.25), 2.0, least=1.0)[3] == 2.0
    few_rows = np.array([0.33, 0.33, 0.33, 0.01])
    assert limits(lengths, few_rows, 2.0, least=1.0)[3] > 8.0
    many_rows = np.array([0.05, 0.05, 0.05, 0.85])
    assert weighted_median(lengths, many_rows) == 8.0

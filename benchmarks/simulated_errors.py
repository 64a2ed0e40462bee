"""E‖θ_t − θ*‖² of random logistic problems by simulation, kept in a file so that predictors can be compared on it.

A run from θ* for the plateau, its beginning left out; many short runs from θ = 0 for the curve. Both are as long
as a standard error of about half a percent needs, up to a largest number of local steps. How much of the beginning
is left out follows from the radius of a round without noise: with long rounds Scaffold's control variates settle
far more slowly than the model.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedscaffold as fs
from benchmarks.random_problems import Case
from fedscaffold.methods import Scaffold

ROUNDS = 30  # of the curve
WORK = 3e7  # local steps of clients in a simulation
MOST_WORK = 4e8  # and where fewer would not get to the plateau
FEWEST = 20  # repetitions
SAMPLES = 20_000  # independent models, about, for a standard error of half a percent to one percent
MOST_ROUNDS = 20_000


@dataclass(frozen=True)
class Simulated:
    """Means over repetitions and their standard errors."""

    plateau: float
    plateau_error: float
    curve: list[float]
    curve_errors: list[float]
    settled: bool  # whether the run for the plateau was long enough to get there


def simulate(case: Case) -> Simulated:
    """Plateau and curve of a case."""
    problem, method = case.problem, case.method
    H, N, optimum = int(np.max(method.local_steps)), problem.n_clients, problem.optimum()
    mixing = rounds_to_settle(case, optimum)
    most = min(MOST_ROUNDS // 2, int(MOST_WORK / (2 * FEWEST * N * H)))
    first = int(min(most, 20 + 6 * mixing))
    rounds = 2 * first
    needed = SAMPLES * mixing / (rounds - first)
    affordable = WORK / (rounds * N * H)
    settled = run(case, rounds, int(np.clip(min(needed, affordable), FEWEST, 4000)), 1, optimum)
    level = settled[:, first:].mean(axis=1)
    way = run(case, ROUNDS, int(np.clip(WORK / (ROUNDS * N * H), 200, SAMPLES)), 2, None)
    plateau, curve = mean_and_error(level), mean_and_error(way)
    return Simulated(
        plateau=plateau[0],
        plateau_error=plateau[1],
        curve=curve[0].tolist(),
        curve_errors=curve[1].tolist(),
        settled=first >= 5 * mixing,
    )


def rounds_to_settle(case: Case, optimum: Any) -> float:
    """1/(1 − ρ), ρ the spectral radius of a round without noise near θ*, in θ and in the control variates.

    With η_c = θ + γHξ_c a round of Scaffold is η_c⁺ = C̃_c η_c + (Γ_c^H − C̃_c) Σ_i w_i η_i, where
    Γ_c = I − γ∇²f_c and C̃_c = I − mean_{h<H} Γ_c^h.
    """
    problem, w = case.problem, case.problem.weights
    gamma, H = case.method.step_size, int(np.max(case.method.local_steps))
    lam, U = np.linalg.eigh(problem.client_hessians(optimum))
    N, d = lam.shape
    power, back = (1.0 - gamma * lam) ** H, np.swapaxes(U, 1, 2)
    kept = 1.0 - (1.0 - power) / (gamma * H * lam)
    if not isinstance(case.method, Scaffold):
        matrix = np.tensordot(w, (U * power[:, None]) @ back, axes=1)
    else:
        shared = (U * (power - kept)[:, None]) @ back
        every = shared[:, :, None, :] * w[:, None]
        every[np.arange(N), :, np.arange(N)] += (U * kept[:, None]) @ back
        matrix = every.reshape(N * d, N * d)
    return 1.0 / max(1.0 - float(np.abs(np.linalg.eigvals(matrix)).max()), 1e-9)


def run(case: Case, rounds: int, repetitions: int, seed: int, theta0: Any) -> Any:
    """‖θ_t − θ*‖², (repetitions, rounds + 1); from θ* with the control variates that belong to it, or from 0."""
    start = -case.problem.client_gradients(theta0) if theta0 is not None else None
    return fs.run(
        case.problem,
        case.method,
        rounds=rounds,
        repetitions=repetitions,
        theta0=theta0,
        control_variates0=start if isinstance(case.method, Scaffold) else None,
        batch_size=case.batches.size,
        sampling=case.batches.sampling,
        seed=seed,
        progress=False,
    ).mse


def mean_and_error(values: Any) -> tuple[Any, Any]:
    """The mean over repetitions and its standard error."""
    return values.mean(axis=0), values.std(axis=0) / np.sqrt(len(values))


def simulated(case: Case, folder: Path | None) -> Simulated:
    """The simulation of a case, from the folder if it is there, else run and kept there."""
    path = None if folder is None else folder / f"logistic-{case.seed}.json"
    if path is not None and path.exists():
        return Simulated(**json.loads(path.read_text()))
    found = simulate(case)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(found)))
    return found

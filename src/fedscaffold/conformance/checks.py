"""The checks of `conformance.check`: each turns recordings of an implementation into a finding."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from fedscaffold.conformance.finding import LOCAL_STEP, Check, Finding
from fedscaffold.conformance.paths import KNOWN_PATHS
from fedscaffold.conformance.recording import Bench, Recording, Scenario, Stop, goes_on_changing, record, require
from fedscaffold.conformance.task import NotSupported, Task, fedavg_fixed_point, fedavg_map, optimum
from fedscaffold.conformance.variates import (
    are_mean_gradients,
    gradient_errors,
    own_control_variates,
    sums_to_zero,
)

FEDAVG_NEAR = 0.05  # of the distance between FedAvg's fixed point and the optimum
FEDAVG_ROUNDS = 6
PATH_ROUNDS = 30
EARLY_ROUNDS = 6  # of those in which settings change: each of them, twice


def reaches(scenario: str, settled_hint: str, bench: Bench, tolerance: float) -> Finding:
    """‖θ_T − θ*‖ in the recordings of a scenario; `settled_hint` is for a model that settles elsewhere."""
    recordings = bench.recordings(scenario)
    errors = [float(np.linalg.norm(rec.models[-1] - optimum(rec.scenario.task))) for rec in recordings]
    errors = [error if np.isfinite(error) else np.inf for error in errors]
    worst = int(np.argmax(errors))
    ok = errors[worst] <= tolerance
    hint = "" if ok else _why_not(recordings[worst], errors[worst], settled_hint)
    return Finding(errors[worst], f"distance to the optimum ≤ {tolerance:g}", ok, hint)


def _why_not(rec: Recording, error: float, settled_hint: str) -> str:
    task, last = rec.scenario.task, rec.models[-1]
    if rec.diverged:
        return (
            f"diverges: is the correction's sign right? The local step is {LOCAL_STEP}. Is the change of the "
            "control variate divided by γH and not by less?"
        )
    if np.linalg.norm(last - fedavg_fixed_point(task)) <= FEDAVG_NEAR * _bias(task):
        return "the model sits at FedAvg's fixed point: is the correction applied at all?"
    uniform = np.full(task.n_clients, 1.0 / task.n_clients)
    if not task.has_equal_weights and np.linalg.norm(last - optimum(task, uniform)) <= 0.05 * error:
        return f"the model sits at the optimum of equal weights: {settled_hint}"
    if np.linalg.norm(last - rec.models[-11]) <= 0.05 * error:
        return f"the model has settled at a wrong point: {settled_hint}"
    return (
        f"the model is still moving after {len(rec.models) - 1} rounds: are control variates written, and does "
        "each client read its own? If it is merely slow: the server's step size should be one. "
        f"Otherwise: {settled_hint}"
    )


def _bias(task: Task) -> float:
    return float(np.linalg.norm(fedavg_fixed_point(task) - optimum(task)))


def differs_from_fedavg(bench: Bench, tolerance: float) -> Finding:
    """How far from FedAvg's path in rounds 2 to 6, and from its fixed point at the end, in units of its bias."""
    closest = np.inf
    for rec in bench.recordings("everyone"):
        task = rec.scenario.task
        m, b = fedavg_map(task)
        theta, early = m @ task.theta0 + b, []
        for model in rec.models[2 : FEDAVG_ROUNDS + 1]:
            theta = m @ theta + b
            early.append(float(np.linalg.norm(model - theta)))
        at_end = float(np.linalg.norm(rec.models[-1] - fedavg_fixed_point(task)))
        found = [max(early, default=np.inf) / _bias(task), at_end / _bias(task)]
        closest = min([closest, *(value for value in found if np.isfinite(value))])
    return Finding(
        closest,
        f"distance to FedAvg over FedAvg's bias ≥ {FEDAVG_NEAR:g}",
        closest >= FEDAVG_NEAR,
        "the model goes FedAvg's way: is the correction applied at all, and are control variates kept between "
        "rounds?",
    )


def follows_a_known_path(bench: Bench, tolerance: float) -> Finding:
    """max_t ‖θ_t − θ'_t‖ over ‖θ_0 − θ*‖, θ' the nearest known form of Scaffold; needs no control variates."""
    gaps = []
    for rec in bench.recordings("everyone") + bench.completed("some"):
        models = rec.models[: PATH_ROUNDS + 1]
        size = float(np.linalg.norm(models[0] - optimum(rec.scenario.task)))
        away = {
            name: np.abs(models - path(rec.scenario, len(models) - 1)).max() for name, path in KNOWN_PATHS.items()
        }
        gaps.append({name: float(np.nan_to_num(gap / size, nan=np.inf)) for name, gap in away.items()})
    worst = {name: max(gap[name] for gap in gaps) for name in KNOWN_PATHS}
    nearest = min(worst, key=lambda name: worst[name])
    return Finding(
        worst[nearest],
        f"distance to the path of one variate, option I or option II ≤ {tolerance:g} in {PATH_ROUNDS} rounds",
        worst[nearest] <= tolerance,
        f"the path is none of Scaffold's, the nearest is that of {nearest!r}: control variates are scaled, "
        "started, averaged or kept in another way",
    )


def changing_settings(bench: Bench, tolerance: float) -> Finding:
    """The larger of ‖θ_T − θ*‖ and the error of control variates when step size and local steps change."""
    require(bench, "reconfigure")
    end = reaches(
        "changing",
        "are γ and H those of the round, in the local steps and in the control variates?",
        bench,
        tolerance,
    )
    errors = [
        error
        for rec in bench.recordings("changing")
        if not isinstance(rec.read_corrections, NotSupported)
        for error, _ in gradient_errors(rec, rec.corrections(), rounds=EARLY_ROUNDS)
    ]
    worst = max([end.measured, *errors])
    return Finding(
        worst,
        f"distance to the optimum, and of control variates to the last round's gradients, ≤ {tolerance:g}",
        worst <= tolerance,
        end.hint
        or "control variates are scaled by a γ or H that is not the round's: is one kept from an earlier round?",
    )


def lost_replies(bench: Bench, tolerance: float) -> Finding:
    """‖θ_T − θ*‖ when some replies never reached the server."""
    require(bench, "round_with_lost_replies")
    return reaches(
        "lost", "does a client whose reply was lost change its control variate all the same?", bench, tolerance
    )


def restart(
    stops_of: Callable[[Scenario], tuple[Stop, ...]],
    functions: tuple[str, str],
    hint: str,
    bench: Bench,
    tolerance: float,
) -> Finding:
    """max_t ‖θ_t − θ'_t‖ between runs without and with clients or a server that come back from what they saved."""
    require(bench, *functions)
    first = bench.scenarios["everyone"][0]
    if goes_on_changing(bench.start, first, stops_of(first)[0].client):
        hint = f"what {functions[0]}() returned changes in later rounds: it must be a copy"
        return Finding(np.inf, "what was saved stays as it was", False, hint)
    gaps = []
    for rec in bench.recordings("everyone") + bench.completed("some"):
        again = record(bench.start, replace(rec.scenario, stops=stops_of(rec.scenario)))
        rounds = min(len(again.models), len(rec.models))
        gap = np.abs(again.models[:rounds] - rec.models[:rounds]).max()
        gaps.append(float(np.nan_to_num(gap, nan=np.inf)))
    return Finding(
        max(gaps), f"distance to the path without a restart ≤ {tolerance:g}", max(gaps) <= tolerance, hint
    )


def client_stops(scenario: Scenario) -> tuple[Stop, ...]:
    """Two clients that stop early on, until the next round they are in; two or more are missed if any."""
    missed = 0 if len(scenario.cohorts[0]) == scenario.task.n_clients else 2
    stops = []
    for client in range(scenario.task.n_clients):
        present = [t for t, cohort in enumerate(scenario.cohorts, start=1) if client in cohort][1:]
        stops += [Stop(client, a, b) for a, b in pairwise(present) if b - a > missed][:1]
    return tuple(stops[:2])


def server_stops(scenario: Scenario) -> tuple[Stop, ...]:
    """The server stops after rounds 3 and 7, and comes back at once."""
    return tuple(Stop(None, done, done + 1) for done in (3, 7))


CHECKS: dict[str, Check] = {
    "reaches the optimum": partial(reaches, "everyone", "does each client's control variate start at zero?"),
    "differs from FedAvg": differs_from_fedavg,
    "follows Scaffold's path": follows_a_known_path,
    "control variates sum to zero": sums_to_zero,
    "control variates are each client's own": own_control_variates,
    "control variates are mean gradients": are_mean_gradients,
    "partial participation": partial(
        reaches,
        "some",
        "is the server variate moved by |S|/N times the cohort's mean change, do absent clients keep their "
        "control variates, and do these start at zero?",
    ),
    "unequal local steps": partial(
        reaches,
        "steps",
        "with the rule ξ_c += (θ_c − θ⁺)/(γH_c) the control variates no longer sum to zero: compare mean "
        "directions (θ − θ_c)/(γH_c) instead of models",
    ),
    "unequal weights": partial(
        reaches,
        "weights",
        "are the weights used both in the server's mean of models and in the mean of the control variates?",
    ),
    "unequal weights in cohorts": partial(
        reaches,
        "weighted cohorts",
        "does a client's weight within its cohort enter the model's mean, and its weight among all clients the "
        "server variate?",
    ),
    "settings that change between rounds": changing_settings,
    "lost replies": lost_replies,
    "restart of a client": partial(
        restart,
        client_stops,
        ("save", "restart"),
        "a client that came back did not go on as before: does save() hold all of its state, does "
        "restart() read it, and does the client ask the server for c rather than keep an old one?",
    ),
    "restart of the server": partial(
        restart,
        server_stops,
        ("save_server", "restart_server"),
        "the server did not go on as before: does save_server() hold model and server variate, and "
        "does restart_server() read both?",
    ),
}

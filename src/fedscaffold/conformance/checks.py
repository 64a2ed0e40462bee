"""The checks of `conformance.check`: each turns recordings of an implementation into a finding."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise

import numpy as np

from fedscaffold.conformance.recording import Bench, Recording, Scenario, Stop, can_restart, record
from fedscaffold.conformance.task import (
    Array,
    NotSupported,
    Task,
    fedavg_fixed_point,
    fedavg_map,
    mean_gradients,
    optimum,
)

FEDAVG_NEAR = 0.05  # of the distance between FedAvg's fixed point and the optimum
VARIATE_ROUNDS = 3
PATH_ROUNDS = 6
LOCAL_STEP = "θ ← θ − γ(g + ξ_c), with ξ_c = c − c_i where there is a server variate"


@dataclass(frozen=True)
class Finding:
    """The worst value that a check measured over its tasks, whether it is acceptable, and a likely cause."""

    measured: float
    expected: str
    ok: bool
    hint: str


Check = Callable[[Bench, float], Finding]


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
        for model in rec.models[2 : PATH_ROUNDS + 1]:
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


def sums_to_zero(bench: Bench, tolerance: float) -> Finding:
    """max_t ‖Σ_c w_c ξ_c‖ over the largest ‖ξ_c‖ or heterogeneity of gradients."""
    drifts = []
    for rec, xi in bench.with_corrections("some", "steps", "weights"):
        task = rec.scenario.task
        sums = np.linalg.norm(np.einsum("c,tcj->tj", task.weights, xi), axis=1)
        sizes = np.maximum.accumulate(np.linalg.norm(xi, axis=2).max(axis=1))
        drifts.append(float((sums / np.maximum(sizes, _heterogeneity(task))).max()))
    return Finding(
        max(drifts),
        f"|Σ w_c ξ_c| over its terms' size ≤ {tolerance:g} in all rounds",
        max(drifts) <= tolerance,
        "control variates must start at zero and stay balanced: the server variate c is the mean of all c_i, so "
        "it moves by |S|/N times the cohort's mean change; unequal weights and unequal steps enter that mean",
    )


def _heterogeneity(task: Task) -> float:
    star = optimum(task)
    return max(float(np.linalg.norm(task.gradient(c, star))) for c in range(task.n_clients))


def own_control_variates(bench: Bench, tolerance: float) -> Finding:
    """Share of pairs (a, b) whose ξ_a − ξ_b is wrong: zero after a round with both, or changed by one without."""
    wrong = pairs = 0
    for rec, xi in bench.with_corrections("some"):
        task = rec.scenario.task
        for t, cohort in enumerate(rec.scenario.cohorts[: min(VARIATE_ROUNDS, len(xi) - 1)]):
            expected = mean_gradients(task, range(task.n_clients), rec.models[t], xi[t])
            for a, b in combinations(cohort, 2):
                pairs += 1
                wrong += bool(_distance(xi[t + 1, [a, b]]) < 1e-3 * _distance(expected[[a, b]]))
            for a, b in combinations(sorted(set(range(task.n_clients)) - set(cohort)), 2):
                pairs += 1
                moved = xi[t + 1, a] - xi[t + 1, b] - xi[t, a] + xi[t, b]
                wrong += bool(np.linalg.norm(moved) > tolerance * max(_heterogeneity(task), np.abs(xi[t]).max()))
    return Finding(
        wrong / pairs,
        "share of pairs of clients whose control variates mix is 0",
        wrong == 0,
        "clients that took part have the same control variate, or absent ones changed theirs: do clients share "
        "one buffer, is it written at all, and does round() keep to its cohort?",
    )


def _distance(two: Array) -> float:
    return float(np.linalg.norm(two[0] - two[1]))


def are_mean_gradients(bench: Bench, tolerance: float) -> Finding:
    """ξ_c = mean_S p − p_c + same for all, p_c the mean gradient on c's path (option II) or at θ (option I)."""
    worst, hint = 0.0, ""
    for rec, xi in bench.with_corrections("some"):
        task = rec.scenario.task
        for t, cohort in enumerate(rec.scenario.cohorts[: min(VARIATE_ROUNDS, len(xi) - 1)]):
            found = _centred(xi[t + 1, list(cohort)])
            on_path = -_centred(mean_gradients(task, cohort, rec.models[t], xi[t]))
            at_model = -_centred(np.stack([task.gradient(c, rec.models[t]) for c in cohort]))
            error = min(float(np.linalg.norm(found - p) / np.linalg.norm(p)) for p in (on_path, at_model))
            if error > tolerance and not hint:  # the first failure says most about the cause
                hint = _factor_hint(
                    float(np.vdot(found, on_path) / np.vdot(on_path, on_path)), task.local_steps[0]
                )
            worst = max(worst, error)
    return Finding(
        worst,
        f"control variates against the last round's gradients, relative error ≤ {tolerance:g}",
        worst <= tolerance,
        hint,
    )


def _centred(rows: Array) -> Array:
    return rows - rows.mean(axis=0)


def _factor_hint(factor: float, steps: int) -> str:
    """The likely cause of control variates that are `factor` times what they should be."""
    known = {
        -1.0: "the sign is wrong: does correction() return what is added to the gradient, c − c_i?",
        steps / (steps + 1): "is the change divided by γ(H + 1) instead of γH?",
        steps / (steps - 1): "is the change divided by γ(H − 1) instead of γH?",
        float(steps): "is the change divided by γ instead of γH?",
        0.0: "is the control variate written at all, and to the client it belongs to?",
    }
    nearest = min(known, key=lambda value: abs(value - factor))
    reason = known[nearest]
    if not abs(nearest - factor) <= 0.02 * max(1.0, abs(nearest)):  # NaN too
        reason = (
            "is the change of the control variate divided by γH, with the H of the steps really taken, and is the "
            f"correction that is reported the one that is applied? The local step is {LOCAL_STEP}"
        )
    return f"with H = {steps} control variates are {factor:.3g} times what they should be: {reason}"


def restart(bench: Bench, tolerance: float) -> Finding:
    """max_t ‖θ_t − θ'_t‖ between runs without and with clients that stop and come back from what they saved."""
    if not can_restart(bench.start, bench.scenarios["everyone"][0]):
        raise NotSupported("the adapter has no save(client) and restart(client, saved)")
    gaps = []
    for rec in bench.recordings("everyone") + bench.completed("some"):
        again = record(bench.start, replace(rec.scenario, stops=_stops(rec.scenario)))
        rounds = min(len(again.models), len(rec.models))
        gap = np.abs(again.models[:rounds] - rec.models[:rounds]).max()
        gaps.append(float(np.nan_to_num(gap, nan=np.inf)))
    return Finding(
        max(gaps),
        f"distance to the path without a restart ≤ {tolerance:g}",
        max(gaps) <= tolerance,
        "a client that came back did not go on as before: does save() hold all of its state, does restart() read "
        "it, and does the client ask the server for c rather than keep an old one?",
    )


def _stops(scenario: Scenario) -> tuple[Stop, ...]:
    """Two clients that stop early on, until the next round they are in; two or more are missed if any."""
    missed = 0 if len(scenario.cohorts[0]) == scenario.task.n_clients else 2
    stops = []
    for client in range(scenario.task.n_clients):
        present = [t for t, cohort in enumerate(scenario.cohorts, start=1) if client in cohort][1:]
        stops += [Stop(client, a, b) for a, b in pairwise(present) if b - a > missed][:1]
    return tuple(stops[:2])


CHECKS: dict[str, Check] = {
    "reaches the optimum": partial(reaches, "everyone", "does each client's control variate start at zero?"),
    "differs from FedAvg": differs_from_fedavg,
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
    "restart of a client": restart,
}

"""The checks on control variates: their sum, whose they are, and what they hold."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from fedscaffold.conformance.finding import LOCAL_STEP, Finding
from fedscaffold.conformance.recording import Bench, Recording
from fedscaffold.conformance.task import Array, Task, mean_gradients, optimum

VARIATE_ROUNDS = 3
EXPLAINED = 1e-3  # of the server variate's size: a cause that explains its moves so closely is named


def sums_to_zero(bench: Bench, tolerance: float) -> Finding:
    """max_t ‖Σ_c w_c ξ_c‖ over the largest ‖ξ_c‖ or heterogeneity of gradients."""
    worst, hint = 0.0, ""
    for rec, xi in bench.with_corrections("some", "steps", "weights", "weighted cohorts"):
        task = rec.scenario.task
        sums = np.linalg.norm(np.einsum("c,tcj->tj", task.weights, xi), axis=1)
        sizes = np.maximum.accumulate(np.linalg.norm(xi, axis=2).max(axis=1))
        drift = sums / np.maximum(sizes, _heterogeneity(task))
        if drift.max() > tolerance and not hint:  # the first failure says most about the cause
            hint = "control variates must start at zero" if drift[0] > tolerance else _imbalance_hint(rec, xi)
        worst = max(worst, float(drift.max()))
    return Finding(
        worst, f"|Σ w_c ξ_c| over its terms' size ≤ {tolerance:g} in all rounds", worst <= tolerance, hint
    )


def _imbalance_hint(rec: Recording, xi: Array) -> str:
    """Why Σ w_c ξ_c moves away from 0, from how the server variate c moves.

    An absent client keeps its c_i, so its ξ = c − c_i shows how c moves, and from c follow the c_i of the others.
    """
    task, cohorts = rec.scenario.task, rec.scenario.cohorts[: len(xi) - 1]
    absent = [sorted(set(range(task.n_clients)) - set(cohort)) for cohort in cohorts]
    usual = (
        "the server variate must stay the mean of all c_i: after a round it moves by Σ w_c (change of c_i) over "
        "those who took part; unequal weights and unequal local steps enter that mean"
    )
    if not all(absent):
        return usual
    moves = [xi[t + 1, who[0]] - xi[t, who[0]] for t, who in enumerate(absent)]
    server = np.concatenate([np.zeros((1, task.dim)), np.cumsum(moves, axis=0)])
    own = server[:, None, :] - xi
    as_if_all, of_seen, own_weights = [], [], []  # the server variate after each round, by three wrong rules
    seen: set[int] = set()
    for t, cohort in enumerate(cohorts):
        who, w = list(cohort), task.weights[list(cohort)]
        seen |= set(cohort)
        known = sorted(seen)
        in_cohort = w @ (own[t + 1, who] - own[t, who]) / w.sum()
        as_if_all.append(server[t] + in_cohort)
        own_weights.append(server[t] + len(who) / task.n_clients * in_cohort)
        of_seen.append(task.weights[known] @ own[t + 1, known] / task.weights[known].sum())
    rules = (
        (as_if_all, "is |S|/N missing? The server variate moves by the cohort's mean change, as if all took part"),
        (of_seen, "the server variate is a mean over the clients seen so far: the others count too, with c_i = 0"),
        (own_weights, "the change of the server variate has weights that are normalised within the cohort"),
    )
    explained = EXPLAINED * np.abs(server).max()
    fitting = [text for path, text in rules if np.abs(np.stack(path) - server[1:]).max() <= explained]
    return fitting[0] if fitting else usual


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
        for error, factor in gradient_errors(rec, xi, rounds=VARIATE_ROUNDS):
            if error > tolerance and not hint:  # the first failure says most about the cause
                hint = _factor_hint(factor, rec.scenario.task.local_steps[0])
            worst = max(worst, error)
    return Finding(
        worst,
        f"control variates against the last round's gradients, relative error ≤ {tolerance:g}",
        worst <= tolerance,
        hint,
    )


def gradient_errors(rec: Recording, xi: Array, rounds: int) -> Iterator[tuple[float, float]]:
    """Relative error of the control variates after each of the first rounds, and by what factor they are wrong."""
    for t, cohort in enumerate(rec.scenario.cohorts[: min(rounds, len(xi) - 1)]):
        task = rec.scenario.task_in(t)
        found = _centred(xi[t + 1, list(cohort)])
        on_path = -_centred(mean_gradients(task, cohort, rec.models[t], xi[t]))
        at_model = -_centred(np.stack([task.gradient(c, rec.models[t]) for c in cohort]))
        error = min(float(np.linalg.norm(found - p) / np.linalg.norm(p)) for p in (on_path, at_model))
        yield error, float(np.vdot(found, on_path) / np.vdot(on_path, on_path))


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

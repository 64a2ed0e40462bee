"""The checks of `conformance.check`: each turns recordings of an implementation into a finding."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise

import numpy as np

from fedscaffold.conformance.recording import Bench, Recording, Scenario, Stop, goes_on_changing, record, require
from fedscaffold.conformance.task import (
    Array,
    NotSupported,
    Task,
    fedavg_fixed_point,
    fedavg_map,
    mean_gradients,
    optimum,
)
from fedscaffold.core.checks import choice, positive, seed_number
from fedscaffold.core.errors import InvalidInput

LOCAL_STEP = "θ ← θ − γ(g + ξ_c), with ξ_c = c − c_i if there is a server variate"
FEDAVG_NEAR = 0.05  # of FedAvg's bias: nearer than this is FedAvg's fixed point; Scaffold ends at a distance of 1
VARIATE_ROUNDS = 3  # early, while control variates still change by much more than the tolerance


@dataclass(frozen=True)
class Finding:
    """The worst value that a check measured over its tasks, whether it is acceptable, and a likely cause."""

    measured: float
    expected: str
    ok: bool
    hint: str


Check = Callable[[Bench, float], Finding]


def reaches(scenario: str, settled_hint: str, bench: Bench, tolerance: float) -> Finding:
    """Measure ‖θ_T − θ*‖ in a scenario; `settled_hint` is for a model that settles elsewhere."""
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
    """Measure the distance to FedAvg's path in rounds 2 to 6 and to its end, in units of its bias."""
    closest = np.inf
    for rec in bench.recordings("everyone"):
        task = rec.scenario.task
        m, b = fedavg_map(task)
        theta, early = m @ task.theta0 + b, []
        for model in rec.models[2:7]:
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


def one_variate(scenario: Scenario, rounds: int) -> Array:
    """Return models under ξ_c ← ξ_c + (θ_c − θ⁺)/(γH) for the cohort, which keeps Σ_c ξ_c = 0."""
    task, theta = scenario.task, scenario.task.theta0
    xi, models = np.zeros((task.n_clients, task.dim)), [theta]
    for cohort in scenario.cohorts[:rounds]:
        who = list(cohort)
        moved = mean_gradients(task, who, theta, xi) + xi[who]  # (θ − θ_c)/(γH)
        xi[who] -= moved - moved.mean(axis=0)
        theta = theta - task.step_size * task.local_steps[0] * moved.mean(axis=0)
        models.append(theta)
    return np.stack(models)


def _two_variates(scenario: Scenario, rounds: int, option: int) -> Array:
    """Return models under ξ_c = c − c_i, c = mean c_i; c_i is the mean gradient on c's path (2) or at θ (1)."""
    task, theta = scenario.task, scenario.task.theta0
    own, models = np.zeros((task.n_clients, task.dim)), [theta]
    for cohort in scenario.cohorts[:rounds]:
        who = list(cohort)
        xi = own.mean(axis=0) - own
        on_path = mean_gradients(task, who, theta, xi)
        own[who] = on_path if option == 2 else np.stack([task.gradient(c, theta) for c in who])
        theta = theta - task.step_size * task.local_steps[0] * (on_path + xi[who]).mean(axis=0)
        models.append(theta)
    return np.stack(models)


KNOWN_PATHS: dict[str, Callable[[Scenario, int], Array]] = {
    "one variate": one_variate,
    "option II": lambda scenario, rounds: _two_variates(scenario, rounds, 2),
    "option I": lambda scenario, rounds: _two_variates(scenario, rounds, 1),
}
"""Model after each round, (rounds + 1, dim), for tasks with equal weights and equal local steps."""


def follows_a_known_path(bench: Bench, tolerance: float) -> Finding:
    """Measure max_t ‖θ_t − θ'_t‖ / ‖θ_0 − θ*‖, θ' the nearest known form of Scaffold, from models alone."""
    gaps, rounds = [], 30  # the first, in which the paths of different methods differ most
    for rec in bench.recordings("everyone") + bench.completed("some"):
        models = rec.models[: rounds + 1]
        size = float(np.linalg.norm(models[0] - optimum(rec.scenario.task)))
        away = {
            name: np.abs(models - path(rec.scenario, len(models) - 1)).max() for name, path in KNOWN_PATHS.items()
        }
        gaps.append({name: float(np.nan_to_num(gap / size, nan=np.inf)) for name, gap in away.items()})
    worst = {name: max(gap[name] for gap in gaps) for name in KNOWN_PATHS}
    nearest = min(worst, key=lambda name: worst[name])
    return Finding(
        worst[nearest],
        f"distance to the path of one variate, option I or option II ≤ {tolerance:g} in {rounds} rounds",
        worst[nearest] <= tolerance,
        f"the path is none of Scaffold's, the nearest is that of {nearest!r}: control variates are scaled, "
        "started, averaged or kept in another way",
    )


def changing_settings(bench: Bench, tolerance: float) -> Finding:
    """Measure ‖θ_T − θ*‖ and the error of control variates when step size and local steps change."""
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
        for error, _ in gradient_errors(rec, rec.corrections(), rounds=6)  # each of three settings, twice
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
    """Measure ‖θ_T − θ*‖ when some replies never reached the server."""
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
    """Measure max_t ‖θ_t − θ'_t‖ between a run and one whose clients or server restart from saved state."""
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
    """Return stops of two clients, early on and until their next round; they miss two rounds or more if any."""
    missed = 0 if len(scenario.cohorts[0]) == scenario.task.n_clients else 2
    stops = []
    for client in range(scenario.task.n_clients):
        present = [t for t, cohort in enumerate(scenario.cohorts, start=1) if client in cohort][1:]
        stops += [Stop(client, a, b) for a, b in pairwise(present) if b - a > missed][:1]
    return tuple(stops[:2])


def server_stops(scenario: Scenario) -> tuple[Stop, ...]:
    """Return two stops of the server, after rounds 3 and 7, each with an immediate restart."""
    return tuple(Stop(None, done, done + 1) for done in (3, 7))


def sums_to_zero(bench: Bench, tolerance: float) -> Finding:
    """Measure max_t ‖Σ_c w_c ξ_c‖ over the largest ‖ξ_c‖ or heterogeneity of gradients."""
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
    """Explain why Σ w_c ξ_c moves away from 0, from the moves of the server variate c.

    An absent client keeps its c_i, so its ξ = c − c_i shows how c moves, and from c follow the c_i of the others.
    """
    task, cohorts = rec.scenario.task, rec.scenario.cohorts[: len(xi) - 1]
    absent = [sorted(set(range(task.n_clients)) - set(cohort)) for cohort in cohorts]
    started: set[int] = set()
    for t, cohort in enumerate(cohorts):
        started |= set(cohort)
        waiting = sorted(set(range(task.n_clients)) - started)
        moved = np.abs(xi[t + 1] - xi[t])[sorted(started & set(absent[t]))]  # by the server variate alone
        if waiting and moved.any() and not xi[t + 1, waiting].any():
            return "a control variate starts at the server's in its first round, where the mean counts it as zero"
    usual = (
        "the server variate must stay the mean of all c_i: after a round it moves by Σ w_c (change of c_i) over "
        "the cohort; unequal weights and unequal local steps enter that mean"
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
    explained = 1e-3 * np.abs(server).max()  # a rule that explains the moves this closely is named
    fitting = [text for path, text in rules if np.abs(np.stack(path) - server[1:]).max() <= explained]
    return fitting[0] if fitting else usual


def _heterogeneity(task: Task) -> float:
    star = optimum(task)
    return max(float(np.linalg.norm(task.gradient(c, star))) for c in range(task.n_clients))


def own_control_variates(bench: Bench, tolerance: float) -> Finding:
    """Measure the share of pairs with wrong ξ_a − ξ_b: 0 after a round with both, or changed without either."""
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
    """Compare ξ_c with mean_S p − p_c + a constant, p_c the mean gradient on c's path (option II) or at θ (I)."""
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
    """Yield the relative error of the control variates after each of the first rounds, and their factor."""
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
    """Return the likely cause of control variates that are `factor` times what they should be."""
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


def chosen_checks(*, tolerance: float, seed: int, only: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the checks to run, in the order of the report; raise if an option cannot be used."""
    largest = 1e-3  # ten times the one for float32: larger distances are not rounding errors
    if positive("tolerance", tolerance) > largest:
        raise InvalidInput(f"tolerance must be at most {largest}, got {tolerance}")
    seed_number("seed", seed)
    chosen = CHECKS if only is None else {choice("only", name, tuple(CHECKS)) for name in only}
    return tuple(name for name in CHECKS if name in chosen)

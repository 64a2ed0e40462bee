"""From a fit to the content of its page."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.memmap import in_file
from fedscaffold.core.types import Array
from fedscaffold.models import compare
from fedscaffold.models.fit import Fit, Task, batch_words
from fedscaffold.models.heterogeneity import class_counts
from fedscaffold.models.metrics import of_class_pieces, of_classes, of_model, of_value_pieces, of_values
from fedscaffold.reports.page import Candidate, ClientRow, Content
from fedscaffold.simulation import Trace
from fedscaffold.theory import predict

MOST_PREDICTED = 2_000_000  # N d² T / 100, above which the curve is not predicted
BYTES = 8


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """What was asked for, as far as the fit itself does not say."""

    data: Path
    test: Path | None
    test_table: Any
    kind: str
    missing: str
    command: str


def tell(fit: Fit, averaged: Trace, story: ReportInputs) -> Content:
    """All numbers of the page."""
    task, settings = fit.task, fit.settings
    problem = task.problem
    norm = float(np.linalg.norm(task.optimum))
    ours = compare.standing("Scaffold", task, fit.theta)
    others = compare.standing("FedAvg", task, averaged.theta[0])
    pooled = compare.standing("Pooled", task, task.optimum)
    curve = _predicted(task, fit.trace.rounds)
    end = None if task.plan is None else float(np.sqrt(task.plan.predicted_mse)) / norm
    reached = fit.relative_distance <= settings.tolerance
    return Content(
        title=f"A federated model of {problem.encoding.target}",
        summary=(
            f"Scaffold on {problem.n_clients:,} client{'s' * (problem.n_clients > 1)} came within "
            f"{fit.relative_distance:.2%} of the model that "
            f"pooled data would give ({'within' if reached else 'missing'} the tolerance of "
            f"{settings.tolerance:.2%}); FedAvg with the same effort within {others.relative_distance:.2%}."
        ),
        asked=_asked(fit, story),
        data=_data(task),
        classes=tuple(map(str, problem.classes or ())),
        clients=_clients(task, ours, others),
        plan=_plan(fit),
        distances={
            "Scaffold": np.sqrt(fit.trace.mse[0]) / norm,
            "FedAvg": np.sqrt(averaged.mse[0]) / norm,
        },
        predicted=None if curve is None else np.sqrt(curve) / norm,
        predicted_end=end,
        tolerance=settings.tolerance,
        candidates=[_candidate(task, one, story) for one in (ours, others, pooled)],
        loss_name="half the squared error" if problem.classes is None else "negative log-likelihood",
        cost=_cost(fit),
        provenance=_provenance(fit, story),
        command=story.command,
    )


def _asked(fit: Fit, story: ReportInputs) -> list[tuple[str, str]]:
    encoding, settings = fit.task.problem.encoding, fit.settings
    names = ", ".join(column.name for column in encoding.columns[:12])
    more = f" and {len(encoding.columns) - 12} more" if len(encoding.columns) > 12 else ""
    return [
        ("table", str(story.data)),
        ("target", encoding.target),
        ("client column", encoding.client),
        ("features", names + more),
        ("model", story.kind),
        ("penalty l2", f"{fit.task.problem.l2:g}"),
        ("missing values", "refused" if story.missing == "error" else "filled with the mean"),
        ("tolerance", f"{settings.tolerance:g}"),
        ("test table", "none" if story.test is None else str(story.test)),
    ]


def _data(task: Task) -> list[tuple[str, str]]:
    problem = task.problem
    facts = [
        ("rows", f"{int(problem.sizes.sum()):,}"),
        ("clients", f"{problem.n_clients:,}, of {problem.sizes.min():,} to {problem.sizes.max():,} rows"),
        ("columns", f"{len(problem.encoding.columns)}, as {problem.n_features} numbers with the intercept"),
    ]
    if problem.classes is None:
        facts.append(("target", f"mean {task.target_shift:.5g}, standard deviation {task.target_scale:.5g}"))
    return facts


def _clients(task: Task, ours: compare.Standing, others: compare.Standing) -> list[ClientRow]:
    problem = task.problem
    counts = class_counts(problem)
    judged = compare.alone(task)
    held = {
        int(c): (float(a), float(b)) for c, a, b in zip(judged.clients, judged.together, judged.alone, strict=True)
    }
    rows = []
    for c, name in enumerate(problem.client_names):
        together, alone = held.get(c, (None, None))
        own = (int(problem.sizes[c]),) if counts is None else tuple(int(n) for n in counts[c])
        scaffold, fedavg = float(ours.client_losses[c]), float(others.client_losses[c])
        row = ClientRow(name=str(name), rows=own, scaffold=scaffold, fedavg=fedavg, together=together, alone=alone)
        rows.append(row)
    return rows


def _plan(fit: Fit) -> str:
    task = fit.task
    batch = f"Each step uses {batch_words(task.batch_size)} rows."
    if task.plan is None:
        return f"Nothing was planned: step size, local steps and rounds were given.\n{batch}"
    aim = (
        f"The aim is a squared distance to the pooled model of {task.target_mse:.3g}: {fit.settings.tolerance:g} "
        "times the length of its coefficients, squared, for standardised columns."
    )
    given = ""
    if (task.plan.method, task.plan.rounds) != (task.method, task.rounds):
        given = (
            f"\nSome of this was given instead: the run took step_size={task.method.step_size:.4g}, "
            f"local_steps={task.method.local_steps}, {task.rounds:,} rounds."
        )
    if fit.trace.rounds > task.rounds:
        given += f"\nThat did not quite suffice: {fit.trace.rounds - task.rounds:,} more rounds were run."
    return f"{aim}\n{task.plan.explain()}\n{batch}{given}"


def _predicted(task: Task, rounds: int) -> Array | None:
    """E‖θ_t − θ*‖² by round from `theory.predict`, where it is quick: it reads all rows again and again."""
    problem = task.problem
    if in_file(problem.x):
        return None
    effort = problem.n_clients * problem.dim**2 * max(rounds, 100) / 100
    if problem.kind not in ("ridge", "logistic") or effort > MOST_PREDICTED:
        return None
    try:
        found: Any = predict(problem, task.method, batch_size=task.batch_size, rounds=rounds)
    except InvalidInput:  # a step size that was given and does not contract
        return None
    return found.curve


def _candidate(task: Task, one: compare.Standing, story: ReportInputs) -> Candidate:
    test = None if story.test_table is None else of_model(task.model(one.theta), story.test_table)
    return Candidate(
        name=one.name,
        loss=one.loss,
        distance=one.relative_distance,
        metrics=_metrics(task, one.theta),
        test=test,
    )


def _metrics(task: Task, theta: Array) -> dict[str, float]:
    """Metrics on the rows that were fitted."""
    problem = task.problem
    pieces = _predictions(task, theta)
    if in_file(problem.x):
        return of_value_pieces(pieces) if problem.classes is None else of_class_pieces(pieces)
    seen, predicted = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return of_values(seen, predicted) if problem.classes is None else of_classes(seen, predicted)


def _predictions(task: Task, theta: Array) -> Iterator[tuple[Any, Array]]:
    """Values or classes, and what θ makes of them, some rows at a time."""
    problem = task.problem
    vectors = theta.reshape(problem.vectors, problem.n_features)
    for x, y, _ in problem.pieces():
        z = x @ vectors.T
        if problem.classes is None:
            yield task.target_shift + task.target_scale * y, task.target_shift + task.target_scale * z[:, 0]
            continue
        two = len(problem.classes) == 2
        z = np.column_stack([np.zeros(len(z)), z[:, 0]]) if two else z
        shares = np.exp(z - z.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        yield ((y + 1) / 2 if two else y).astype(np.int64), shares


def _cost(fit: Fit) -> list[tuple[str, str]]:
    problem, rounds = fit.task.problem, fit.trace.rounds
    vectors = float(fit.trace.vectors_per_client[-1])
    each = vectors * problem.dim * BYTES
    table = float(problem.sizes.sum()) * len(problem.encoding.columns) * BYTES
    return [
        ("rounds", f"{rounds:,}, of {fit.task.method.local_steps:,} local steps"),
        ("per client", f"{vectors:,.0f} vectors of {problem.dim:,} numbers, {_size(each)}"),
        ("all clients", f"{_size(each * problem.n_clients)}; FedAvg the same"),
        ("for comparison", f"the features themselves are {_size(table)}"),
        ("gradients per client", f"{fit.trace.gradients_per_client[0, -1]:,.0f}"),
    ]


def _size(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size:.0f} bytes"
        size /= 1000
    raise AssertionError


def _provenance(fit: Fit, story: ReportInputs) -> list[tuple[str, str]]:
    known = fit.trace.provenance
    versions = ", ".join(f"{name} {number}" for name, number in known["versions"].items())
    machine = known["machine"]
    return [
        ("finished", known["finished"]),
        ("seed", str(fit.settings.seed)),
        ("engine", known["engine"]),
        ("versions", versions),
        ("machine", f"{machine['system']}, {machine['processor']}, {machine['cores']} cores"),
        ("encoded rows, SHA-256", fit.model.provenance["request"]["rows"]),
    ]

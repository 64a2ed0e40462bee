"""The phases of a study: which numbers sites add up in each, and how a site computes them.

A phase is a function of the site's rows and of the question's vector that returns named blocks of numbers *to be
added*. Their lengths and units follow from the plan, so that a message's size says nothing about a site's rows.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Engine
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array, ServerState
from fedscaffold.data.encoded import EncodedLogistic, EncodedMultinomial, EncodedProblem, problem_class
from fedscaffold.engines import choose_engine
from fedscaffold.federation.study.numbers import WordBlock, counts, wide
from fedscaffold.federation.study.plan import StudyPlan
from fedscaffold.federation.study.rows import LARGEST, SiteRows
from fedscaffold.inference import ClosingSums, client_sums
from fedscaffold.inference.sums import client_intercept
from fedscaffold.methods import Scaffold
from fedscaffold.methods.base import ControlVariates
from fedscaffold.models.coding import Coding
from fedscaffold.problems.base import OFFSET, expit, log_softmax, plain_columns
from fedscaffold.problems.families import family_of
from fedscaffold.problems.glm import Glm

JUDGED = "judged "  # prefix of a phase on the rows that are not left out
CELLS = (64, 1024, 16384)  # of the tables in which levels are gathered; the next size if one overflows
PHASES = {
    "levels": "levels that have enough rows at the site, with their rows",
    "moments": "rows; of each number the rows that have it and the sum",
    "spreads": "of each number the sum of squares about the mean of all sites",
    "measure": "one number: a power of the largest curvature of the loss",
    "sums": "loss, gradient and Hessian over all rows at a model; a Hessian contains all two-way counts",
    "scores": "the same, with products of gradients of rows and of sites",
    "gradient": "loss and gradient over all rows at a model",
    "train": "the change of the model by the site's local steps, once per round of Scaffold",
    "evaluate": "losses on rows that training left out, and a histogram of predicted probabilities",
    "noisy": "the sum of the rows' clipped gradients, or their clipped mean, with noise",
}
BINS = 20  # of equal width in the predicted probability; half of them below 1/2
POWER = 16  # of curvatures: the 16th root of their sum over N sites is the largest one up to a factor N^(1/16)
LARGEST_MEAN = 1e30  # of a column: a site's sum of squares about larger ones may leave its range by its rows
ONCE = ("levels", "moments", "spreads", "measure", "evaluate")  # phases that a site answers once
LONGEST_LEVEL = 124  # bytes of a level that is gathered
KEY = 1 + 2 + 1 + LONGEST_LEVEL // 2  # numbers of a level: rows, checksum, length, and two bytes each


class Question(NamedTuple):
    """A question of the coordinator: nothing but a phase, a number and a vector.

    Parameters
    ----------
    plan, roster
        Digests of the plan and of the roster that sites accepted.
    number
        Questions are numbered 0, 1, ... in the order in which they are asked.
    phase
        One of `PHASES`, if the plan has it.
    vector
        The model, or whatever vector the phase is about.
    """

    plan: str
    roster: str
    number: int
    phase: str
    vector: Array

    def extend(self, chain: str) -> str:
        """Return the digest of all questions up to this one, from the digest of those before."""
        found = hashlib.sha256(json.dumps([chain, *self[:4], self.vector.size]).encode())
        found.update(np.ascontiguousarray(self.vector, "<f8").data)
        return found.hexdigest()


def parse_phase(phase: str) -> tuple[str, bool, int]:
    """Return a phase's name, whether it is on the judged rows, and its number of cells."""
    judged = phase.startswith(JUDGED)
    name, _, cells = phase.removeprefix(JUDGED).partition(":")
    size = int(cells) if cells.isdecimal() and cells.isascii() else 0
    if name not in PHASES or (name == "levels") != (size in CELLS) or (cells and not size):
        raise InvalidInput(f"there is no phase {phase!r:.40}")
    return name, judged, size


def allowed(plan: StudyPlan, phase: str) -> bool:
    """Return whether a plan has a phase."""
    name, judged, _ = parse_phase(phase)
    survey = name in ("levels", "moments", "spreads")
    if survey or plan.incomplete:
        return survey and bool(plan.incomplete) and plan.epsilon is None and not judged
    if plan.epsilon is not None:
        return name == "noisy" and not judged
    if judged or name == "evaluate":
        return plan.evaluate > 0.0 and name in ("sums", "gradient", "train", "evaluate", "scores")
    if name in ("sums", "scores"):
        return plan.hessians
    if plan.family.baseline:
        return name == "gradient"
    return name in ("measure", "gradient", "train") and not (name == "train" and plan.client_intercepts)


def blocks_of(plan: StudyPlan, phase: str) -> list[WordBlock]:
    """Return the blocks of numbers of a phase, which follow from the plan alone."""
    if phase not in plan.layouts:
        plan.layouts[phase] = _blocks_of(plan, phase)
    return plan.layouts[phase]


def _blocks_of(plan: StudyPlan, phase: str) -> list[WordBlock]:
    name, _, cells = parse_phase(phase)
    if name == "levels":
        open_ones = open_categories(plan)
        return [*(counts(name, cells * KEY) for name in open_ones), counts("rest", len(open_ones))]
    if name == "moments":
        columns = len(number_columns(plan))
        return [counts("rows"), wide("exposure"), counts("present", columns), wide("sums", columns)]
    if name == "spreads":
        return [wide("squares", len(number_columns(plan)))]
    if name == "measure":
        return [WordBlock("smoothness", 1, -256, 8)]
    coding = plan.coding()
    dim = coding.dim
    if name == "gradient":
        return [counts("rows"), WordBlock("loss", 1), WordBlock("gradient", dim)]
    if name == "train":
        return [counts("rows"), WordBlock("change", dim)]
    if name == "noisy":
        return [WordBlock("change", dim, 0, 2)]  # whole numbers up to 2¹⁰⁷: no sum of rows and no noise is beyond
    if name == "evaluate":
        found = [counts("rows"), WordBlock("loss", 1), wide("squared loss")]
        if plan.family.classes:
            K = coding.encoding.n_vectors
            found.append(counts("table", K * K) if K > 1 else counts("histogram", 2 * BINS))
            found += [] if K > 1 else [WordBlock("predicted", BINS)]
        return found
    return _closing_blocks(coding, scores=name == "scores")


def number_columns(plan: StudyPlan) -> list[str]:
    """Return the columns of numbers, the target among them unless it holds times, which stay at sites."""
    times = plan.target if plan.family.baseline else None
    return [name for name, entry in plan.columns.items() if entry.type == "number" and name != times]


def open_categories(plan: StudyPlan) -> list[str]:
    """Return the categories whose levels are gathered."""
    return [name for name, entry in plan.columns.items() if entry.type == "category" and entry.levels is None]


# at a site


def numbers_for(
    rows: SiteRows, phase: str, vector: Array, states: dict[str, Any], engine: str | Engine
) -> dict[str, Any]:
    """Return a site's numbers for a question, by block.

    Parameters
    ----------
    rows
        The site's rows.
    phase, vector
        Of the question.
    states
        By phase, as JSON holds them: the site's control variate ξ, and the round of which it does not know the
        result yet, with the model before it, its local model after it, γ and H. Changed by rounds of Scaffold.
    engine
        Computes local steps.

    Raises
    ------
    InvalidInput
        If the vector does not fit the phase.
    """
    name, judged, cells = parse_phase(phase)
    plan = rows.plan
    if name == "levels":
        return _levels(rows, cells)
    if name == "moments":
        return _moments(rows)
    if name == "spreads":
        names, squares = number_columns(plan), list[float]()
        for column, mean in zip(names, _checked(vector, len(names), LARGEST_MEAN).tolist(), strict=True):
            squares.append(float(np.nansum((rows.numbers(column) - mean) ** 2)))
        return {"squares": squares}
    problem = rows.judged if judged else rows.problem
    if name == "measure":
        return {"smoothness": float(problem.smoothness(Batches())) ** POWER}
    if name == "train":
        return _local_steps(problem, phase, _checked(vector, problem.dim + 2), states, engine)
    theta = _checked(vector, problem.dim)
    own = plan.client_intercepts
    if name == "evaluate":
        return _evaluation(rows, theta)
    if name == "noisy":
        from fedscaffold.federation.study.private import noisy_gradient

        return {"change": noisy_gradient(rows, theta)}
    n = int(problem.sizes[0])
    if name == "gradient" and not own:
        return {"rows": n, "loss": n * float(problem.loss(theta)), "gradient": n * problem.gradient(theta)}
    found = client_sums(problem, 0, theta, scores=name == "scores", intercept=own)
    if name == "gradient":
        penalty = n * problem.penalty
        loss = found.loss + 0.5 * float(penalty @ theta**2)
        return {"rows": n, "loss": loss, "gradient": found.gradient + penalty * theta}
    return _closing_numbers(found)


def _checked(vector: Array, size: int, largest: float = LARGEST) -> Array:
    if vector.shape != (size,) or not np.isfinite(vector).all() or (size and np.abs(vector).max() > largest):
        raise InvalidInput(f"a vector of {size} numbers up to {largest:g} is needed, got {vector.size}")
    return vector


def _levels(rows: SiteRows, cells: int) -> dict[str, Any]:
    """Return tables of the frequent levels, and for each category the rows of rare levels."""
    found: dict[str, Any] = {}
    rest, least = [], rows.plan.min_cell
    for name in open_categories(rows.plan):
        usual = rows.frequent(name)
        missing = rows.labels(name).null_count
        other = rows.n_rows - missing - sum(usual.values())
        few = sum(count for count in (other, missing) if count < least)
        if few and usual:  # they count as the most frequent level, or would follow from all rows by subtraction
            usual[max(usual, key=lambda level: usual[level])] += few
        found[name] = _level_table(usual, cells)
        rest.append(other if other >= least else 0)
    return {**found, "rest": rest}


def _moments(rows: SiteRows) -> dict[str, Any]:
    """Return rows, and counts and sums of all numbers; a few missing ones count as if they had the mean."""
    plan, n = rows.plan, rows.n_rows
    role = next((role for role in ("exposure", "offset") if role in plan.record_columns), None)
    exposures = np.ones(n)
    if role is not None:
        values = rows.numbers(plan.record_columns[role])
        exposures = np.exp(values) if role == "offset" else values
    present, sums = [], []
    for name in number_columns(plan):
        values = rows.numbers(name)
        values = values[~np.isnan(values)]
        few = 0 < n - values.size < plan.min_cell and values.size
        present.append(n if few else values.size)
        sums.append(float(values.sum()) * (n / values.size if few else 1.0))
    return {"rows": n, "exposure": exposures.sum(), "present": present, "sums": sums}


def _local_steps(
    problem: EncodedProblem, phase: str, vector: Array, states: dict[str, Any], engine: str | Engine
) -> dict[str, Any]:
    """Return n_c (θ_c − θ) after local steps from θ, and remember the round.

    The control variate changes by the last round now that its result, this question's model, is known.
    """
    step_size, steps, theta = float(vector[0]), int(vector[1]), vector[2:]
    if not (step_size > 0.0 and steps == vector[1] and 1 <= steps <= 1 << 20):
        raise InvalidInput("a round needs a positive step size and a whole number of local steps")
    last, xi = states.get(phase), ControlVariates(np.zeros((1, 1, problem.dim)))
    if last is not None:
        old, sent, before = (np.array(last[name])[None] for name in ("xi", "sent", "before"))
        method = Scaffold(step_size=last["step_size"], local_steps=last["local_steps"])
        xi = method.update_clients(
            ControlVariates(old[None]), sent[None], ServerState(before), ServerState(theta[None])
        )
    # beyond 2 over its curvature, steps at one site would grow until its part is all that shows in the sum
    longest = 2.0 / float(problem.smoothness(Batches())) if last is None else last["longest_step"]
    step_size = min(step_size, longest)
    with choose_engine(engine, problem).open(problem, Batches(), seed=0) as local_sgd:
        sent = local_sgd(theta[None], xi.xi, step_size=step_size, local_steps=steps, round=0)[0, 0]
    vectors = {"xi": xi.xi[0, 0], "before": theta, "sent": sent}
    states[phase] = {name: values.tolist() for name, values in vectors.items()}
    states[phase] |= {"step_size": step_size, "local_steps": steps, "longest_step": longest}
    n = int(problem.sizes[0])
    return {"rows": n, "change": n * (sent - theta)}


def _evaluation(rows: SiteRows, theta: Array) -> dict[str, Any]:
    """Return losses and a histogram on the rows that training left out."""
    test, blocks = rows.test, blocks_of(rows.plan, "evaluate")
    if test is None:
        return {block.name: np.zeros(block.length) for block in blocks}
    if rows.plan.client_intercepts:
        alpha = client_intercept(rows.judged, 0, theta) or 0.0  # none if the best one is infinite
        y = np.array(plain_columns(test.y))
        y[:, OFFSET] += alpha
        test = test.with_records(y=y)
    margins = test.record_margins(theta)
    if isinstance(test, EncodedMultinomial):
        each = np.asarray(-log_softmax(margins)[np.arange(len(margins)), test.targets.astype(np.int64)])
    else:
        assert isinstance(test, Glm)  # plans of Cox regression have no evaluation
        each = np.asarray(test.value(margins[:, 0], test.targets))
    found: dict[str, Any] = {"rows": int(test.sizes[0]), "loss": each.sum(), "squared loss": (each**2).sum()}
    least = rows.plan.min_cell if rows.plan.sums == "open" else 1
    if isinstance(test, EncodedMultinomial):
        taken, true = margins.argmax(axis=1), test.targets.astype(np.int64)
        table = np.zeros((test.vectors, test.vectors), np.int64)
        np.add.at(table, (true, taken), 1)
        few = ((table > 0) & (table < least)).any(axis=1, keepdims=True)
        found["table"] = np.where(few, 0, table)  # the whole row, whose sum is known
    elif isinstance(test, EncodedLogistic):
        probability, positive = expit(margins[:, 0]), test.targets > 0
        bins = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
        both = np.stack([np.bincount(bins[rows], minlength=BINS) for rows in (~positive, positive)])
        sums: Array = np.bincount(bins, probability, minlength=BINS).astype(np.float64)
        both, sums = without_small_bins(both, sums, least)
        found |= {"histogram": both.ravel(), "predicted": sums}
    return found


def without_small_bins(both: Any, sums: Array, least: int) -> tuple[Any, Array]:
    """Return counts of two classes by bin with bins joined until no count lies between 0 and `least`.

    A joined bin has its counts in the place of its first one. If a class has fewer rows than `least`, nothing is
    left.
    """
    both, sums = both.copy(), sums.copy()

    def small(k: int) -> bool:
        return bool(((both[:, k] > 0) & (both[:, k] < least)).any())

    last = 0
    for k in range(1, both.shape[1]):
        if small(last) or (small(k) and k == both.shape[1] - 1):
            both[:, last] += both[:, k]
            sums[last] += sums[k]
            both[:, k], sums[k] = 0, 0.0
        else:
            last = k
    while last > 0 and small(last):
        previous = last - 1
        both[:, previous] += both[:, last]
        sums[previous] += sums[last]
        both[:, last], sums[last], last = 0, 0.0, previous
    if small(0):
        return np.zeros_like(both), np.zeros_like(sums)
    return both, sums


# closing sums as blocks

_FIXED = ("clients", "intercepts", "weight", "saturated", "constant", "pearson")


def _closing_blocks(coding: Coding, *, scores: bool) -> list[WordBlock]:
    dim, features, family = coding.dim, coding.encoding.dim, family_of(problem_class(coding.encoding).kind)
    triangle, none = dim * (dim + 1) // 2, np.zeros(0)
    K = coding.encoding.n_vectors
    null = K if K > 1 else int(family.null_sums(none, none, none).size)
    found = [
        counts("rows"),
        WordBlock("loss", 1),
        *(WordBlock(name, 1) for name in _FIXED),
        WordBlock("null", null),
    ]
    found += [WordBlock("gradient", dim), WordBlock("squares", features), counts("varying", features)]
    found += [WordBlock("hessian", triangle)] + [WordBlock("information", triangle)] * (
        family.expected is not None
    )
    if scores:
        found += [WordBlock("score_products", triangle), WordBlock("cluster_products", triangle)]
    return found


def _closing_numbers(sums: ClosingSums) -> dict[str, Any]:
    return {name: np.nan_to_num(block) if name == "pearson" else block for name, block in sums.blocks().items()}


def closing_sums_of(total: Mapping[str, Array], coding: Coding, theta: Array) -> ClosingSums:
    """Return the closing sums over all sites, from the totals of a question at θ."""
    return ClosingSums.of_blocks(problem_class(coding.encoding).kind, theta, total)


# levels as tables of sums

# A level is a key of a table of cells, each the sum of the keys that fall into it times their rows: how many rows,
# a checksum, the length and the bytes. Every key falls into three cells. A cell with one key, from any number of
# sites, shows it; taken out of its other cells, it makes room for the next (an invertible Bloom lookup table).


def _level_table(levels: Mapping[str, int], cells: int) -> Array:
    table = np.zeros((cells, KEY))
    for level, count in levels.items():
        if len(level.encode()) <= LONGEST_LEVEL:  # longer ones count as rare
            table[_places(level, cells)] += count * _key(level)
    return table.ravel()


def _key(level: str) -> Array:
    """Return a level as numbers: 1, a checksum in two parts, its length, and its bytes two by two."""
    data = level.encode()
    check = hashlib.sha256(data).digest()[:4]
    words = check + len(data).to_bytes(2, "little") + data.ljust(LONGEST_LEVEL, b"\0")
    return np.concatenate([[1.0], np.frombuffer(words, "<u2").astype(np.float64)])


def _places(level: str, cells: int) -> list[int]:
    """Return three different cells of a level."""
    digest = hashlib.sha256(b"cells" + level.encode()).digest()
    third = cells // 3
    return [k * third + int.from_bytes(digest[8 * k : 8 * k + 8], "little") % third for k in range(3)]


def levels_in(table: Array, cells: int) -> dict[str, int] | None:
    """Return the levels of a sum of tables with their rows, sorted; None if there are too many for its cells."""
    left, found = table.reshape(cells, KEY).copy(), dict[str, int]()
    while left[:, 0].any():
        pure = next(
            ((k, level) for k in np.flatnonzero(left[:, 0]) if (level := _only(left[k])) is not None), None
        )
        if pure is None:
            return None
        k, level = pure
        found[level] = round(float(left[k, 0]))
        left[_places(level, cells)] -= left[k, 0] * _key(level)
    return dict(sorted(found.items()))


def _only(cell: Array) -> str | None:
    """Return the level that a cell consists of; None if there are several."""
    parts = cell[1:] / cell[0]
    if (parts % 1 != 0).any() or parts.min() < 0 or parts.max() >= 2**16 or parts[2] > LONGEST_LEVEL:
        return None
    data = parts[3:].astype("<u2").tobytes()[: int(parts[2])]
    try:
        level = data.decode()
    except UnicodeDecodeError:
        return None
    return level if np.array_equal(_key(level)[1:], parts) else None

"""The coordinator of a study: it proposes plan and roster, asks numbered questions, and adds up the answers."""

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.study.numbers import Words, add, decode, size_of
from fedscaffold.federation.study.plan import OTHER, Column, StudyPlan
from fedscaffold.federation.study.questions import (
    CELLS,
    JUDGED,
    POWER,
    Question,
    blocks_of,
    closing_sums_of,
    levels_in,
    number_columns,
    open_categories,
)
from fedscaffold.federation.study.roster import Roster
from fedscaffold.federation.study.site import DOCUMENT, KIND
from fedscaffold.federation.study.transport import Journal, SiteProblems
from fedscaffold.inference import ClosingSums
from fedscaffold.inference.sums import MOST_COEFFICIENTS, needs_newton, slope_mask
from fedscaffold.models.coding import Coding
from fedscaffold.models.fit import NUMBERS_PER_SECOND


class Received(NamedTuple):
    """A message that the coordinator received."""

    number: int
    phase: str
    site: str
    words: Words


class Coordinator:
    """The part of a study that asks the sites, and adds up their answers.

    Parameters
    ----------
    plan
        The plan.
    journal
        Reaches the sites, and keeps what they answered.
    keys
        Public keys of the sites that people accepted; None to take the keys that the sites send, in one process.
    on_phase
        Called with the name of each phase that begins.
    """

    def __init__(
        self,
        plan: StudyPlan,
        journal: Journal,
        *,
        keys: Mapping[str, str] | None = None,
        on_phase: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self.plan, self.journal, self.keys, self.on_phase = plan, journal, keys, on_phase
        self.roster: Roster | None = None
        self.number = 0
        self.received: list[Received] = []
        self.by_site: dict[str, dict[str, Array]] = {}  # numbers of the last question, of open sums

    # documents

    def begin(self) -> None:
        """Propose the plan and the roster; complete the plan by a survey if its codebook leaves something open.

        Raises
        ------
        SiteProblems
            If a site does not accept.
        """
        self.on_phase("accept")
        keys = self._propose(self.plan)
        known = keys if self.keys is None else dict(self.keys)
        wrong = [site for site in self.plan.sites if known.get(site, "").split()[:2] != keys[site].split()[:2]]
        if wrong:
            raise SiteProblems({site: f"site {site} has another key than the accepted one" for site in wrong})
        self.roster = Roster(self.plan.digest, {site: keys[site] for site in self.plan.sites})
        self._send("roster", self.roster.to_json())
        if self.plan.incomplete:
            self.on_phase("survey")
            self.plan = self._surveyed()
            self.on_phase("accept")
            self._propose(self.plan)
            self.roster = Roster(self.plan.digest, self.roster.keys)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Send the result to all sites that can be reached."""
        self.journal.transport.deliver(dict.fromkeys(self.plan.sites, _document("result", result)))

    def _propose(self, plan: StudyPlan) -> dict[str, str]:
        """Return each site's public key once all have accepted a plan."""
        replies = self._send("plan", plan.to_json())
        return {site: str(reply.values.get("key", "")) for site, reply in replies.items()}

    def _send(self, kind: str, document: Mapping[str, Any]) -> Mapping[str, Payload]:
        return self.journal.exchange(dict.fromkeys(self.plan.sites, _document(kind, document)))

    # questions

    def ask(self, phase: str, vector: Array | None = None) -> dict[str, Array]:
        """Ask all sites a question and return the sums of their numbers, by block.

        Raises
        ------
        BeyondRange
            If numbers of some site are not finite, or too large.
        """
        assert self.roster is not None
        empty = np.zeros(0) if vector is None else vector
        question = Question(self.plan.digest, self.roster.digest, self.number, phase, empty)
        self.number += 1
        values = {KIND: "question", **{name: getattr(question, name) for name in Question._fields[:4]}}
        payload = Payload(values, {"vector": empty} if empty.size else {})
        replies = self.journal.exchange(dict.fromkeys(self.plan.sites, payload))
        blocks = blocks_of(self.plan, phase)
        words = {site: _words_in(replies[site], site) for site in self.plan.sites}
        self.received += [Received(question.number, phase, site, one) for site, one in words.items()]
        if any(one.size != size_of(blocks) for one in words.values()):
            raise InvalidInput("a site answered with a message of another size than the plan says")
        self.by_site = {}
        if self.plan.sums == "open":
            self.by_site = {site: decode(one, blocks) for site, one in words.items()}
        return decode(add(list(words.values())), blocks)

    @cached_property
    def smoothness(self) -> float:
        """The largest curvature of any site's loss, or up to N^(1/16) times as much; it is asked for once."""
        return float(self.ask("measure")["smoothness"][0] ** (1.0 / POWER))

    # the survey

    def _surveyed(self) -> StudyPlan:
        """Return the plan with levels, means and standard deviations from sums over all sites."""
        plan = self.plan
        columns = dict(plan.columns)
        for name, levels in self._gathered_levels().items():
            columns[name] = self._category(name, levels)
        numbers = number_columns(plan)
        found = self.ask("moments")
        rows, present = round(float(found["rows"][0])), np.maximum(found["present"], 1.0)
        means = found["sums"] / present
        spreads = np.sqrt(self.ask("spreads", means)["squares"] / present)
        problems = []
        for name, mean, sd in zip(numbers, means.tolist(), spreads.tolist(), strict=True):
            if columns[name].complete:
                continue
            if name == plan.target and plan.family.log_link:
                mean, sd = mean * rows / float(found["exposure"][0]), max(sd, 1e-300)  # the mean rate
            if sd <= 1e-12 * abs(mean):
                which = "the target" if name == plan.target else "column"
                problems.append(f"{which} {name!r} is the same in all rows; ignore it")
                sd = 1.0
            columns[name] = columns[name].model_copy(update={"mean": mean, "sd": sd})
        if problems:
            raise InvalidInput("; ".join(problems))
        return StudyPlan(**{**plan.model_dump(), "columns": columns, "rows": rows})

    def _gathered_levels(self) -> dict[str, dict[str, int]]:
        """Return the levels of each category that the codebook does not list, with their rows."""
        names = open_categories(self.plan)
        for cells in CELLS if names else ():
            found = self.ask(f"levels:{cells}")
            each = {name: levels_in(found[name], cells) for name in names}
            if None not in each.values():
                others = zip(names, found["rest"].tolist(), strict=True)
                rest: dict[str, dict[str, int]] = {name: {OTHER: round(n)} if n > 0 else {} for name, n in others}
                return {name: {**(levels or {}), **rest[name]} for name, levels in each.items()}
        if names:
            raise InvalidInput(
                f"a category has more than {CELLS[-1] // 2:,} levels; ignore it, or list its levels"
            )
        return {}

    def _category(self, name: str, levels: Mapping[str, int]) -> Column:
        """Return the entry of a category from its levels; the most frequent one is the reference."""
        target = name == self.plan.target
        if target:
            levels = {level: count for level, count in levels.items() if level != OTHER}
        if len(levels) < 2:
            least = self.plan.min_cell
            what, found = "the target" if target else "column", "one level" if levels else "no level"
            raise InvalidInput(
                f"{what} {name!r} has {found} with at least {least} rows at a site; "
                f"{'list its levels in the codebook' if target else 'ignore it'}, or lower min_cell"
            )
        usual = max((level for level in levels if level != OTHER), key=lambda level: levels[level])
        entry = self.plan.columns[name]
        reference = entry.reference if target or entry.reference is not None else usual
        return Column(type="category", unit=entry.unit, levels=tuple(levels), reference=reference)


class Totals:
    """Sums over all sites for a training; see `inference.training.Sums`.

    Parameters
    ----------
    coordinator
        Asks the sites; its plan is complete.
    judged
        Whether the rows that judge the model are left out.
    """

    def __init__(self, coordinator: Coordinator, *, judged: bool = False) -> None:
        self.coordinator, self.prefix = coordinator, JUDGED if judged else ""
        self.coding: Coding = coordinator.plan.coding()
        encoding = self.coding.encoding
        self.dim, self.names = self.coding.dim, encoding.names
        kind = encoding.family.kind
        self.needs_newton = needs_newton(kind, client_intercepts=self.coding.client_intercepts)
        self.hessians = coordinator.plan.hessians and self.dim <= MOST_COEFFICIENTS
        self.exchange_seconds = coordinator.journal.last_seconds
        sites = len(coordinator.plan.sites)
        self.step_seconds = (coordinator.plan.rows or 1000 * sites) / sites * self.dim / NUMBERS_PER_SECOND
        self.slopes: NDArray[np.bool_] = slope_mask(encoding.n_vectors, encoding.dim, int(encoding.intercept))

    @property
    def smoothness(self) -> float:
        """The largest curvature of any site's loss."""
        return self.coordinator.smoothness

    def penalty(self, sums: ClosingSums) -> Array:
        """Return the second derivatives of the penalty in units of the sums, (dim,).

        A level of the codebook that no row has would not be determined without a penalty; an extra one holds its
        coefficient at 0.
        """
        encoding = self.coding.encoding
        category = ["=" in name or name.endswith(" missing") for name in encoding.names]
        levels = np.array(category) & (sums.squares == 0.0)
        least = np.tile(np.where(levels, float(sums.rows), 0.0), encoding.n_vectors)
        return np.maximum(np.where(self.slopes, sums.rows * self.coding.l2, 0.0), least)

    def closing(self, theta: Array, *, scores: bool) -> ClosingSums:
        """Return the closing sums at θ."""
        total = self.coordinator.ask(self.prefix + ("scores" if scores else "sums"), theta)
        return closing_sums_of(total, self.coding, theta)

    def gradient(self, theta: Array) -> tuple[Array, float]:
        """Return ∇f(θ) and f(θ), with the penalty."""
        total = self.coordinator.ask(f"{self.prefix}gradient", theta)
        rows = max(float(total["rows"][0]), 1.0)
        return total["gradient"] / rows, float(total["loss"][0]) / rows

    def scaffold_round(self, theta: Array, step_size: float, local_steps: int) -> Array:
        """Return the model after one round of Scaffold; sites weigh by their rows."""
        total = self.coordinator.ask(f"{self.prefix}train", np.concatenate([[step_size, local_steps], theta]))
        return theta + total["change"] / max(float(total["rows"][0]), 1.0)


def _document(kind: str, document: Mapping[str, Any]) -> Payload:
    """Return a message with a document, whose keys keep their order."""
    return Payload({KIND: kind, DOCUMENT: json.dumps(document, allow_nan=False)})


def _words_in(reply: Payload, site: str) -> Words:
    words = reply.arrays.get("words")
    if not isinstance(words, np.ndarray) or words.dtype != np.uint64:
        raise SiteProblems({site: f"site {site} answered with something else than words"})
    return words

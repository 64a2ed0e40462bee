"""A site of a study: it accepts one plan and one roster, and from then on answers numbered questions in order.

Nothing about its rows decides whether or how it answers. A message has the same size whatever the rows are; if its
numbers cannot be computed it is random, so that the sum over all sites is, and the reason stays in the site's log.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedscaffold.core.checks import positive
from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.core.protocols import Engine
from fedscaffold.federation.client.store import MemoryStore, SiteStore
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.study.numbers import Words, encode
from fedscaffold.federation.study.plan import StudyPlan
from fedscaffold.federation.study.questions import (
    ONCE,
    PHASES,
    Question,
    allowed,
    blocks_of,
    numbers_for,
    parse_phase,
)
from fedscaffold.federation.study.roster import Masks, Roster, new_key, public_line
from fedscaffold.federation.study.rows import SiteRows, TableFile

PLAN, PROPOSED, ROSTER, STATE, RESULT = "plan", "proposed", "roster", "state", "result"  # names of a site's notes
ROWS_PER_COEFFICIENT = 3  # two matrices of as many coefficients as rows give the rows away
REFUSED = "study-refused"  # name of a value
KIND, DOCUMENT = "study-message", "document"  # names of values
BEGIN = "0" * 64  # the chain before the first question
DIGEST = "[0-9a-f]{64}"


@dataclass(frozen=True, kw_only=True)
class SiteRules:
    """Limits of a site for all plans; a plan beyond them is not accepted.

    Parameters
    ----------
    min_cell
        Least `min_cell` of a plan.
    min_rows
        Least number of rows with which the site takes part.
    min_sites
        Least number of sites of a plan with secure sums.
    allow_hessians
        Whether plans may have sums of Hessians.
    allow_open
        Whether plans may have open sums.
    max_exchanges
        Largest number of questions of a plan.
    epsilon, delta
        The site's privacy budget for all studies together; None for plans without one. What was spent is kept with
        the site's store.
    protect
        Unit of the budget: "rows" or "sites".
    """

    min_cell: int = 5
    min_rows: int = 10
    min_sites: int = 3
    allow_hessians: bool = True
    allow_open: bool = True
    max_exchanges: int = 1000
    epsilon: float | None = None
    delta: float | None = None
    protect: Literal["rows", "sites"] = "rows"

    def __post_init__(self) -> None:
        if (self.epsilon is None) != (self.delta is None):
            raise InvalidInput("a site's privacy budget has both epsilon=... and delta=...")
        for name in ("epsilon", "delta"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))

    def problems(self, plan: StudyPlan) -> list[str]:
        """Return the limits that a plan breaks, in sentences."""
        found = []
        if plan.min_cell < self.min_cell:
            found.append(f"the plan has min_cell = {plan.min_cell}, the site's policy asks for {self.min_cell}")
        if plan.sums == "open" and not self.allow_open:
            found.append("the plan has open sums, which the site's policy does not allow")
        if plan.sums == "secure" and len(plan.sites) < self.min_sites:
            found.append(f"the plan has {len(plan.sites)} sites, the site's policy asks for {self.min_sites}")
        if plan.hessians and plan.epsilon is None and not self.allow_hessians:
            found.append("the plan has sums of Hessians, which the site's policy does not allow")
        if plan.sums == "secure" and plan.hessians and plan.rows is not None and not plan.incomplete:
            dim, few = plan.coding().dim, plan.rows
            if plan.evaluate:  # sums over the rows left out are differences of others
                few = int(plan.rows * min(plan.evaluate, 1.0 - plan.evaluate))
            if plan.epsilon is None and few < ROWS_PER_COEFFICIENT * dim:
                found.append(
                    f"{few:,} rows of all sites together are too few for a matrix of {dim} coefficients, from "
                    "which rows could be computed; three rows per coefficient are needed, or hessians=False"
                )
        if plan.max_exchanges > self.max_exchanges:
            found.append(f"the plan has {plan.max_exchanges} exchanges, the policy allows {self.max_exchanges}")
        if self.epsilon is None or self.delta is None:
            return found
        if plan.epsilon is None or plan.delta is None or plan.protect != self.protect:
            found.append(f"the plan has no privacy budget of {self.protect}, which the site's policy asks for")
        elif plan.epsilon > self.epsilon or plan.delta > self.delta:
            found.append(
                f"the plan spends ε = {plan.epsilon:g} with δ = {plan.delta:g}, the site's policy allows "
                f"{self.epsilon:g} with {self.delta:g}"
            )
        return found


@dataclass
class StudySite:
    """A site that takes part in a study.

    Parameters
    ----------
    name
        Name of the site.
    table
        Its rows: a frame of any library that `data.from_frame` takes, or a `TableFile`.
    key
        Its private key, whose public half is in the roster.
    rules
        Its limits for all plans.
    accept
        accept(plan) → whether the people of the site accept a plan; asked once per plan.
    accept_roster
        accept_roster(roster) → whether they accept a list of sites and keys; asked once.
    engine
        Computes local steps; see `fedscaffold.run`.
    store
        Keeps the site's secret, its log, the accepted plan and the last answer.
    invited
        Digest of the plan of the site's invitation, the only one that it looks at; None without an invitation.
    keep_numbers
        Whether the site's log also keeps its numbers as they were before they were masked; they stay at the site.
    """

    name: str
    table: Any
    key: ec.EllipticCurvePrivateKey = field(default_factory=new_key, repr=False)
    rules: SiteRules = field(default_factory=SiteRules)
    accept: Callable[[StudyPlan], bool] = lambda plan: True
    accept_roster: Callable[[Roster], bool] = lambda roster: True
    engine: str | Engine = "auto"
    store: SiteStore = field(default_factory=MemoryStore)
    invited: str | None = None
    keep_numbers: bool = False
    _plan: tuple[dict[str, Any], StudyPlan] | None = field(default=None, repr=False)
    _rows: tuple[Any, SiteRows] | None = field(default=None, repr=False)
    _masks: Masks | None = field(default=None, repr=False)

    @property
    def public_key(self) -> str:
        """The public half of the site's key."""
        return public_line(self.key, self.name)

    @property
    def log(self) -> tuple[dict[str, Any], ...]:
        """All messages that left the site, in order."""
        return tuple(entry for entry in self.store.audit.read() if entry["event"] == "sent")

    def problems(self, plan: StudyPlan) -> list[str]:
        """Return everything that keeps this site from carrying out a plan; nothing leaves the site."""
        before = self.plan
        surveyed = [name for name in plan.columns if before is not None and not before.columns[name].complete]
        found = self.rules.problems(plan)
        if self.name not in plan.sites:
            found.append(f"the plan has no site called {self.name!r}; its sites are {', '.join(plan.sites)}")
        rows = SiteRows(self._load(), plan, self.store.secret)
        problems = rows.problems(surveyed)
        if not problems and rows.n_rows < self.rules.min_rows:
            problems.append(f"there are {rows.n_rows} rows, the site's policy asks for {self.rules.min_rows}")
        if not problems and plan.protect == "rows" and plan.delta is not None and plan.delta * rows.n_rows >= 1.0:
            problems.append(f"delta must be below one over the {rows.n_rows:,} rows, got {plan.delta:g}")
        return found + problems

    def answer(self, payload: Payload) -> Payload:
        """Return the reply to a message of the coordinator, or the code of why there is none.

        The text of an error may hold values of the table: it goes to the site's log alone.
        """
        try:
            reply, phase = self._reply(payload)
            self._log(phase, reply)
            return reply
        except Refusal as refusal:
            code, text = refusal.code, str(refusal)
        except FedScaffoldError as error:
            code, text = RefusalCode.BAD_REQUEST, str(error)
        except Exception as error:  # whatever it is, its text may hold values of the site's table
            LOG.exception("the site failed")
            code, text = RefusalCode.INTERNAL, str(error)
        LOG.error("rejected (%s): %s", code, text)
        try:
            self.store.audit.write("rejected", code=str(code), text=text)
        except (FedScaffoldError, OSError) as failed:  # a full disk
            LOG.error("this could not be written to the site's log: %s", failed)
        return Payload({REFUSED: str(code)})

    def _reply(self, payload: Payload) -> tuple[Payload, str]:
        fields = Fields(payload.values, "the message")
        kind = fields.choice(KIND, "plan", "roster", "question", "result")
        if kind == "question":
            question = Question(
                plan=fields.text("plan", pattern=DIGEST), roster=fields.text("roster", pattern=DIGEST),
                number=fields.integer("number", least=0), phase=fields.text("phase", longest=40),
                vector=np.asarray(payload.arrays.get("vector", np.zeros(0)), np.float64).ravel(),
            )  # fmt: skip
            return self._answer_question(question), question.phase
        document = json.loads(fields.text(DOCUMENT, longest=10**8))
        if kind == "plan":
            return self._accept_plan(StudyPlan.from_json(document)), kind
        if kind == "roster":
            return self._accept_roster(Roster.from_json(document)), kind
        self.store.save_note(RESULT, Fields(document, "the result").as_dict())
        return Payload({"received": True}), kind

    # the plan and the roster

    @property
    def plan(self) -> StudyPlan | None:
        """The plan that the site accepted; None before."""
        found = self.store.load_note(PLAN)
        if found is None:
            return None
        if self._plan is None or self._plan[0] != found:
            self._plan = (found, StudyPlan.from_json(found))
        return self._plan[1]

    def _accept_plan(self, plan: StudyPlan) -> Payload:
        """Accept a plan once; later only one that fills in what the accepted one left open.

        A plan that was not accepted is not looked at again, nor is any other: a coordinator that could propose
        plan after plan would learn from the answers what the table holds.
        """
        before, looked_at = self.plan, self.store.load_note(PROPOSED) or {"digests": []}
        if before is not None and before.digest == plan.digest:
            return Payload({"accepted": plan.digest, "key": self.public_key})
        if before is None and self.invited not in (None, plan.digest):
            raise Refusal(RefusalCode.OTHER_SETTINGS, "the plan is not that of the invitation")
        if before is not None and not plan.completes(before):
            raise Refusal(RefusalCode.OTHER_SETTINGS, "the plan says something else than the accepted one")
        first_of_its_kind = len(looked_at["digests"]) == (0 if before is None else 1)
        if not first_of_its_kind and looked_at["digests"][-1] != plan.digest:
            raise Refusal(RefusalCode.OTHER_SETTINGS, "another plan was proposed before, and not accepted")
        if first_of_its_kind:
            self.store.save_note(PROPOSED, {"digests": [*looked_at["digests"], plan.digest]})
        problems = self.problems(plan)
        if problems or not self.accept(plan):
            raise Refusal(
                RefusalCode.NOT_ACCEPTED, "; ".join(problems) or "the people of the site do not accept it"
            )
        self.store.save_note(PLAN, plan.to_json())
        self._rows = None
        return Payload({"accepted": plan.digest, "key": self.public_key})

    def _accept_roster(self, roster: Roster) -> Payload:
        plan, before = self.plan, self.store.load_note(ROSTER)
        if plan is None:
            raise Refusal(RefusalCode.NO_AGREEMENT)
        if before is not None and before["keys"] != dict(roster.keys):
            raise Refusal(RefusalCode.PEERS_CHANGED, "the roster is another than the accepted one")
        if sorted(roster.keys) != sorted(plan.sites) or roster.keys[self.name] != self.public_key:
            raise Refusal(RefusalCode.PEERS_CHANGED, "the roster is not that of the plan's sites")
        if before is None:
            if not self.accept_roster(roster):
                raise Refusal(RefusalCode.NOT_ACCEPTED, "the people of the site did not accept the roster")
            self.store.save_note(ROSTER, roster.to_json())
        return Payload({"accepted": roster.digest})

    # questions

    def _answer_question(self, question: Question) -> Payload:
        """Answer a question once; the same one again brings the same message, any other one is rejected."""
        plan, announced = self.plan, self.store.load_note(ROSTER)
        if plan is None or announced is None:
            raise Refusal(RefusalCode.NO_AGREEMENT)
        if self._masks is None or self._masks.roster.plan != plan.digest:
            self._masks = Masks(self.name, self.key, Roster(plan.digest, announced["keys"]))
        roster = self._masks.roster
        if question.plan != plan.digest or question.roster != roster.digest:
            raise Refusal(RefusalCode.OTHER_SETTINGS, "the question is of another plan or roster")
        state = self.store.load_note(STATE) or {"number": -1, "chain": BEGIN, "before": BEGIN, "once": []}
        if question.number == state["number"] and question.extend(state["before"]) == state["chain"]:
            return Payload({"number": question.number}, {"words": _words(state["reply"])})
        if question.number != state["number"] + 1:
            raise Refusal(RefusalCode.REPLAYED, f"question {question.number} does not follow {state['number']}")
        if question.number >= plan.max_exchanges:
            raise Refusal(RefusalCode.POLICY_ROUNDS, f"the plan has at most {plan.max_exchanges} exchanges")
        if not allowed(plan, question.phase):
            raise Refusal(RefusalCode.BAD_REQUEST, f"the plan has no phase {question.phase!r:.40}")
        if question.phase in state["once"]:
            raise Refusal(RefusalCode.POLICY_ROUNDS, f"{question.phase} is answered once")
        if plan.epsilon is not None:
            from fedscaffold.federation.study.private import pay

            pay(plan, self.store, self.rules.epsilon, self.rules.delta)
        chain = question.extend(state["chain"])
        words, local = self._numbers(plan, question, state.get("local", {}))
        if plan.sums == "secure":
            words = self._masks.mask(words, chain)
        once = [question.phase] * (parse_phase(question.phase)[0] in ONCE)
        kept = {
            "number": question.number, "chain": chain, "before": state["chain"], "local": local,
            "once": [*state["once"], *once],
        }  # fmt: skip
        self.store.save_note(STATE, {**kept, "reply": _text(words)})
        return Payload({"number": question.number}, {"words": words})

    def _numbers(
        self, plan: StudyPlan, question: Question, states: dict[str, Any]
    ) -> tuple[Words, dict[str, Any]]:
        """Return the site's numbers as words, random ones if they cannot be computed, and its control variates."""
        blocks = blocks_of(plan, question.phase)
        try:
            with np.errstate(all="ignore"):  # numbers that are not finite become random words
                found = numbers_for(self._current_rows(plan), question.phase, question.vector, states, self.engine)
        except Exception as error:  # whatever it is: a code would say something about the site's rows
            LOG.exception("the site's numbers could not be computed; it sends random ones")
            self.store.audit.write("failed", phase=question.phase, number=question.number, text=str(error))
            found = {block.name: np.full(block.length, np.nan) for block in blocks}
        if self.keep_numbers:
            kept = {name: np.ravel(values).tolist() for name, values in found.items()}
            what = PHASES[parse_phase(question.phase)[0]]
            self.store.audit.write("numbers", phase=question.phase, number=question.number, what=what, values=kept)
        return encode(found, blocks), states

    def _current_rows(self, plan: StudyPlan) -> SiteRows:
        stamp = (plan.digest, self.table.stamp if isinstance(self.table, TableFile) else None)
        if self._rows is None or self._rows[0] != stamp:
            rows = SiteRows(self._load(), plan, self.store.secret)
            self._check_unchanged(rows)
            self._rows = (stamp, rows)
        return self._rows[1]

    def _check_unchanged(self, rows: SiteRows) -> None:
        """Raise if the table is another than the one of the first question."""
        digest = hashlib.sha256()
        for name in rows.plan.used_columns:
            category = name in rows.plan.columns and rows.plan.columns[name].type == "category"
            if category:
                coded = rows.labels(name).dictionary_encode()
                digest.update(json.dumps(coded.dictionary.to_pylist()).encode())
                digest.update(coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).tobytes())
            else:
                digest.update(rows.numbers(name).tobytes())
        found, before = {"sha256": digest.hexdigest()}, self.store.load_note("table")
        if before is None:
            self.store.save_note("table", found)
        elif before != found:
            raise InvalidInput("the site's table has changed since the first question; restore it")

    def _load(self) -> Any:
        return self.table.load() if isinstance(self.table, TableFile) else self.table

    def _log(self, phase: str, reply: Payload) -> None:
        """Write down what leaves the site, before it leaves."""
        words = reply.arrays.get("words")
        entry: dict[str, Any] = {"phase": phase, "values": dict(reply.values)}
        if words is not None:
            plan = self.plan
            entry |= {
                "what": PHASES[parse_phase(phase)[0]],
                "masked": plan is not None and plan.sums == "secure",
                "numbers": sum(block.length for block in blocks_of(plan, phase)) if plan is not None else 0,
                "bytes": int(words.nbytes),
                "sha256": hashlib.sha256(words.tobytes()).hexdigest(),
            }
        self.store.audit.write("sent", **entry)


def refusal_in(payload: Payload) -> RefusalCode | None:
    """Return the code with which a site rejected a message; None if the payload is a reply."""
    if REFUSED not in payload.values:
        return None
    found = payload.values[REFUSED]
    known = isinstance(found, str) and found in set(RefusalCode)
    return RefusalCode(found) if known else RefusalCode.INTERNAL


def _text(words: Words) -> str:
    return b64encode(words.astype("<u8").tobytes()).decode()


def _words(text: str) -> Words:
    return np.frombuffer(b64decode(text), "<u8").astype(np.uint64)

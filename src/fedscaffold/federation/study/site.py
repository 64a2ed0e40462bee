"""A site's side of a study: its table, what it allows, what it has accepted, and a log of all that left it."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Engine
from fedscaffold.core.storage.fields import Fields
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.requests import handle_request
from fedscaffold.federation.client.store import MemoryStore, SiteStore
from fedscaffold.federation.client.task import ProblemTask
from fedscaffold.federation.payloads import Payload, pack_reply, unpack_request
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.study.certificate import pack_sums
from fedscaffold.federation.study.evaluate import SiteEvaluation, evaluate_site, rows_left_out
from fedscaffold.federation.study.greet import ColumnKind, describe_table
from fedscaffold.federation.study.measure import measure_site
from fedscaffold.federation.study.messages import StudyMessage, is_study_message, pack, unpack
from fedscaffold.federation.study.prepare import recode, sum_table
from fedscaffold.federation.study.report.traffic import Traffic
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.inference import client_sums

Accept = Callable[[Agreement], bool]


@dataclass(frozen=True, kw_only=True)
class SiteRules:
    """What a site tells in a study, whatever the coordinator asks.

    Parameters
    ----------
    min_cell
        Counts below this never leave the site.
    tell_rows
        Whether the number of rows is told in the greeting. Sums always tell how many rows are behind them.
    allow_hessians
        Whether sums of second derivatives may be asked for.
    max_hessian_dim
        Largest number of coefficients for which they may.
    by_the_clock
        Whether the site tells how long a local step really takes; a nominal speed otherwise.
    """

    min_cell: int = 5
    tell_rows: bool = True
    allow_hessians: bool = True
    max_hessian_dim: int = 1000
    by_the_clock: bool = True


@dataclass
class StudySite:
    """A site that takes part in a study.

    Parameters
    ----------
    name
        Name of the site.
    table
        Its rows, a frame of any library that `data.from_frame` takes.
    rules
        What it tells.
    policy
        What it allows in training.
    accept
        accept(agreement) → whether the site takes part with this encoding.
    engine
        Computes local steps; see `fedscaffold.run`.
    """

    name: str
    table: Any
    rules: SiteRules = field(default_factory=SiteRules)
    policy: SitePolicy = field(default_factory=SitePolicy)
    accept: Accept = lambda agreement: True
    engine: str | Engine = "auto"
    store: SiteStore = field(default_factory=MemoryStore)
    agreement: Agreement | None = None

    @property
    def log(self) -> tuple[dict[str, Any], ...]:
        """All messages that left the site, in order."""
        return tuple(entry for entry in self.store.audit.read() if entry["event"] == "sent")

    def answer(self, payload: Payload) -> Payload:
        """The reply to a message of the coordinator; every reply is logged before it leaves."""
        reply, phase = self._reply(payload)
        self._note(phase, reply)
        return reply

    def _reply(self, payload: Payload) -> tuple[Payload, str]:
        if not is_study_message(payload):
            request = unpack_request(payload)
            task = self._training_task if request.config.name.endswith(".evaluation") else self._task
            return pack_reply(handle_request(request, task, self.store, self.policy)), "train"
        message = unpack(payload, "the coordinator")
        answer: dict[str, Callable[[StudyMessage], StudyMessage]] = {
            "greet": self._greet,
            "prepare": self._prepare,
            "agree": self._agree,
            "measure": self._measure,
            "sums": self._sums,
            "evaluate": self._evaluate,
        }
        return pack(answer[message.phase](message)), message.phase

    def _greet(self, message: StudyMessage) -> StudyMessage:
        settings = StudySettings.from_json(message.body["settings"])
        schema = describe_table(self.table, categorical=settings.categorical, tell_rows=self.rules.tell_rows)
        most = self.rules.max_hessian_dim if self.rules.allow_hessians else 0
        return StudyMessage("greet", replace(schema, max_hessian_dim=most).to_json())

    def _prepare(self, message: StudyMessage) -> StudyMessage:
        settings = StudySettings.from_json(message.body["settings"])
        kinds: dict[str, ColumnKind] = dict(Fields(message.body["kinds"], "the request").as_dict())
        least = max(self.rules.min_cell, settings.min_cell)
        return StudyMessage("prepare", sum_table(self.table, kinds, settings, min_cell=least).to_json())

    def _agree(self, message: StudyMessage) -> StudyMessage:
        agreement = Agreement.from_json(message.body["agreement"])
        accepted = self.accept(agreement)
        if accepted:
            self.agreement = agreement
            self._forget_problem()
            if self._problem.dim == 0:
                raise InvalidInput("the agreement has no coefficients")
        return StudyMessage("agree", {"accepted": accepted})

    def _measure(self, message: StudyMessage) -> StudyMessage:
        return StudyMessage("measure", measure_site(self._problem, by_the_clock=self.rules.by_the_clock).to_json())

    def _sums(self, message: StudyMessage) -> StudyMessage:
        problem = self._training_problem if message.body["part"] else self._problem
        wanted = Fields(message.body, "the request")
        theta = Fields(message.arrays, "the request").array("theta", (problem.dim,))
        if not wanted.flag("hessian"):
            n = int(problem.sizes[0])
            body = {"rows": n, "loss": n * float(problem.loss(theta))}
            return StudyMessage("sums", body, {"gradient": n * problem.gradient(theta)})
        if not self.rules.allow_hessians or problem.dim > self.rules.max_hessian_dim:
            raise Refusal(RefusalCode.POLICY_HESSIAN)
        scores = wanted.flag("scores")
        return StudyMessage("sums", *pack_sums(client_sums(problem, 0, theta, scores=scores), scores=scores))

    def _evaluate(self, message: StudyMessage) -> StudyMessage:
        least = max(self.rules.min_cell, int(message.body["min_cell"]))
        theta = Fields(message.arrays, "the request").array("theta", (self._problem.dim,))
        rows = np.flatnonzero(self._left_out)
        if rows.size < max(least, 1):
            return StudyMessage("evaluate", SiteEvaluation(n_rows=0).to_json())
        found = evaluate_site(self._problem.take_rows(rows), self._training_problem, theta, min_cell=least)
        return StudyMessage("evaluate", found.to_json())

    # the site's rows

    @cached_property
    def _problem(self) -> EncodedProblem:
        if self.agreement is None:
            raise Refusal(RefusalCode.NO_AGREEMENT)
        return self.agreement.problem(recode(self.table, self.agreement))

    @cached_property
    def _left_out(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        assert self.agreement is not None
        return rows_left_out(int(self._problem.sizes[0]), self.agreement.evaluate, self.store.secret)

    @cached_property
    def _training_problem(self) -> EncodedProblem:
        return self._problem.take_rows(np.flatnonzero(~self._left_out))

    @cached_property
    def _task(self) -> ProblemTask:
        return ProblemTask(self._problem, self.engine)

    @cached_property
    def _training_task(self) -> ProblemTask:
        return ProblemTask(self._training_problem, self.engine)

    def _forget_problem(self) -> None:
        for name in ("_problem", "_left_out", "_training_problem", "_task", "_training_task"):
            self.__dict__.pop(name, None)

    def _note(self, phase: str, reply: Payload) -> None:
        """Write to the log what leaves the site: the values themselves, and of vectors length and digest."""
        vectors = {
            name: {
                "numbers": int(np.size(array)),
                "sha256": hashlib.sha256(np.ascontiguousarray(array).data).hexdigest(),
            }
            for name, array in reply.arrays.items()
        }
        values = {name: json.loads(v) if name == "body" else v for name, v in reply.values.items()}
        size = Traffic.of(reply).bytes
        self.store.audit.write("sent", phase=phase, bytes=size, values=values, vectors=vectors)

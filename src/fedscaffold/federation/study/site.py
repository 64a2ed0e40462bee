"""A site's side of a study: its table, what it allows, what it has accepted, and a log of all that left it."""

import dataclasses
import hashlib
import json
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.protocols import Engine
from fedscaffold.core.storage.fields import Fields
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.requests import handle_request
from fedscaffold.federation.client.store import MemoryStore, SiteStore
from fedscaffold.federation.log import LOG
from fedscaffold.federation.payloads import Payload, pack_reply, unpack_request
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.study.certificate import SumsAsked, pack_sums
from fedscaffold.federation.study.evaluate import SiteEvaluation, evaluate_site, with_intercept_of
from fedscaffold.federation.study.greet import PROTOCOL, ColumnKind, SiteSchema, agree_on_columns, describe_table
from fedscaffold.federation.study.measure import measure_site
from fedscaffold.federation.study.messages import (
    Address,
    StudyMessage,
    address_of,
    is_study_message,
    pack,
    pack_refusal,
    unpack,
)
from fedscaffold.federation.study.prepare import check_sites, sum_table
from fedscaffold.federation.study.report.traffic import Traffic
from fedscaffold.federation.study.rows import AgreedRows, TableFile
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.inference import client_sums

Accept = Callable[[Agreement], bool]
T = TypeVar("T")


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

    def __post_init__(self) -> None:
        fields = Fields(dataclasses.asdict(self), "the rules of the site")
        fields.integer("min_cell", least=1)
        fields.integer("max_hessian_dim", least=0)
        for name in ("tell_rows", "allow_hessians", "by_the_clock"):
            fields.flag(name)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read rules from the table [study] of a policy's TOML file; those that are missing have their defaults.

        Parameters
        ----------
        path
            The file that `SitePolicy.load` reads, with lines such as ``min_cell = 10`` below ``[study]``.
        """
        try:
            found = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("study", {})
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidInput(f"cannot read the policy {os.fspath(path)}: {error}") from None
        try:
            fields = Fields(found, "[study]")
            fields.only(*(field.name for field in dataclasses.fields(cls)))
            return cls(**fields.as_dict())
        except InvalidInput as error:
            raise InvalidInput(f"{os.fspath(path)}: {error}") from None


@dataclass
class StudySite:
    """A site that takes part in studies.

    Parameters
    ----------
    name
        Name of the site.
    table
        Its rows: a frame of any library that `data.from_frame` takes, or a `TableFile`, which is read when rows
        are first needed.
    rules
        What it tells.
    policy
        What it allows in training.
    accept
        accept(agreement) → whether the site takes part with this encoding. An agreement that was accepted before
        is not asked about again.
    engine
        Computes local steps; see `fedscaffold.run`.
    store
        Where the site keeps its secret, its log, what it accepted and its control variates.
    study_name
        Name of the study that the site was invited to; None if its policy alone decides.
    """

    name: str
    table: Any
    rules: SiteRules = field(default_factory=SiteRules)
    policy: SitePolicy = field(default_factory=SitePolicy)
    accept: Accept = lambda agreement: True
    engine: str | Engine = "auto"
    store: SiteStore = field(default_factory=MemoryStore)
    study_name: str | None = None
    _rows: tuple[str, Any, AgreedRows] | None = field(default=None, repr=False)

    @property
    def log(self) -> tuple[dict[str, Any], ...]:
        """All messages that left the site, in order."""
        return tuple(entry for entry in self.store.audit.read() if entry["event"] == "sent")

    def check(self, settings: StudySettings) -> SiteSchema:
        """What the site would tell first; refused if its table cannot be used, whoever else takes part."""
        schema = describe_table(self._table, categorical=settings.categorical, tell_rows=self.rules.tell_rows)
        kinds = agree_on_columns({self.name: schema}, settings)
        sums = sum_table(self._table, kinds, settings, min_cell=max(self.rules.min_cell, settings.min_cell))
        check_sites({self.name: sums}, kinds, settings)
        return schema

    def answer(self, payload: Payload) -> Payload:
        """The reply to a message of the coordinator; every reply is logged before it leaves."""
        reply, phase = self._reply(payload)
        self._note(phase, reply)
        return reply

    def answer_or_code(self, read: Callable[[], Payload]) -> Payload:
        """The reply to the message that `read` returns, or the code of what went wrong.

        The text, which may hold values of the table, goes to the site's own log.
        """
        try:
            return self.answer(read())
        except Refusal as refusal:
            code, text = refusal.code, str(refusal)
        except FedScaffoldError as error:
            code, text = RefusalCode.DATA_UNREADABLE, str(error)
        except Exception as error:  # whatever it is, its text may hold values of the site's table
            LOG.exception("the site failed")
            code, text = RefusalCode.INTERNAL, str(error)
        LOG.error("refused (%s): %s", code, text)
        reply = pack_refusal(code)
        try:
            self.store.audit.write("refused", code=str(code), text=text)
            self._note("refused", reply)
        except (FedScaffoldError, OSError) as failed:  # a full disk
            LOG.error("this could not be written to the site's log: %s", failed)
        return reply

    def _reply(self, payload: Payload) -> tuple[Payload, str]:
        address = _parsed(lambda: address_of(payload))
        self.policy.check_name(address.name)
        if self.study_name is not None and address.name != self.study_name:
            raise Refusal(
                RefusalCode.OTHER_STUDY,
                f"the request is of the study {address.name}, the invitation was to {self.study_name}",
            )
        if self.policy.keep_back:
            raise Refusal(RefusalCode.POLICY_KEEP_BACK, "studies use all rows, but the policy keeps rows back")
        if not is_study_message(payload):
            request = _parsed(lambda: unpack_request(payload))
            task = self._agreed(address).task(address.part)
            return pack_reply(handle_request(request, task, self.store, self.policy)), "train"
        message = _parsed(lambda: unpack(payload, "the coordinator"))
        answer: dict[str, Callable[[StudyMessage, Address], StudyMessage]] = {
            "greet": self._greet,
            "prepare": self._prepare,
            "agree": self._agree,
            "measure": self._measure,
            "sums": self._sums,
            "evaluate": self._evaluate,
            "finish": self._finish,
        }
        return pack(answer[message.phase](message, address)), message.phase

    def _greet(self, message: StudyMessage, address: Address) -> StudyMessage:
        if message.body.get("protocol") != PROTOCOL:
            raise Refusal(
                RefusalCode.OTHER_PROTOCOL,
                f"the coordinator has version {message.body.get('protocol')!r:.20} of the protocol, this site "
                f"version {PROTOCOL}; install the same version of fedscaffold on both",
            )
        settings = _settings(message)
        schema = describe_table(self._table, categorical=settings.categorical, tell_rows=self.rules.tell_rows)
        most = self.rules.max_hessian_dim if self.rules.allow_hessians else 0
        return StudyMessage("greet", replace(schema, max_hessian_dim=most).to_json())

    def _prepare(self, message: StudyMessage, address: Address) -> StudyMessage:
        settings = _settings(message)
        kinds: dict[str, ColumnKind] = _parsed(
            lambda: Fields(message.body, "the request").fields("kinds").as_dict()
        )
        least = max(self.rules.min_cell, settings.min_cell)
        return StudyMessage("prepare", sum_table(self._table, kinds, settings, min_cell=least).to_json())

    def _agree(self, message: StudyMessage, address: Address) -> StudyMessage:
        told: dict[str, Any] = _parsed(lambda: Fields(message.body, "the request").fields("agreement").as_dict())
        agreement = _parsed(lambda: Agreement.from_json(told))
        before = self.store.load_note("accepted")
        if (before is None or before["agreement"] != told) and not self.accept(agreement):
            return StudyMessage("agree", {"accepted": False})
        rows = AgreedRows(self._table, agreement, self.store.secret, self.engine)
        if rows.problem.sizes[0] < self.policy.min_rows:
            raise Refusal(
                RefusalCode.POLICY_ROWS,
                f"there are {rows.problem.sizes[0]} rows, the policy asks for {self.policy.min_rows}",
            )
        self._rows = (address.study, self._stamp, rows)
        self.store.save_note(
            "accepted", {"study": address.study, "agreement": told, "data": rows.problem.fingerprint()}
        )
        return StudyMessage("agree", {"accepted": True})

    def _measure(self, message: StudyMessage, address: Address) -> StudyMessage:
        problem = self._agreed(address).problem
        return StudyMessage("measure", measure_site(problem, by_the_clock=self.rules.by_the_clock).to_json())

    def _sums(self, message: StudyMessage, address: Address) -> StudyMessage:
        problem = self._agreed(address).problem_of(address.part)
        asked = _parsed(lambda: SumsAsked.from_json(message.body))
        theta = _parsed(lambda: Fields(message.arrays, "the request").array("theta", (problem.dim,)))
        own = self._agreed(address).agreement.client_intercepts
        if not asked.hessian:
            return StudyMessage("sums", *_loss_and_gradient(problem, theta, own_intercept=own))
        if not self.rules.allow_hessians or problem.dim > self.rules.max_hessian_dim:
            raise Refusal(RefusalCode.POLICY_HESSIAN)
        found = client_sums(problem, 0, theta, scores=asked.scores, intercept=own)
        return StudyMessage("sums", *pack_sums(found, asked))

    def _evaluate(self, message: StudyMessage, address: Address) -> StudyMessage:
        agreed = self._agreed(address)
        least = max(
            self.rules.min_cell, _parsed(lambda: Fields(message.body, "the request").integer("min_cell", least=1))
        )
        theta = _parsed(lambda: Fields(message.arrays, "the request").array("theta", (agreed.problem.dim,)))
        rows = np.flatnonzero(agreed.left_out)
        if rows.size < max(least, 1):
            return StudyMessage("evaluate", SiteEvaluation(n_rows=0).to_json())
        left_out, judged = agreed.problem.take_rows(rows), agreed.judged_problem
        if agreed.agreement.client_intercepts:
            left_out, judged = with_intercept_of(judged, left_out, judged, theta=theta)
        found = evaluate_site(left_out, judged, theta, min_cell=least)
        return StudyMessage("evaluate", found.to_json())

    def _finish(self, message: StudyMessage, address: Address) -> StudyMessage:
        self.store.save_note("result", message.body)
        return StudyMessage("finish", {"received": True})

    # the site's rows

    @property
    def _table(self) -> Any:
        return self.table.load() if isinstance(self.table, TableFile) else self.table

    @property
    def _stamp(self) -> Any:
        return self.table.stamp if isinstance(self.table, TableFile) else None

    def _agreed(self, address: Address) -> AgreedRows:
        """The rows in the encoding that the site accepted for a study; refused if they are no longer the same."""
        if self._rows is not None and self._rows[:2] == (address.study, self._stamp):
            return self._rows[2]
        accepted = self.store.load_note("accepted")
        if accepted is None or accepted["study"] != address.study:
            raise Refusal(RefusalCode.NO_AGREEMENT)
        agreement = Agreement.from_json(accepted["agreement"])
        rows = AgreedRows(self._table, agreement, self.store.secret, self.engine)
        if rows.problem.fingerprint() != accepted["data"]:
            text = "the site's table has changed since it accepted the agreement"
            self.store.audit.write("data-changed", text=text)
            if self.policy.changed_data == "refuse":
                raise Refusal(RefusalCode.DATA_CHANGED, f"{text}; restore it, or start a new study")
            LOG.warning(text)
        self._rows = (address.study, self._stamp, rows)
        return rows

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


def _loss_and_gradient(
    problem: EncodedProblem, theta: Array, *, own_intercept: bool
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Rows, Σ f and Σ ∇f of a site's rows at θ, with the penalty."""
    n = int(problem.sizes[0])
    if not own_intercept:
        return {"rows": n, "loss": n * float(problem.loss(theta))}, {"gradient": n * problem.gradient(theta)}
    found, penalty = client_sums(problem, 0, theta, scores=False, intercept=True), n * problem.penalty
    body = {"rows": n, "loss": found.loss + 0.5 * float(penalty @ theta**2)}
    return body, {"gradient": found.gradient + penalty * theta}


def _settings(message: StudyMessage) -> StudySettings:
    return _parsed(lambda: StudySettings.from_json(Fields(message.body, "the request").value("settings")))


def _parsed(part: Callable[[], T]) -> T:
    """What a part of the request holds; a text about what is invalid in it becomes a refusal."""
    try:
        return part()
    except InvalidInput as error:
        raise Refusal(RefusalCode.BAD_REQUEST, str(error)) from None

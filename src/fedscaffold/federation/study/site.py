"""A site's side of a study: its table, what it allows, what it has accepted, and a log of all that left it."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.core.files import Fields
from fedscaffold.core.protocols import Engine
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.requests import handle_request
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.client.store import MemoryStore, SiteStore
from fedscaffold.federation.log import LOG
from fedscaffold.federation.payloads import Payload, pack_reply, unpack_request
from fedscaffold.federation.refusals import Refusal, RefusalCode, parsed
from fedscaffold.federation.study.certificate import SumsAsked, pack_sums
from fedscaffold.federation.study.evaluate import SiteEvaluation, evaluate_site, with_intercept_of
from fedscaffold.federation.study.greet import PROTOCOL, ColumnKind, SiteSchema, agree_on_columns, describe_table
from fedscaffold.federation.study.measure import measure_site
from fedscaffold.federation.study.messages import (
    SECURE_STEP,
    Address,
    StudyMessage,
    address_of,
    is_study_message,
    pack,
    pack_refusal,
    unpack,
)
from fedscaffold.federation.study.prepare import check_sites, sum_table
from fedscaffold.federation.study.private.at_site import (
    check_answered,
    check_budget,
    check_public,
    public_agreement,
)
from fedscaffold.federation.study.report.traffic import Traffic
from fedscaffold.federation.study.rows import AgreedRows, TableFile, recode
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.inference import client_sums

if TYPE_CHECKING:
    from fedscaffold.federation.study.secure.taking_part import TakingPart

Accept = Callable[[Agreement], bool]
OPEN = ("greet", "peers", "labels", "agree", "finish")  # phases that are told openly in studies with secure sums


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
    settings
        What the people of that study decided, as the invitation says; None if there was none.
    secure
        Whether the site's numbers leave it in secure sums only.
    secure_threshold
        secure_threshold(number of sites) → the least threshold of a secure sum.
    accept_peers
        accept_peers(fingerprints by site) → whether the site adds its numbers up with sites that have these keys.
    """

    name: str
    table: Any
    rules: SiteRules = field(default_factory=SiteRules)
    policy: SitePolicy = field(default_factory=SitePolicy)
    accept: Accept = lambda agreement: True
    engine: str | Engine = "auto"
    store: SiteStore = field(default_factory=MemoryStore)
    study_name: str | None = None
    settings: StudySettings | None = None
    secure: bool = False
    secure_threshold: Callable[[int], int] = lambda n_sites: n_sites // 2 + 1
    accept_peers: Callable[[Mapping[str, str]], bool] = lambda fingerprints: True
    _rows: tuple[str, Any, AgreedRows] | None = field(default=None, repr=False)
    _refused: tuple[str, dict[str, Any]] | None = field(default=None, repr=False)  # the last study and agreement

    @property
    def log(self) -> tuple[dict[str, Any], ...]:
        """All messages that left the site, in order."""
        return tuple(entry for entry in self.store.audit.read() if entry["event"] == "sent")

    def check(self, settings: StudySettings) -> SiteSchema:
        """What the site would tell first; refused if its table cannot be used, whoever else takes part."""
        schema = self._schema(settings)
        kinds = agree_on_columns({self.name: schema}, settings)
        if settings.budget is not None:
            if settings.protect == "rows":
                settings.budget.delta_for([schema.n_rows or 1])
            agreement = public_agreement(settings, schema.n_rows or 0)
            agreement.problem(recode(self.current_table, agreement))
            return schema
        sums = sum_table(self.current_table, kinds, settings, min_cell=max(self.rules.min_cell, settings.min_cell))
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
        address = parsed(lambda: address_of(payload))
        self.policy.check_name(address.name)
        if self.study_name is not None and address.name != self.study_name:
            raise Refusal(
                RefusalCode.OTHER_STUDY,
                f"the request is of the study {address.name}, the invitation was to {self.study_name}",
            )
        if self.policy.keep_back:
            raise Refusal(RefusalCode.POLICY_KEEP_BACK, "studies use all rows, but the policy keeps rows back")
        if SECURE_STEP in payload.values:
            return self._secure_sums.answer(payload)
        if not is_study_message(payload):
            if self.secure:
                raise Refusal(RefusalCode.ONLY_SECURE)
            request = parsed(lambda: unpack_request(payload))
            task = self.agreed_rows(address).task(address.part)
            return pack_reply(handle_request(request, task, self.store, self.policy)), "train"
        message = parsed(lambda: unpack(payload, "the coordinator"))
        check_answered(message.phase, self.policy)
        if self.secure and message.phase not in OPEN:
            raise Refusal(RefusalCode.ONLY_SECURE)
        answer: dict[str, Callable[[StudyMessage, Address], StudyMessage]] = {
            "greet": self._greet,
            "peers": self._peers,
            "labels": self._labels,
            "prepare": self._prepare,
            "agree": self._agree,
            "measure": self._measure,
            "sums": self.sums_at,
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
        settings = self.settings_in(message)
        check_budget(self.policy, settings)
        schema = self._schema(settings)
        schema = replace(schema, max_hessian_dim=self.rules.max_hessian_dim if self.rules.allow_hessians else 0)
        if settings.secure:
            from fedscaffold.federation.study.secure.peers import identity_in_hexadecimal

            schema = replace(schema, identity=identity_in_hexadecimal(self.store))
        elif self.secure:
            raise Refusal(RefusalCode.ONLY_SECURE)
        return StudyMessage("greet", schema.to_json())

    def settings_in(self, message: StudyMessage) -> StudySettings:
        """Return the settings that a request names; raise unless they are those of the invitation.

        The invitation binds: a coordinator cannot ask for other columns, classes or smaller counts than the people
        of the site have read.
        """
        found = parsed(lambda: StudySettings.from_json(Fields(message.body, "the request").value("settings")))
        if self.settings is not None and found != self.settings:
            raise Refusal(RefusalCode.OTHER_SETTINGS)
        return found

    def _schema(self, settings: StudySettings) -> SiteSchema:
        # a privacy budget of rows takes their number as public, one of sites keeps it secret
        public = settings.epsilon is not None and settings.protect == "rows"
        tell_rows = self.rules.tell_rows and (public or not settings.secure) and settings.protect == "rows"
        return describe_table(self.current_table, categorical=settings.categorical, tell_rows=tell_rows)

    def _peers(self, message: StudyMessage, address: Address) -> StudyMessage:
        from fedscaffold.federation.study.secure.peers import pin_peers, read_peers

        told = parsed(lambda: read_peers(message.body))
        return StudyMessage("peers", {"accepted": pin_peers(self.store, self.name, told, self.accept_peers)})

    def _labels(self, message: StudyMessage, address: Address) -> StudyMessage:
        from fedscaffold.federation.study.secure.tables import frequent_labels

        settings, kinds = self.settings_in(message), _kinds(message)
        least = max(self.rules.min_cell, settings.min_cell)
        return StudyMessage(
            "labels", {"labels": frequent_labels(self.current_table, kinds, settings, min_cell=least)}
        )

    @cached_property
    def _secure_sums(self) -> "TakingPart":
        """The site's part in secure sums, whose keys live in this process alone."""
        from fedscaffold.federation.study.secure.at_site import numbers_at_site
        from fedscaffold.federation.study.secure.taking_part import TakingPart

        return TakingPart(self, partial(numbers_at_site, self))

    def _prepare(self, message: StudyMessage, address: Address) -> StudyMessage:
        settings = self.settings_in(message)
        kinds = _kinds(message)
        least = max(self.rules.min_cell, settings.min_cell)
        return StudyMessage("prepare", sum_table(self.current_table, kinds, settings, min_cell=least).to_json())

    def _agree(self, message: StudyMessage, address: Address) -> StudyMessage:
        told: dict[str, Any] = parsed(lambda: Fields(message.body, "the request").fields("agreement").as_dict())
        agreement = parsed(lambda: Agreement.from_json(told))
        check_public(agreement, self.policy, self.settings)
        before = self.store.load_note("accepted")
        if before is None or before["agreement"] != told:
            asked = (address.study, told)
            if self._refused == asked or not self.accept(agreement):  # nobody is asked twice about one agreement
                self._refused = asked
                return StudyMessage("agree", {"accepted": False})
        rows = AgreedRows(self.current_table, agreement, self.store.secret, self.engine)
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
        problem = self.agreed_rows(address).problem
        return StudyMessage("measure", measure_site(problem, by_the_clock=self.rules.by_the_clock).to_json())

    def sums_at(self, message: StudyMessage, address: Address) -> StudyMessage:
        """Sums of loss, gradient and, where it is allowed, Hessian over the site's rows at a model."""
        problem = self.agreed_rows(address).problem_of(address.part)
        asked = parsed(lambda: SumsAsked.from_json(message.body))
        theta = parsed(lambda: Fields(message.arrays, "the request").array("theta", (problem.dim,)))
        own = self.agreed_rows(address).agreement.client_intercepts
        if not asked.hessian:
            return StudyMessage("sums", *_loss_and_gradient(problem, theta, own_intercept=own))
        if not self.rules.allow_hessians or problem.dim > self.rules.max_hessian_dim:
            raise Refusal(RefusalCode.POLICY_HESSIAN)
        found = client_sums(problem, 0, theta, scores=asked.scores, intercept=own)
        return StudyMessage("sums", *pack_sums(found, asked))

    def _evaluate(self, message: StudyMessage, address: Address) -> StudyMessage:
        left_out, judged, theta, least = self.rows_to_judge(message, address)
        if left_out is None or int(left_out.sizes[0]) < least:
            return StudyMessage("evaluate", SiteEvaluation(n_rows=0).to_json())
        return StudyMessage("evaluate", evaluate_site(left_out, judged, theta, min_cell=least).to_json())

    def rows_to_judge(
        self, message: StudyMessage, address: Address
    ) -> tuple[EncodedProblem | None, EncodedProblem, Array, int]:
        """Rows that training left out, if any, the others, the model to judge, and the least count to tell."""
        agreed = self.agreed_rows(address)
        least = parsed(lambda: Fields(message.body, "the request").integer("min_cell", least=1))
        least = max(least, 1 if self.settings is None else self.settings.min_cell)
        theta = parsed(lambda: Fields(message.arrays, "the request").array("theta", (agreed.problem.dim,)))
        least, rows, judged = (
            max(self.rules.min_cell, least),
            np.flatnonzero(agreed.left_out),
            agreed.judged_problem,
        )
        if not rows.size:
            return None, judged, theta, least
        left_out = agreed.problem.take_rows(rows)
        if agreed.agreement.client_intercepts:
            left_out, judged = with_intercept_of(judged, left_out, judged, theta=theta)
        return left_out, judged, theta, least

    def _finish(self, message: StudyMessage, address: Address) -> StudyMessage:
        self.store.save_note("result", message.body)
        return StudyMessage("finish", {"received": True})

    # the site's rows

    @property
    def current_table(self) -> Any:
        """The site's rows as they are now."""
        return self.table.load() if isinstance(self.table, TableFile) else self.table

    @property
    def _stamp(self) -> Any:
        return self.table.stamp if isinstance(self.table, TableFile) else None

    def accepted(self, address: Address) -> dict[str, Any] | None:
        """The agreement that the site accepted for a study and a digest of its rows then; None before that."""
        found = self.store.load_note("accepted")
        return found if found is not None and found["study"] == address.study else None

    def agreed_rows(self, address: Address) -> AgreedRows:
        """The rows in the encoding that the site accepted for a study; refused if they are no longer the same."""
        if self._rows is not None and self._rows[:2] == (address.study, self._stamp):
            return self._rows[2]
        accepted = self.accepted(address)
        if accepted is None:
            raise Refusal(RefusalCode.NO_AGREEMENT)
        agreement = Agreement.from_json(accepted["agreement"])
        rows = AgreedRows(self.current_table, agreement, self.store.secret, self.engine)
        if rows.problem.fingerprint() != accepted["data"]:
            text = "the site's table has changed since it accepted the agreement"
            self.store.audit.write("data-changed", text=text)
            if self.policy.changed_data == "refuse":
                raise Refusal(RefusalCode.DATA_CHANGED, f"{text}; restore it, or start a new study")
            LOG.warning(text)
        self._rows = (address.study, self._stamp, rows)
        return rows

    def _note(self, phase: str, reply: Payload) -> None:
        """Write to the log what leaves the site: the values themselves, and of vectors length and digest.

        Of secure sums the log says what a message is, since its values are keys and masked numbers.
        """
        vectors = {
            name: {
                "numbers": int(np.size(array)),
                "sha256": hashlib.sha256(np.ascontiguousarray(array).data).hexdigest(),
            }
            for name, array in reply.arrays.items()
        }
        if SECURE_STEP in reply.values:
            from fedscaffold.federation.study.secure.taking_part import log_entry

            values = log_entry(reply)
        else:
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


def _kinds(message: StudyMessage) -> dict[str, ColumnKind]:
    return parsed(lambda: Fields(message.body, "the request").fields("kinds").as_dict())

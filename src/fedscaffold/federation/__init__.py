"""The protocol of real federations without any transport: messages, checks, files and repair of states.

A transport, such as Flower in `fedscaffold.flower`, carries a `TrainRequest` to each client and its reply back.

`server/` is the server's side: one round, the rules and checks, the ledger, its files and status. `client/` is a
site's side: its policy, its work and files, and how it answers. Both use `messages`, `payloads` (their form on the
wire, and its validation), `history` (the run's identity), `refusals` (codes), `run_config` and `log`.
"""

from typing import TYPE_CHECKING

from fedscaffold.core.imports import load_on_demand

if TYPE_CHECKING:
    from fedscaffold.federation.client.policy import SitePolicy
    from fedscaffold.federation.client.requests import handle_request
    from fedscaffold.federation.client.task import LocalTask, ProblemTask
    from fedscaffold.federation.log import AuditLog
    from fedscaffold.federation.messages import ClientFailed, ClientRefused, ClientUpdate, StateLost, TrainRequest
    from fedscaffold.federation.refusals import Refusal, RefusalCode
    from fedscaffold.federation.run_config import RunConfig
    from fedscaffold.federation.server.backup import StateBackup
    from fedscaffold.federation.server.ledger import Ledger, initial_ledger, train_request
    from fedscaffold.federation.server.round import RoundResult, run_round
    from fedscaffold.federation.server.rules import RoundRules, TooFewClients
    from fedscaffold.federation.server.status import RunStatus, run_status
    from fedscaffold.federation.study.dry_run import dry_run
    from fedscaffold.federation.study.plan import StudyPlan, StudySettings
    from fedscaffold.federation.study.site_page import write_site_page
    from fedscaffold.federation.study.status import StatusBoard, StudyStatus, study_status
    from fedscaffold.federation.study.study import Study, StudyResult
    from fedscaffold.models.coding import Agreement

__all__ = [
    "Agreement",
    "AuditLog",
    "ClientFailed",
    "ClientRefused",
    "ClientUpdate",
    "Ledger",
    "LocalTask",
    "ProblemTask",
    "Refusal",
    "RefusalCode",
    "RoundResult",
    "RoundRules",
    "RunConfig",
    "RunStatus",
    "SitePolicy",
    "StateBackup",
    "StateLost",
    "StatusBoard",
    "Study",
    "StudyPlan",
    "StudyResult",
    "StudySettings",
    "StudyStatus",
    "TooFewClients",
    "TrainRequest",
    "dry_run",
    "handle_request",
    "initial_ledger",
    "run_round",
    "run_status",
    "study_status",
    "train_request",
    "write_site_page",
]

__getattr__ = load_on_demand(
    __name__,
    {
        "Agreement": ".models.coding",
        "AuditLog": "log",
        "ClientFailed": "messages",
        "ClientRefused": "messages",
        "ClientUpdate": "messages",
        "Ledger": "server.ledger",
        "ProblemTask": "client.task",
        "Refusal": "refusals",
        "RefusalCode": "refusals",
        "RoundResult": "server.round",
        "RoundRules": "server.rules",
        "RunConfig": "run_config",
        "RunStatus": "server.status",
        "SitePolicy": "client.policy",
        "StateBackup": "server.backup",
        "StateLost": "messages",
        "StatusBoard": "study.status",
        "Study": "study.study",
        "StudyResult": "study.study",
        "StudyPlan": "study.plan",
        "StudySettings": "study.plan",
        "StudyStatus": "study.status",
        "TooFewClients": "server.rules",
        "TrainRequest": "messages",
        "LocalTask": "client.task",
        "dry_run": "study.dry_run",
        "handle_request": "client.requests",
        "initial_ledger": "server.ledger",
        "run_round": "server.round",
        "run_status": "server.status",
        "study_status": "study.status",
        "train_request": "server.ledger",
        "write_site_page": "study.site_page",
    },
)


def __dir__() -> list[str]:
    return __all__

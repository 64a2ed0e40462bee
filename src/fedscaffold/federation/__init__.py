"""The protocol of real federations without any transport: messages, checks, files and repair of states.

A transport, such as Flower in `fedscaffold.flower`, carries a `TrainRequest` to each client and its reply back.

`server/` is the server's side: one round, its rules and checks, the ledger, its files and status. `client/` is a
site's side: its policy, its work and files, and how it answers. Both use `messages` (with the
run's identity, and validation of what arrives), `refusals` (codes), `run_config` and `log`.
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
    from fedscaffold.federation.server.files import StateBackup
    from fedscaffold.federation.server.ledger import Ledger, initial_ledger, train_request
    from fedscaffold.federation.server.round import RoundResult, RoundRules, TooFewClients, run_round
    from fedscaffold.federation.server.session import RunStatus, run_status
    from fedscaffold.federation.study.dry_run import dry_run
    from fedscaffold.federation.study.plan import StudyPlan, StudySettings
    from fedscaffold.federation.study.site_page import write_site_page
    from fedscaffold.federation.study.status import StatusBoard, StudyStatus, study_status
    from fedscaffold.federation.study.study import Study, StudyResult
    from fedscaffold.models.coding import Agreement

MODULES = {
    ".models.coding": ["Agreement"],
    "client.policy": ["SitePolicy"],
    "client.requests": ["handle_request"],
    "client.task": ["LocalTask", "ProblemTask"],
    "log": ["AuditLog"],
    "messages": ["ClientFailed", "ClientRefused", "ClientUpdate", "StateLost", "TrainRequest"],
    "refusals": ["Refusal", "RefusalCode"],
    "run_config": ["RunConfig"],
    "server.files": ["StateBackup"],
    "server.ledger": ["Ledger", "initial_ledger", "train_request"],
    "server.round": ["RoundResult", "RoundRules", "TooFewClients", "run_round"],
    "server.session": ["RunStatus", "run_status"],
    "study.dry_run": ["dry_run"],
    "study.plan": ["StudyPlan", "StudySettings"],
    "study.site_page": ["write_site_page"],
    "study.status": ["StatusBoard", "StudyStatus", "study_status"],
    "study.study": ["Study", "StudyResult"],
}

__all__ = [
    "Agreement", "AuditLog", "ClientFailed", "ClientRefused", "ClientUpdate", "Ledger", "LocalTask", "ProblemTask",
    "Refusal", "RefusalCode", "RoundResult", "RoundRules", "RunConfig", "RunStatus", "SitePolicy", "StateBackup",
    "StateLost", "StatusBoard", "Study", "StudyPlan", "StudyResult", "StudySettings", "StudyStatus",
    "TooFewClients", "TrainRequest", "dry_run", "handle_request", "initial_ledger", "run_round", "run_status",
    "study_status", "train_request", "write_site_page",
]  # fmt: skip

__getattr__ = load_on_demand(__name__, {name: module for module, names in MODULES.items() for name in names})


def __dir__() -> list[str]:
    return __all__

"""Reasons why a site rejects a request: only a code leaves the site.

The full text of an error may hold values of the site's table. It stays at the site, in its log.
"""

from enum import StrEnum

from fedscaffold.core.errors import FedScaffoldError


class RefusalCode(StrEnum):
    """Codes of the reasons; `MEANING` has a sentence for each.

    Examples
    --------
    >>> from fedscaffold.federation import RefusalCode
    >>> RefusalCode("data-changed").value
    'data-changed'
    """

    BAD_REQUEST = "bad-request"
    WRONG_CLIENT = "wrong-client"
    UNKNOWN_METHOD = "unknown-method"
    OTHER_MODEL = "other-model"
    POLICY_RUN_NAME = "policy-run-name"
    POLICY_METHOD = "policy-method"
    POLICY_BATCH = "policy-batch"
    POLICY_LOCAL_STEPS = "policy-local-steps"
    POLICY_ROUNDS = "policy-rounds"
    POLICY_RUNS = "policy-runs"
    POLICY_ROWS = "policy-rows"
    POLICY_KEEP_BACK = "policy-keep-back"
    POLICY_FILE = "policy-file"
    DATA_UNREADABLE = "data-unreadable"
    DATA_CHANGED = "data-changed"
    STATE_UNREADABLE = "state-unreadable"
    NO_AGREEMENT = "no-agreement"
    OTHER_SETTINGS = "other-settings"
    ONLY_SECURE = "only-secure"
    PEERS_CHANGED = "peers-changed"
    ONLY_PRIVATE = "only-private"
    PRIVACY_BUDGET = "privacy-budget"
    NO_GRADIENT = "no-gradient"
    NO_STATE_DIR = "no-state-dir"
    NOT_ACCEPTED = "not-accepted"
    REPLAYED = "replayed"
    BUSY = "busy"
    CANNOT_WRITE = "cannot-write"
    INTERNAL = "internal-error"


MEANING = {
    RefusalCode.BAD_REQUEST: "the request is damaged, or does not fit this run; do server and site have the same "
    "version of fedscaffold?",
    RefusalCode.WRONG_CLIENT: "the request is for another client than this site is",
    RefusalCode.UNKNOWN_METHOD: "the method is not known at the site; its app must pass the class, "
    "client_app(..., methods=[...])",
    RefusalCode.OTHER_MODEL: "the site's model has another number of parameters; do sites have the same columns?",
    RefusalCode.POLICY_RUN_NAME: "the site's policy does not allow a run of this name",
    RefusalCode.POLICY_METHOD: "the site's policy does not allow this method",
    RefusalCode.POLICY_BATCH: "the site's policy asks for larger batches",
    RefusalCode.POLICY_LOCAL_STEPS: "the site's policy allows fewer local steps",
    RefusalCode.POLICY_ROUNDS: "the site has answered as many requests of this run as its policy allows",
    RefusalCode.POLICY_RUNS: "the site has taken part in as many runs as its policy allows",
    RefusalCode.POLICY_ROWS: "the site has fewer rows than its policy asks for",
    RefusalCode.POLICY_KEEP_BACK: "the site's policy keeps rows back, which its kind of training does not support",
    RefusalCode.POLICY_FILE: "the site's policy file cannot be read; the site's log says why",
    RefusalCode.DATA_UNREADABLE: "the site's data cannot be used; the site's log says why",
    RefusalCode.DATA_CHANGED: "the site's data have changed since it joined the run",
    RefusalCode.STATE_UNREADABLE: "the site's file of client state is damaged; the site's log names it",
    RefusalCode.NO_AGREEMENT: "the site has not accepted a plan and a roster of this study",
    RefusalCode.OTHER_SETTINGS: "the plan is another than the one of the site's invitation; after a change of the "
    "study's file, invite the sites again",
    RefusalCode.ONLY_SECURE: "the site adds its numbers to secure sums only",
    RefusalCode.PEERS_CHANGED: "the site knows another key of another site, or none; do not go on before the "
    "people of both have compared fingerprints",
    RefusalCode.ONLY_PRIVATE: "the site protects its rows by a privacy budget, and answers nothing that it does "
    "not cover",
    RefusalCode.PRIVACY_BUDGET: "the site's privacy budget does not allow this; the site's log says why",
    RefusalCode.NO_GRADIENT: "the site no longer has the gradient that it sent in this round",
    RefusalCode.NO_STATE_DIR: "the site has no folder for its client state",
    RefusalCode.NOT_ACCEPTED: "its people, its policy or its table do not allow the plan; they know why",
    RefusalCode.REPLAYED: "the question was asked before, or does not follow the last one",
    RefusalCode.BUSY: "another process of the site is still working on this run",
    RefusalCode.CANNOT_WRITE: "the site cannot write its client state; is its disk full?",
    RefusalCode.INTERNAL: "the site's app failed; the site's log says why",
}


class Refusal(FedScaffoldError):
    """The error of a request that a site rejects: a code for the server, and a text that stays at the site.

    Parameters
    ----------
    code
        The code that the server receives.
    text
        The text for the site's log; the meaning of the code by default.

    Examples
    --------
    >>> from fedscaffold.federation import Refusal, RefusalCode
    >>> Refusal(RefusalCode.BUSY).code.value
    'busy'
    """

    def __init__(self, code: RefusalCode, text: str | None = None) -> None:
        super().__init__(MEANING[code] if text is None else text)
        self.code = code

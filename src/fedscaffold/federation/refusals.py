"""Reasons why a site rejects a request: only a code leaves the site.

The full text of an error may hold values of the site's table. It stays at the site, in its log.
"""

from enum import StrEnum
from typing import Self

from fedscaffold.core.errors import FedScaffoldError


class RefusalCode(StrEnum):
    """Codes of the reasons, each with a sentence, its `meaning`.

    Examples
    --------
    >>> from fedscaffold.federation import RefusalCode
    >>> RefusalCode("data-changed").value
    'data-changed'
    """

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        """Make a code whose value is the first text, with a sentence about it."""
        code = str.__new__(cls, value)
        code._value_, code.meaning = value, meaning
        return code

    BAD_REQUEST = (
        "bad-request",
        "the request is damaged, or does not fit this run; do server and site have the same version of "
        "fedscaffold?",
    )
    WRONG_CLIENT = "wrong-client", "the request is for another client than this site is"
    UNKNOWN_METHOD = (
        "unknown-method",
        "the method is not known at the site; its app must pass the class, client_app(..., methods=[...])",
    )
    OTHER_MODEL = (
        "other-model",
        "the site's model has another number of parameters; do sites have the same columns?",
    )
    POLICY_RUN_NAME = "policy-run-name", "the site's policy does not allow a run of this name"
    POLICY_METHOD = "policy-method", "the site's policy does not allow this method"
    POLICY_BATCH = "policy-batch", "the site's policy asks for larger batches"
    POLICY_LOCAL_STEPS = "policy-local-steps", "the site's policy allows fewer local steps"
    POLICY_ROUNDS = "policy-rounds", "the site has answered as many requests of this run as its policy allows"
    POLICY_RUNS = "policy-runs", "the site has taken part in as many runs as its policy allows"
    POLICY_ROWS = "policy-rows", "the site has fewer rows than its policy asks for"
    POLICY_KEEP_BACK = (
        "policy-keep-back",
        "the site's policy keeps rows back, which its kind of training does not support",
    )
    POLICY_FILE = "policy-file", "the site's policy file cannot be read; the site's log says why"
    DATA_UNREADABLE = "data-unreadable", "the site's data cannot be used; the site's log says why"
    DATA_CHANGED = "data-changed", "the site's data have changed since it joined the run"
    STATE_UNREADABLE = "state-unreadable", "the site's file of client state is damaged; the site's log names it"
    NO_AGREEMENT = "no-agreement", "the site has not accepted a plan and a roster of this study"
    OTHER_SETTINGS = (
        "other-settings",
        "the plan is another than the one of the site's invitation; after a change of the study's file, "
        "invite the sites again",
    )
    ONLY_SECURE = "only-secure", "the site adds its numbers to secure sums only"
    PEERS_CHANGED = (
        "peers-changed",
        "the site knows another key of another site, or none; do not go on before the people of both have "
        "compared fingerprints",
    )
    ONLY_PRIVATE = (
        "only-private",
        "the site protects its rows by a privacy budget, and answers nothing that it does not cover",
    )
    PRIVACY_BUDGET = "privacy-budget", "the site's privacy budget does not allow this; the site's log says why"
    NO_GRADIENT = "no-gradient", "the site no longer has the gradient that it sent in this round"
    NO_STATE_DIR = "no-state-dir", "the site has no folder for its client state"
    NOT_ACCEPTED = "not-accepted", "its people, its policy or its table do not allow the plan; they know why"
    REPLAYED = "replayed", "the question was asked before, or does not follow the last one"
    BUSY = "busy", "another process of the site is still working on this run"
    CANNOT_WRITE = "cannot-write", "the site cannot write its client state; is its disk full?"
    INTERNAL = "internal-error", "the site's app failed; the site's log says why"


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
        super().__init__(code.meaning if text is None else text)
        self.code = code

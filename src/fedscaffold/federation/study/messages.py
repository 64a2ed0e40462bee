"""The envelope of a study's messages: which study and phase, a body as JSON text, and vectors by name."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.core.types import Array
from fedscaffold.federation.history import RUN_PATTERN
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import RefusalCode

Phase = Literal["greet", "peers", "labels", "prepare", "agree", "measure", "sums", "evaluate", "finish"]
LONGEST_BODY = 10**8
PHASE, BODY, REFUSED = "study-phase", "body", "study-refused"  # names of values
SECURE_STEP = "secure-step"  # name of a value, which marks messages of secure sums
STUDY, NAME, PART = "study", "study-name", "study-part"


class StudyMessage(NamedTuple):
    """A request of the coordinator or a site's reply in one phase of a study."""

    phase: Phase
    body: Mapping[str, Any]
    arrays: Mapping[str, Array] = {}


class Address(NamedTuple):
    """Which study a request belongs to, and which of the site's rows it is about.

    Parameters
    ----------
    study
        Random identity of the study.
    name
        Name of the study, which a site's policy may allow or not.
    part
        Whether the rows that the evaluation will use are left out.
    """

    study: str
    name: str
    part: bool = False


class SiteProblems(InvalidInput):
    """What keeps some sites from taking part.

    Parameters
    ----------
    problems
        A sentence for each of these sites.
    codes
        The codes with which some of them refused.

    Examples
    --------
    >>> from fedscaffold.federation.study.messages import SiteProblems
    >>> print(SiteProblems({"lyon": "the table of site lyon has no column 'age'"}))
    the table of site lyon has no column 'age'
    """

    def __init__(self, problems: Mapping[str, str], codes: Mapping[str, RefusalCode] | None = None) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems, self.codes = dict(problems), dict(codes or {})


class Transport(Protocol):
    """Carries messages to sites and their replies back."""

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites, which are clients 0, 1, ... of training in this order."""

    def exchange(self, requests: Mapping[str, Payload], *, enough: int | None = None) -> Mapping[str, Payload]:
        """Send one message to each of some sites and return all their replies by site, or raise `SiteProblems`.

        Where so many replies are `enough`, the sites that refuse, or are slower than the others by some seconds,
        may be missing among them.
        """

    def deliver(self, requests: Mapping[str, Payload]) -> None:
        """Send a last message to each of some sites, as far as they can be reached."""

    @property
    def last_seconds(self) -> float:
        """How long the latest exchange took; a nominal number where results must not depend on the clock."""


def pack(message: StudyMessage) -> Payload:
    """The message as values and arrays, for any transport."""
    body = json.dumps(message.body, sort_keys=True, allow_nan=False)
    return Payload({PHASE: message.phase, BODY: body}, message.arrays)


def unpack(payload: Payload, sender: str) -> StudyMessage:
    """The message that was packed; `InvalidInput` names what is wrong with it."""
    fields = Fields(payload.values, f"the message of {sender}")
    phase: Any = fields.choice(PHASE, *get_args(Phase))
    try:
        body = json.loads(fields.text(BODY, longest=LONGEST_BODY))
    except (ValueError, RecursionError):
        raise InvalidInput(f"the message of {sender} is not JSON") from None
    return StudyMessage(phase, Fields(body, f"the message of {sender}").as_dict(), payload.arrays)


def phase_of(payload: Payload) -> str:
    """The phase of the study that a message is part of; rounds of training have messages of their own."""
    return unpack(payload, "the message").phase if is_study_message(payload) else "train"


def is_study_message(payload: Payload) -> bool:
    """Whether a payload holds a message of a study, and not a request of training."""
    return PHASE in payload.values


def with_address(payload: Payload, address: Address) -> Payload:
    """The request with the study that it belongs to."""
    about = {STUDY: address.study, NAME: address.name, PART: address.part}
    return Payload({**payload.values, **about}, payload.arrays)


def address_of(payload: Payload) -> Address:
    """The study that a request belongs to; `InvalidInput` if it does not say."""
    fields = Fields(payload.values, "the request")
    return Address(fields.text(STUDY, pattern=RUN_PATTERN), fields.text(NAME, longest=100), fields.flag(PART))


def pack_refusal(code: RefusalCode) -> Payload:
    """A site's refusal: the code alone."""
    return Payload({REFUSED: str(code)})


def refusal_in(payload: Payload) -> RefusalCode | None:
    """The code of a site's refusal; None if the payload is a reply."""
    if REFUSED not in payload.values:
        return None
    found = payload.values[REFUSED]
    known = isinstance(found, str) and found in set(RefusalCode)
    return RefusalCode(found) if known else RefusalCode.INTERNAL

"""The envelope of a study's messages: which study and phase, a body as JSON text, and vectors by name."""

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.fields import Fields
from fedscaffold.core.types import Array
from fedscaffold.federation.payloads import Payload

Phase = Literal["greet", "prepare", "agree", "measure", "sums", "evaluate"]
LONGEST_BODY = 10**8


class StudyMessage(NamedTuple):
    """A request of the coordinator or a site's reply in one phase of a study."""

    phase: Phase
    body: Mapping[str, Any]
    arrays: Mapping[str, Array] = {}


def pack(message: StudyMessage) -> Payload:
    """The message as values and arrays, for any transport."""
    body = json.dumps(message.body, sort_keys=True, allow_nan=False)
    return Payload({"study-phase": message.phase, "body": body}, message.arrays)


def unpack(payload: Payload, sender: str) -> StudyMessage:
    """The message that was packed; `InvalidInput` names what is wrong with it."""
    fields = Fields(payload.values, f"the message of {sender}")
    phase: Any = fields.choice("study-phase", *get_args(Phase))
    try:
        body = json.loads(fields.text("body", longest=LONGEST_BODY))
    except (ValueError, RecursionError):
        raise InvalidInput(f"the message of {sender} is not JSON") from None
    return StudyMessage(phase, Fields(body, f"the message of {sender}").as_dict(), payload.arrays)


def is_study_message(payload: Payload) -> bool:
    """Whether a payload holds a message of a study, and not a request of training."""
    return "study-phase" in payload.values

"""The steps of a secure sum as messages of a study: what each carries, as text and as vectors."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.secure_sum import Announcement
from fedscaffold.federation.secure_sum.client import STEPS
from fedscaffold.federation.study.messages import BODY, LONGEST_BODY, PHASE, SECURE_STEP

TOLD = "secure"  # name of a value: the step's content as JSON text
MASKED = "masked"  # name of a vector
FIRST, MASK = "announce", "mask"
ALL_NEEDED = (
    "announce",
    "share",
    "mask",
)  # steps that all sites must take; for the others the threshold is enough


def pack_step(step: str, sum_id: str, content: Any, question: Payload | None = None, **about: Any) -> Payload:
    """The coordinator's message of a step; the first one carries the question, and what the sum is like."""
    told = json.dumps({"sum": sum_id, "content": _plain(content), **about}, allow_nan=False)
    values, arrays = ({}, {}) if question is None else (question.values, question.arrays)
    return Payload({**values, SECURE_STEP: step, TOLD: told}, arrays)


def unpack_step(payload: Payload) -> tuple[str, Fields, Payload]:
    """The step, what it tells, and the question, of a message that may hold anything."""
    values = dict(payload.values)
    fields = Fields(values, "the request")
    step, told = fields.choice(SECURE_STEP, *STEPS), _told(fields, "the request")
    for name in (SECURE_STEP, TOLD):
        values.pop(name)
    return step, told, Payload(values, payload.arrays)


def pack_reply(step: str, phase: str, content: Any) -> Payload:
    """A site's reply to a step."""
    if step == MASK:
        return Payload({SECURE_STEP: step, PHASE: phase}, {MASKED: content})
    return Payload({SECURE_STEP: step, PHASE: phase, BODY: json.dumps({"content": _plain(content)})})


def unpack_reply(payload: Payload, step: str, site: str, length: int) -> Any:
    """What a site replied to a step; `InvalidInput` names what is wrong."""
    source = f"the reply of site {site}"
    fields = Fields(payload.values, source)
    if fields.text(SECURE_STEP) != step:
        raise InvalidInput(f"site {site} answered another step than {step}")
    if step == MASK:
        words = payload.arrays.get(MASKED)
        if not isinstance(words, np.ndarray) or words.dtype != np.uint64 or words.shape != (length,):
            raise InvalidInput(f"{source} must have a masked vector of {length} words")
        return words
    return REPLIES[step](_body(fields, source), "content")


def read_content(step: str, told: Fields) -> Any:
    """The content of the coordinator's message of a step."""
    return REQUESTS[step](told, "content")


def _told(fields: Fields, source: str) -> Fields:
    return Fields(_json(fields.text(TOLD, longest=LONGEST_BODY), source), source)


def _body(fields: Fields, source: str) -> Fields:
    return Fields(_json(fields.text(BODY, longest=LONGEST_BODY), source), source)


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{source} is not JSON") from None


def _plain(content: Any) -> Any:
    """Values as JSON can hold them: bytes in hexadecimal."""
    if isinstance(content, bytes):
        return content.hex()
    if isinstance(content, Announcement):
        return {name: value.hex() for name, value in vars(content).items()}
    if isinstance(content, Mapping):
        return {name: _plain(value) for name, value in content.items()}
    return content


Read = Callable[[Fields, str], Any]


def _bytes(fields: Fields, name: str) -> bytes:
    text = fields.text(name, longest=10_000)
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidInput(f"{fields.source}: {name} is not hexadecimal") from None


def _announcement(fields: Fields, name: str) -> Announcement:
    each = fields.fields(name)
    return Announcement(
        encryption=_bytes(each, "encryption"), masking=_bytes(each, "masking"),
        commitment=_bytes(each, "commitment"), signature=_bytes(each, "signature"),
    )  # fmt: skip


def _by_site(read: Read) -> Read:
    def all_of(fields: Fields, name: str) -> dict[str, Any]:
        each = fields.fields(name)
        return {site: read(each, site) for site in each.names()}

    return all_of


def _names(fields: Fields, name: str) -> list[str]:
    return [str(item) for item in fields.items(name)]


def _nothing(fields: Fields, name: str) -> None:
    return None


REQUESTS: dict[str, Read] = {
    "announce": _nothing,
    "share": _by_site(_announcement),
    "mask": _by_site(_bytes),
    "agree": _names,
    "unmask": _by_site(_bytes),
}
REPLIES: dict[str, Read] = {
    "announce": _announcement,
    "share": _by_site(_bytes),
    "agree": _bytes,
    "unmask": _by_site(_bytes),
}

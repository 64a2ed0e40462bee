"""What a site answers to a message, whatever goes wrong: texts stay at the site, a code leaves it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.federation.client.files import SiteFolder
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.requests import handle_request
from fedscaffold.federation.client.task import LocalTask
from fedscaffold.federation.known_methods import UnknownMethod
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import ClientHello, ClientRefused, Reply
from fedscaffold.federation.payloads import (
    Decode,
    Payload,
    pack_hello,
    pack_reply,
    plain_vector,
    unpack_request,
)
from fedscaffold.federation.refusals import Refusal, RefusalCode


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a transport knows about the site that it speaks for; each part is asked for when it is needed.

    Parameters
    ----------
    client
        () → the index of the client that this site is.
    task
        () → what it trains; reads the site's data.
    state_dir
        () → the site's folder.
    policy
        () → what the site allows.
    methods
        Classes of methods that the site knows besides the library's and those of installed packages.
    """

    client: Callable[[], int]
    task: Callable[[], LocalTask]
    state_dir: Callable[[], str | os.PathLike[str]]
    policy: Callable[[], SitePolicy]
    methods: Sequence[type[Method]] = ()


def answer_request(read: Callable[[], Payload], site: Site, decode: Decode = plain_vector) -> Payload:
    """The reply to a request, which `read` takes out of the transport's message."""

    def answer() -> Reply:
        policy = _load_policy(site)
        request = _refuse_as(RefusalCode.BAD_REQUEST, lambda: unpack_request(read(), site.methods, decode))
        if request.client != site.client():
            raise Refusal(
                RefusalCode.WRONG_CLIENT,
                f"this node is client {site.client()}, but the request is for client {request.client}",
            )
        policy.check_request(request)
        folder = site.state_dir()
        return handle_request(request, _load_task(site), folder, policy)

    return pack_reply(_or_code(answer, site))


def answer_hello(site: Site) -> Payload:
    """The reply to a greeting: which client the site is, its number of parameters and, if it tells, of rows."""

    def answer() -> ClientHello:
        client, policy = site.client(), _load_policy(site)
        task = _load_task(site)
        if policy.keep_back:
            task = policy.usable(task, SiteFolder(site.state_dir()).secret)
        return ClientHello(client=client, dim=task.dim, n_rows=task.n_rows if policy.tell_rows else None)

    return pack_hello(_or_code(answer, site))


def _or_code(answer: Callable[[], Any], site: Site) -> Any:
    """The answer, or the code of what went wrong, whose text goes to the site's log."""
    try:
        return answer()
    except Refusal as refusal:
        code, text = refusal.code, str(refusal)
    except Exception as error:  # whatever it is, its text may hold values of the site's table
        LOG.exception("the site's app failed")
        code, text = RefusalCode.INTERNAL, str(error)
    LOG.error("refused (%s): %s", code, text)
    _note(site, code, text)
    return ClientRefused(client=_client_or_zero(site), code=code)


def _note(site: Site, code: RefusalCode, text: str) -> None:
    try:
        SiteFolder(site.state_dir()).audit.write("refused", code=str(code), text=text)
    except (FedScaffoldError, OSError) as failed:  # a full disk, or no folder at all
        LOG.error("this could not be written to the site's audit log: %s", failed)


def _client_or_zero(site: Site) -> int:
    try:
        return site.client()
    except Refusal:
        return 0


def _load_policy(site: Site) -> SitePolicy:
    return _refuse_as(RefusalCode.POLICY_FILE, site.policy)


def _load_task(site: Site) -> LocalTask:
    """The site's task; everything that goes wrong while its data are read has one code."""
    try:
        return site.task()
    except Refusal:
        raise
    except Exception as error:
        LOG.exception("the site's data cannot be used")
        raise Refusal(RefusalCode.DATA_UNREADABLE, str(error)) from error


def _refuse_as(code: RefusalCode, part: Callable[[], Any]) -> Any:
    """What a part of the answer returns; a text about what is invalid in it becomes a refusal."""
    try:
        return part()
    except UnknownMethod as error:
        raise Refusal(RefusalCode.UNKNOWN_METHOD, str(error)) from None
    except InvalidInput as error:
        raise Refusal(code, str(error)) from None

"""A site's answers to messages; after any error the text stays at the site, and a code leaves it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.requests import handle_request
from fedscaffold.federation.client.store import SiteFolder
from fedscaffold.federation.client.task import LocalTask
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import ClientHello, ClientRefused, Reply
from fedscaffold.federation.payloads import Decode, Payload, pack_hello, pack_reply, plain_vector, unpack_request
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.run_config import UnknownMethod


@dataclass(frozen=True, kw_only=True)
class Site:
    """A site as its transport knows it; each part is a function that is called when the part is needed.

    Parameters
    ----------
    client
        () → the index of this site's client.
    task
        () → its task; reads the site's data.
    state_dir
        () → the site's folder.
    policy
        () → the site's policy.
    methods
        Classes of methods that the site knows in addition to the library's and to installed packages'.
    """

    client: Callable[[], int]
    task: Callable[[], LocalTask]
    state_dir: Callable[[], str | os.PathLike[str]]
    policy: Callable[[], SitePolicy]
    methods: Sequence[type[Method]] = ()


def answer_request(read: Callable[[], Payload], site: Site, decode: Decode = plain_vector) -> Payload:
    """Return the reply to a request, which `read` takes out of the transport's message."""

    def answer() -> Reply:
        policy = _refuse_as(RefusalCode.POLICY_FILE, site.policy)
        request = _refuse_as(RefusalCode.BAD_REQUEST, lambda: unpack_request(read(), site.methods, decode))
        if request.client != site.client():
            raise Refusal(
                RefusalCode.WRONG_CLIENT,
                f"this node is client {site.client()}, but the request is for client {request.client}",
            )
        policy.check_request(request)
        folder = site.state_dir()  # before the data are read
        return handle_request(request, _load_task(site), folder, policy)

    return pack_reply(_or_code(answer, site))


def answer_hello(site: Site) -> Payload:
    """Return the reply to a greeting: the client's index, its number of parameters and, if allowed, of rows."""

    def answer() -> ClientHello:
        client, policy = site.client(), _refuse_as(RefusalCode.POLICY_FILE, site.policy)
        task = _load_task(site)
        if policy.keep_back:
            task = policy.usable(task, SiteFolder(site.state_dir()).secret)
        return ClientHello(client=client, dim=task.dim, n_rows=task.n_rows if policy.tell_rows else None)

    return pack_hello(_or_code(answer, site))


def _or_code(answer: Callable[[], Any], site: Site) -> Any:
    """Return the answer, or a code after an error, whose text goes to the site's log."""
    try:
        return answer()
    except Refusal as refusal:
        code, text = refusal.code, str(refusal)
    except Exception as error:  # its text may hold values of the site's table
        LOG.exception("the site's app failed")
        code, text = RefusalCode.INTERNAL, str(error)
    LOG.error("request rejected (%s): %s", code, text)
    try:
        SiteFolder(site.state_dir()).audit.write("refused", code=str(code), text=text)
    except (FedScaffoldError, OSError) as failed:  # a full disk, or no folder at all
        LOG.error("this could not be written to the site's audit log: %s", failed)
    try:
        client = site.client()
    except Refusal:
        client = 0
    return ClientRefused(client=client, code=code)


def _load_task(site: Site) -> LocalTask:
    """Return the site's task; all errors while its data are read have one code."""
    try:
        return site.task()
    except Refusal:
        raise
    except Exception as error:
        LOG.exception("the site's data cannot be used")
        raise Refusal(RefusalCode.DATA_UNREADABLE, str(error)) from error


def _refuse_as(code: RefusalCode, part: Callable[[], Any]) -> Any:
    """Return a part of the answer; turn `InvalidInput` into a `Refusal`."""
    try:
        return part()
    except UnknownMethod as error:
        raise Refusal(RefusalCode.UNKNOWN_METHOD, str(error)) from None
    except InvalidInput as error:
        raise Refusal(code, str(error)) from None

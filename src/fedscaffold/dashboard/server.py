"""Serve the live page about a study, by default on the loopback interface alone."""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.study.status import PHASES, StudyStatus, study_status
from fedscaffold.reports.page import render

SECONDS_TO_START = 10.0  # a server that is not up by then will not come up: it takes a tenth of a second
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
GetStatus = Callable[[], StudyStatus | None]


def live_page(status: StudyStatus | None, nonce: str) -> str:
    """Return the whole page; its script has the nonce that the security policy of the response names."""
    return render("live", status=status, phases=PHASES, nonce=nonce)


def make_app(get_status: GetStatus, token: str) -> Starlette:
    """Return the web application: /TOKEN/ is the page, /TOKEN/body the part that changes, /TOKEN/status.json."""

    def respond(request: Request) -> Response:
        if not secrets.compare_digest(request.path_params["token"].encode(), token.encode()):
            return PlainTextResponse("not found", status_code=404, headers=HEADERS)
        status, part = get_status(), request.url.path.rpartition("/")[2]
        if part == "status.json":
            return JSONResponse(None if status is None else status.model_dump(mode="json"), headers=HEADERS)
        if part == "body":
            return HTMLResponse(render("live_body", status=status, phases=PHASES), headers=HEADERS)
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(live_page(status, nonce), headers={**HEADERS, "Content-Security-Policy": policy})

    return Starlette(routes=[Route(f"/{{token}}/{part}", respond) for part in ("", "body", "status.json")])


@contextmanager
def serve_dashboard(
    folder: str | os.PathLike[str], *, host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> Iterator[str]:
    """Serve the live page of the study in a coordinator's folder while the block runs.

    Parameters
    ----------
    folder
        The coordinator's folder, which may still be empty.
    host
        Address to listen on: by default this machine alone. With "0.0.0.0" everyone who can reach the machine and
        knows the address sees the page, which is not encrypted.
    port
        The port; 0 for one that is free.
    token
        The secret part of the address; random by default.

    Yields
    ------
    str
        The address of the page.

    Raises
    ------
    InvalidInput
        If the server cannot listen there.

    Examples
    --------
    >>> import tempfile
    >>> from urllib.request import urlopen
    >>> from fedscaffold.dashboard import serve_dashboard
    >>> with tempfile.TemporaryDirectory() as folder, serve_dashboard(folder) as address:
    ...     b"has not begun" in urlopen(address).read()
    True
    """

    def get_status() -> StudyStatus | None:
        try:
            return study_status(folder)
        except InvalidInput:  # the study has not begun
            return None

    with serve_app(get_status, host=host, port=port, token=token or secrets.token_urlsafe(24)) as address:
        yield address


@contextmanager
def serve_app(get_status: GetStatus, *, host: str, port: int, token: str) -> Iterator[str]:
    """Serve the application in a thread while the block runs; yield its address."""
    listener = _listen(host, port)
    config = uvicorn.Config(
        make_app(get_status, token),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        end = time.monotonic() + SECONDS_TO_START
        while not server.started and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        if not server.started:
            raise InvalidInput(f"the server of the live page did not start within {SECONDS_TO_START:g} seconds")
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{listener.getsockname()[1]}/{token}/"
    finally:
        server.should_exit = True
        thread.join(SECONDS_TO_START)
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise InvalidInput if host or port cannot be used."""
    try:
        if not 0 <= port < 2**16:
            raise OSError("a port is a number from 0 to 65535")
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or error
        raise InvalidInput(f"the live page cannot listen on {host} port {port}: {reason}") from None

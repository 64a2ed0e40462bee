"""Serves the live page to whoever knows its address, on the loopback interface unless told otherwise."""

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
from fedscaffold.dashboard.page import live_body, live_page
from fedscaffold.federation.study.report.status import StudyStatus, study_status

LOOPBACK = "127.0.0.1"
PATIENCE = 10.0  # seconds until the server must have begun
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
GetStatus = Callable[[], StudyStatus | None]


def make_app(get_status: GetStatus, token: str) -> Starlette:
    """The web application: /TOKEN/ is the page, /TOKEN/body its changing part, /TOKEN/status.json the status."""

    def guarded(answer: Callable[[StudyStatus | None], Response]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            if not secrets.compare_digest(request.path_params["token"].encode(), token.encode()):
                return PlainTextResponse("not found", status_code=404, headers=HEADERS)
            return answer(get_status())

        return endpoint

    def page(status: StudyStatus | None) -> Response:
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(live_page(status, nonce), headers={**HEADERS, "Content-Security-Policy": policy})

    def body(status: StudyStatus | None) -> Response:
        return HTMLResponse(live_body(status), headers=HEADERS)

    def as_json(status: StudyStatus | None) -> Response:
        return JSONResponse(None if status is None else status.to_json(), headers=HEADERS)

    return Starlette(
        routes=[
            Route("/{token}/", guarded(page)),
            Route("/{token}/body", guarded(body)),
            Route("/{token}/status.json", guarded(as_json)),
        ]
    )


@contextmanager
def serve_dashboard(
    folder: str | os.PathLike[str], *, host: str = LOOPBACK, port: int = 0, token: str | None = None
) -> Iterator[str]:
    """Serve the live page of the study in a coordinator's folder while the block runs; gives its address.

    Parameters
    ----------
    folder
        The coordinator's folder, which may be empty still.
    host
        Where to listen: by default this machine alone. With "0.0.0.0" everyone who can reach the machine and
        knows the address sees the page, which is not encrypted.
    port
        The port; 0 for one that is free.
    token
        The secret part of the address; random by default.

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
    """Serve the application in a thread while the block runs; gives its address."""
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
        end = time.monotonic() + PATIENCE
        while not server.started and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        if not server.started:
            raise InvalidInput(f"the live page's server did not begin within {PATIENCE:g} seconds")
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{listener.getsockname()[1]}/{token}/"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except (OSError, OverflowError):
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"the live page cannot listen on {host} port {port}: {reason}") from None
    return listener

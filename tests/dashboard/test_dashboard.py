"""The live page: who may see it, what it says, and that a browser keeps it up to date."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.dashboard import serve_dashboard
from fedscaffold.dashboard.server import serve_app
from fedscaffold.federation import StatusBoard, StudyPlan, StudyStatus, study_status
from fedscaffold.inference.training import ErrorPoint
from tests.reports.pages import BAD, RUNNING, Page, live
from tests.reports.test_page_browser import CHROMIUM, IN_CI


def test_the_page_says_how_the_study_stands() -> None:
    words = [text for _, text in Page(live(RUNNING)).texts]
    for said in (
        "1 of 2",
        "0.01 relative, certified; asked for: 0.001",
        f"{BAD}column 'age' is missing",
        f"{BAD}Scaffold was taken.",
    ):
        assert said in words
    before = Page(live(RUNNING.model_copy(update={"history": ()})))
    assert before.facts["distance to the pooled model"] == "not known yet"
    private = Page(live(RUNNING.model_copy(update={"tolerance": None, "history": ()})))
    assert private.facts["distance to the pooled model"] == "not computed under a privacy budget"
    assert "has not begun yet" in live(None)


def test_the_page_shows_errors_in_the_unit_of_the_tolerance() -> None:
    history = tuple(replace(point, standard_errors=20 * point.relative) for point in RUNNING.history)
    page = Page(live(RUNNING.model_copy(update={"tolerance": "se:0.05", "history": history})))
    assert "0.2 standard errors, certified; asked for: 0.05" in page.words
    assert "tolerance: 0.05 standard errors" in page.words


def test_the_page_marks_phases() -> None:
    page = Page(live(RUNNING))
    marked = [attributes for tag, attributes in page.elements if tag == "li" and "class" in attributes]
    assert [found["class"] for found in marked[:5]] == ["done", "done", "now", "", ""]
    assert [k for k, found in enumerate(marked) if "aria-current" in found] == [2]
    finished = Page(live(RUNNING.model_copy(update={"state": "finished", "phase": "report"})))
    assert not any("aria-current" in attributes for _, attributes in finished.elements)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("coordinator")
    with serve_dashboard(folder) as address:
        yield address, folder


def test_only_who_knows_the_token_sees_it(address: tuple[str, Path]) -> None:
    page, _ = address
    assert page.startswith("http://127.0.0.1:")
    root, token = page.rstrip("/").rsplit("/", 1)
    assert len(token) >= 32
    for wrong in (
        f"{root}/",
        f"{root}/x/",
        f"{root}/{token[:-1]}/",
        f"{root}/{token}x/body",
        f"{root}/x/status.json",
    ):
        with pytest.raises(HTTPError) as error:
            urlopen(wrong)
        assert error.value.code == 404
        assert b"study" not in error.value.read()
        error.value.close()
    with urlopen(page) as reply:
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert reply.headers["Referrer-Policy"] == "no-referrer"
        assert reply.headers["Cache-Control"] == "no-store"


def test_page_and_json_follow_the_coordinators_file(address: tuple[str, Path]) -> None:
    page, folder = address
    with urlopen(page + "status.json") as reply:
        assert json.load(reply) is None
    columns: Any = {"age": {"range": [18, 99]}, "ill": {"levels": ["no", "yes"]}}
    plan = StudyPlan(target="ill", kind="logistic", sites=("a", "b", "c"), columns=columns)
    board = StatusBoard(folder, plan)
    with board.watch():
        board.site("a", "online")
        with urlopen(page + "status.json") as reply:
            assert StudyStatus.model_validate(json.load(reply)) == study_status(folder)
        with urlopen(page + "body") as reply:
            assert b"The study is running" in reply.read()
    board.error(ErrorPoint(exchange=1, relative=0.1))
    with urlopen(page + "body") as reply:
        assert b"The study is complete" in reply.read()
    StatusBoard(folder, plan).note("a process that is gone")
    with urlopen(page + "body") as reply:
        assert b"process is gone" in reply.read()


def test_a_port_in_use_and_a_host_that_is_not_here_are_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(InvalidInput, match=r"cannot listen on 127\.0\.0\.1 port"),
            serve_dashboard(tmp_path, port=taken.getsockname()[1]),
        ):
            pass
    for host, port in (("no.such.host.invalid", 0), ("127.0.0.1", 70_000)):
        with pytest.raises(InvalidInput, match="cannot listen"), serve_dashboard(tmp_path, host=host, port=port):
            pass


def test_without_the_library_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; import fedscaffold as fs\n"
        "try: fs.dashboard.serve_dashboard\nexcept fs.MissingDependency as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'fedscaffold[dashboard]'" in done.stdout


@pytest.mark.skipif(CHROMIUM is None and not IN_CI, reason="no Chromium to open the page in")
@pytest.mark.parametrize("width", [400, 1200])
def test_a_browser_keeps_it_up_to_date(width: int, tmp_path: Path) -> None:
    """The page as it was first sent says that nothing has begun; what the script fetched replaced it."""
    asked: list[int] = []

    def get_status() -> StudyStatus | None:
        asked.append(1)
        return None if len(asked) == 1 else RUNNING

    with serve_app(get_status, host="127.0.0.1", port=0, token="t" * 32) as page:
        done = subprocess.run(
            [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
             f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2000",
             "--virtual-time-budget=6000", "--dump-dom", page],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    assert len(asked) >= 2
    assert "has not begun yet" not in done.stdout
    assert "column 'age' is missing" in done.stdout
    assert 'id="gone" role="status" hidden' in done.stdout
    shutil.rmtree(tmp_path / "profile", ignore_errors=True)

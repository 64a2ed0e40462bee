"""The page in a real browser: nothing in the console, nothing wider than the window."""

import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from tests.reports.pages import pages
from tests.reports.test_page import NAMES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
IN_CI = os.environ.get("CI") == "true"  # there the tests fail without a browser, so that nobody misses them
pytestmark = pytest.mark.skipif(CHROMIUM is None and not IN_CI, reason="no Chromium to open the page in")

SCROLLBAR = 20  # at most, for the vertical one
FRAME = '<iframe id="%s" style="border:0;width:%dpx;height:3000px" srcdoc="%s"></iframe>'
MEASURE = """<!DOCTYPE html><meta charset="utf-8">%s<pre id="out"></pre><script>
onload = function () {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, root = page.documentElement;
    const figures = [...page.querySelectorAll("figure > svg")].map(s => s.getBoundingClientRect());
    const cut = [...page.querySelectorAll(".wide")].filter(b => b.scrollWidth > b.clientWidth + 1).length;
    const style = page.defaultView.getComputedStyle(page.body);
    found[frame.id] = { scroll: root.scrollWidth, client: root.clientWidth, cut: cut,
      figures: figures.map(b => [b.left, b.right, b.height]), text: style.color, paper: style.backgroundColor };
  }
  document.getElementById("out").textContent = JSON.stringify(found);
};</script>"""
Measured = dict[str, dict[str, Any]]


def browse(file: Path, *options: str) -> tuple[str, str]:
    assert CHROMIUM is not None, "CI must have Chromium; run `make browser`"
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
         f"--user-data-dir={file.parent / 'profile'}", "--virtual-time-budget=5000", *options, "--dump-dom",
         file.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr


def measured(folder: Path, frames: dict[str, tuple[str, int]], *options: str) -> tuple[Measured, str]:
    """What a browser shows of variants of the page in frames of some widths, and its log."""
    file = folder / "measure.html"
    parts = (FRAME % (name, width, escape(pages()[variant])) for name, (variant, width) in frames.items())
    file.write_text(MEASURE % "\n".join(parts))
    dom, log = browse(file, *options)
    return json.loads(unescape(re.findall(r'<pre id="out">(.*?)</pre>', dom, re.DOTALL)[-1])), log


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measured, str]:
    """All variants in a narrow and in a wide window; starting the browser once takes a second."""
    frames = {f"{variant}-{width}": (variant, width) for variant in NAMES for width in (400, 1200)}
    return measured(tmp_path_factory.mktemp("browser"), frames, "--window-size=1400,3200")


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_is_wider_than_the_window(variant: str, width: int, windows: tuple[Measured, str]) -> None:
    assert "CONSOLE" not in windows[1]
    found = windows[0][f"{variant}-{width}"]
    assert found["scroll"] <= found["client"]
    assert width - SCROLLBAR <= found["client"] <= width
    assert found["cut"] == 0  # no table must be scrolled to be read
    assert found["figures"] or variant == "site-empty"
    for left, right, height in found["figures"]:
        assert 0 <= left < right <= width
        assert right - left > 0.8 * min(width, 440)
        assert height > 20


def test_it_follows_the_readers_colour_scheme(tmp_path: Path) -> None:
    found = []
    for scheme in ("0", "1"):  # dark, light
        option = f"--blink-settings=preferredColorScheme={scheme}"
        colours = measured(tmp_path, {"page": ("classes", 800)}, option)[0]["page"]
        found.append((colours["text"], colours["paper"]))
    assert found[0] == ("rgb(230, 233, 237)", "rgb(20, 23, 27)")
    assert found[1] == ("rgb(27, 31, 36)", "rgb(255, 255, 255)")


def test_a_console_message_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "noisy.html"
    file.write_text("<!DOCTYPE html><script>console.error('oh')</script>")
    assert "CONSOLE" in browse(file)[1]

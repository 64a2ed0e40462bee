"""Real pages about real fits and studies, in which every name from outside is hostile, and a parser for them."""

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

import fedscaffold as fs
from fedscaffold.dashboard.server import live_page
from fedscaffold.federation import Study, StudyStatus, write_site_page
from fedscaffold.federation.client.store import MemoryStore
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.status import SiteStatus
from fedscaffold.federation.study.study import conduct
from fedscaffold.federation.study.transport import InProcess
from fedscaffold.inference.training import ErrorPoint

BAD = "<script>\"'&</script>"  # closes elements and attributes of either kind
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Elements, texts by element, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.append((self.open[-1], " ".join(data.split())))

    @property
    def words(self) -> str:
        """All texts in one line."""
        return " ".join(words for _, words in self.texts)

    @property
    def facts(self) -> dict[str, str]:
        """Second cell by first cell of all rows of tables."""
        cells = [words if tag in ("th", "td") else "" for tag, words in self.texts]
        return {one: two for one, two in pairwise(cells) if one and two}

    def row(self, name: str) -> list[str]:
        """The cells of the last row with this name."""
        headers = [k for k, (tag, _) in enumerate(self.texts) if tag == "th"] + [len(self.texts)]
        rows = [
            [words for tag, words in self.texts[begin:end] if tag in ("th", "td")]
            for begin, end in pairwise(headers)
        ]
        return [row for row in rows if row[0] == name and len(row) > 1][-1]


def fit_of(frame: pd.DataFrame, **settings: Any) -> fs.models.Fit:
    """A fit whose target and client are the table's last columns."""
    fit = fs.fit(frame, target=frame.columns[-2], client=frame.columns[-1], **settings)
    return replace(
        fit, name=f"{BAD}.csv", notes=(f"fit '{BAD}.csv'",), evaluation={BAD: {f"{BAD}accuracy": 0.8765}}
    )


@cache
def classes() -> fs.models.Fit:
    """28 and 9 rows of two classes on four clients."""
    rows = {"Bonn": (3, 7), f"{BAD}Ulm": (20, 1), "tiny": (1, 1), "single": (4, 0)}
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        [
            (f"{BAD}{k}", f"{BAD}{kind}", name)
            for name, counts in rows.items()
            for kind, n in zip(("no", "yes"), counts, strict=True)
            for k in rng.integers(3, size=n)
        ],
        columns=[f"{BAD}ward", f"{BAD}y", f"{BAD}c"],
    )
    frame.insert(0, f"{BAD}age", rng.normal(size=len(frame)))
    return fit_of(frame, l2=0.1)


@cache
def numbers() -> fs.models.Fit:
    """Sixty clients and more coefficients than rows, so that there are no standard errors; by Scaffold."""
    x = np.random.default_rng(0).normal(size=(60, 70))
    frame = pd.DataFrame(x, columns=[f"{BAD}{k}" for k in range(70)])
    frame = frame.assign(y=x.sum(axis=1), c=[f"c{k:02}" for k in range(60)])
    return fit_of(frame, l2=0.5, trainer="scaffold", min_rows=1)


@cache
def many() -> fs.models.Fit:
    """Fourteen classes on eighty clients with long names."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(size=800), "y": [f"class {k % 14:02}" for k in range(800)]})
    frame["c"] = [f"{BAD} a client with a long name {k % 80}" for k in rng.permutation(800)]
    return fit_of(frame, l2=0.1)


@cache
def study_pages() -> dict[str, str]:
    """Pages of studies: secure with evaluation, open with many sites, with three classes, without Hessians."""
    rng = np.random.default_rng(0)
    x, ward = rng.normal(size=600), rng.choice([f"{BAD}1", f"{BAD}2"], 600)
    frame = pd.DataFrame({f"{BAD}age": x, f"{BAD}ward": ward})
    frame[f"{BAD}y"] = np.where(x + rng.logistic(size=600) > 0, f"{BAD}yes", f"{BAD}no")
    numbers = frame.assign(**{f"{BAD}y": x**2})
    three = frame.assign(**{f"{BAD}y": pd.cut(x + rng.normal(size=600), 3, labels=[f"{BAD}{k}" for k in "abc"])})
    settings: dict[str, Any] = {"target": f"{BAD}y", "kind": "logistic", "evaluate": 0.3, "name": "pilot"}
    forty = {f"a-site-with-a-long-name-{k}": frame[k::40] for k in range(40)}
    results = {
        "study": Study(**settings).run({name: frame[k::3] for k, name in enumerate("ABC")}),
        "study-many": Study(**settings, l2=1.0, sums="open", min_cell=1, hessians=False).run(forty),
        "study-classes": Study(**settings, sums="open").run({"A": three[:300], "B": three[300:]}),
        "study-plain": Study(target=f"{BAD}y", kind="ridge", hessians=False).run(
            {name: numbers[k::3] for k, name in enumerate("ABC")}
        ),
    }
    made = {}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        for name, result in results.items():
            replace(result, name=f"{BAD}study").report(file)
            made[name] = file.read_text()
    return made


@cache
def site_pages() -> dict[str, str]:
    """Pages of a site at the end of a study, with a hostile log and result, and of one that sent nothing."""
    rng = np.random.default_rng(0)
    x, ward = rng.normal(size=600), rng.choice([f"{BAD}1", f"{BAD}2"], 600)
    frame = pd.DataFrame({f"{BAD}age": x, f"{BAD}ward": ward, f"{BAD}y": x + rng.normal(size=600)})
    tables = {name: frame[k::3] for k, name in enumerate("ABC")}
    plan = Study(target=f"{BAD}y", kind="ridge").plan_for(tables)
    sites = {name: StudySite(name=name, table=table, engine="reference") for name, table in tables.items()}
    conduct(plan, InProcess(sites))
    kept, store = sites["A"].store, MemoryStore()
    for note in ("plan", "roster", "result"):
        store.save_note(note, kept.load_note(note) or {})
    for entry in kept.audit.read():
        store.audit.write(**{**poisoned(entry, keep=("event", "phase", "sha256")), "time": BAD})
    empty, made = MemoryStore(), {}
    for one in (store, empty):
        one.audit.write("rejected", code=f"{BAD}code", text=f"{BAD}text")
    with TemporaryDirectory() as folder:
        for name, one in {"site": store, "site-empty": empty}.items():
            write_site_page(one, Path(folder) / "site.html")
            made[name] = (Path(folder) / "site.html").read_text()
    return made


def poisoned(value: Any, keep: tuple[str, ...] = ()) -> Any:
    """The same values with hostile strings, as keys of dictionaries too, but for the values of some keys."""
    if isinstance(value, str):
        return BAD + value
    if isinstance(value, dict):
        return {key: item if key in keep else poisoned(item, keep) for key, item in value.items()}
    return [poisoned(item, keep) for item in value] if isinstance(value, list | tuple) else value


RUNNING = StudyStatus(
    name=f"{BAD}pilot",
    target=f"{BAD}ill",
    tolerance=0.001,
    phase="train",
    exchanges=13,
    history=(
        ErrorPoint(exchange=1, relative=1.0, certified=False, method=f"{BAD}no rounds yet"),
        ErrorPoint(exchange=5, relative=0.1, certified=False, method="Scaffold"),
        ErrorPoint(exchange=9, relative=0.01, certified=True, method=f"{BAD}Scaffold"),
    ),
    seconds_per_exchange=40.0,
    sites={
        f"{BAD}bonn": SiteStatus(state="online", since=BAD),
        "lyon": SiteStatus(
            state="refused", why=f"{BAD}column 'age' is missing", since="2026-01-01T10:00:00+00:00"
        ),
    },
    notes=(f"{BAD}Scaffold was taken.",),
    started=BAD,
    updated=BAD,
)


@cache
def pages() -> dict[str, str]:
    """All pages that have no script, by name."""
    made = {}
    with TemporaryDirectory() as folder:
        for name, fit in {"classes": classes(), "numbers": numbers(), "many": many()}.items():
            fit.report(Path(folder) / "page.html")
            made[name] = (Path(folder) / "page.html").read_text()
    return made | study_pages() | site_pages()


def live(status: StudyStatus | None) -> str:
    """The live page."""
    return live_page(status, "nonce")

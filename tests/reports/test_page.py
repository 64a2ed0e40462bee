"""The HTML page of a fit: self-contained, in order, escaped, and true to its content."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedscaffold.reports.page import ClientRow, ModelRow, ReportContent, fit_page
from fedscaffold.reports.page import render as render_page
from fedscaffold.reports.page.drawings import curves, round_ticks
from fedscaffold.reports.page.fit import grouped_classes
from fedscaffold.reports.page.style import stylesheet
from tests.reports.study_pages import STUDY_PAGES

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Elements, texts by element, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.parents: list[tuple[str, ...]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.parents.append(tuple(self.open))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.parents.append(tuple(self.open))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.append((self.open[-1], data.strip()))


def render(content: ReportContent) -> str:
    return render_page(fit_page(content))


def content(**changes: Any) -> ReportContent:
    """A small page."""
    clients = [
        ClientRow(name="Bonn", rows=(3, 7), scaffold=0.31, fedavg=0.33, common=0.4, local=0.6),
        ClientRow(name="<Ulm & Co>", rows=(20, 1), scaffold=0.21, fedavg=0.23, common=0.5, local=0.45),
        ClientRow(name="tiny", rows=(1, 1), scaffold=0.11, fedavg=0.13),
        ClientRow(name="single", rows=(4, 0), scaffold=0.1, fedavg=0.1, common=0.2, local=math.nan),
    ]
    metrics = {"accuracy": 0.9125, "log loss": 0.25}
    made = ReportContent(
        title="A federated model of <y>",
        summary="It went well & quickly.",
        request=[("table", "a<b>.csv")],
        data=[("rows", "37")],
        classes=("no", "yes"),
        clients=clients,
        plan="First line.\nSecond line.",
        distances={"Scaffold": np.geomspace(1, 1e-3, 30), "FedAvg": np.full(30, 0.2)},
        predicted=np.geomspace(1, 2e-3, 30),
        tolerance=0.005,
        models=[
            ModelRow(name="Scaffold", loss=0.5002, distance=0.004, metrics=metrics, test={"accuracy": 0.8765}),
            ModelRow(name="Pooled", loss=0.5, distance=0.0, metrics=metrics, test={"accuracy": 0.87}),
        ],
        loss_name="negative log-likelihood",
        cost=[("rounds", "29")],
        provenance=[("seed", "0")],
        command="fedscaffold fit 'a<b>.csv'",
    )
    return replace(made, **changes)


VARIANTS = {
    "classes": content(),
    "numbers": content(
        classes=(), clients=[ClientRow(name="a", rows=(5,), scaffold=1.0, fedavg=2.0)], predicted=None
    ),
    "many": content(
        classes=tuple(f"class {k}" for k in range(14)),
        clients=[
            ClientRow(
                name=f"a client with a long name {c}",
                rows=tuple((c * k) % 7 + 1 for k in range(14)),
                scaffold=1.0,
                fedavg=1.0,
                common=1.0 + c % 3,
                local=2.0,
            )
            for c in range(80)
        ],
    ),
}


PAGES = {name: render(variant) for name, variant in VARIANTS.items()}
PAGES |= {name: render_page(page) for name, page in STUDY_PAGES.items()}


@pytest.fixture(params=PAGES)
def made(request: pytest.FixtureRequest) -> tuple[str, Page]:
    text = PAGES[request.param]
    return text, Page(text)


def test_every_element_is_closed_and_the_language_is_given(made: tuple[str, Page]) -> None:
    text, page = made
    assert page.open == []
    assert text.startswith("<!DOCTYPE html>")
    assert ("html", {"lang": "en"}) in page.elements


def test_nothing_is_fetched_and_nothing_runs(made: tuple[str, Page]) -> None:
    text, page = made
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not {"src", "href", "srcset", "xlink:href", "data"} & attributes.keys()
        assert not any(name.startswith("on") for name in attributes)
    assert "http" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_headings_come_in_order(made: tuple[str, Page]) -> None:
    levels = [int(tag[1]) for tag, _ in made[1].elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_table_has_a_caption_and_scopes(made: tuple[str, Page]) -> None:
    page = made[1]
    tags = [tag for tag, _ in page.elements]
    tables = [k for k, tag in enumerate(tags) if tag == "table"]
    assert len(tables) >= 3
    assert all(tags[k + 1] == "caption" for k in tables)
    assert all("scope" in attributes for tag, attributes in page.elements if tag == "th")


def test_every_drawing_says_what_it_shows(made: tuple[str, Page]) -> None:
    page = made[1]
    drawings = [
        attributes for tag, attributes in page.elements if tag == "svg" and "aria-hidden" not in attributes
    ]
    assert drawings
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in drawings)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("figcaption") == tags.count("figure") == len(drawings)


def test_classes_of_elements_are_in_the_style(made: tuple[str, Page]) -> None:
    style = stylesheet()
    used = {name for _, attributes in made[1].elements for name in (attributes.get("class") or "").split()}
    assert all(f".{name} " in style or f".{name}," in style for name in used), used


def test_drawings_stay_inside_their_frame(made: tuple[str, Page]) -> None:
    width = height = 0.0
    for tag, attributes in made[1].elements:
        if tag == "svg":
            _, _, width, height = map(float, str(attributes["viewbox"]).split())
        for name, limit in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            if tag in ("rect", "circle", "text") and attributes.get(name) is not None:
                assert -0.01 <= float(str(attributes[name])) <= limit
        if tag == "polyline":
            for point in str(attributes["points"]).split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height


def test_what_comes_from_outside_is_escaped() -> None:
    text = render(content())
    for raw in ("<Ulm", "a<b>", "of <y>"):
        assert raw not in text
    texts = [words for _, words in Page(text).texts]
    assert "<Ulm & Co>" in texts
    assert "fedscaffold fit 'a<b>.csv'" in texts


def test_numbers_are_on_the_page() -> None:
    texts = {words for _, words in Page(render(content())).texts}
    assert {"0.5002", "0.0002", "0.9125", "0.8765", "First line.", "Second line.", "helped", "hurt"} <= texts
    assert any(words.startswith("1 of 2 clients are served better") for words in texts)


def test_shares_of_classes_are_counted_by_hand() -> None:
    """28 and 9 of 37 rows; 3 of 10 and all 4 rows are the smallest and the largest share of the first class."""
    cells = [words for tag, words in Page(render(content())).texts if tag in ("td", "th")]
    first, second = (cells.index(name, cells.index("smallest")) for name in ("no", "yes"))
    assert cells[first : first + 5] == ["no", "28", "75.7%", "30.0%", "100.0%"]
    assert cells[second : second + 5] == ["yes", "9", "24.3%", "0.0%", "70.0%"]


def test_clients_that_are_helped_are_counted() -> None:
    more = ClientRow(name="Jena", rows=(2, 2), scaffold=0.1, fedavg=0.1, common=0.3, local=0.7)
    text = render(content(clients=[*content().clients, more]))
    assert "2 of 3 clients are served better" in text
    assert "2 of 3 clients are helped" in text


def test_of_many_clients_those_with_their_own_models_are_listed() -> None:
    rows = [
        ClientRow(
            name=f"c{c}",
            rows=(5 + c,),
            scaffold=1.0,
            fedavg=1.0,
            **({"common": 1.0, "local": 2.0} if c % 9 == 0 else {}),
        )
        for c in range(90)
    ]
    texts = [words for tag, words in Page(render(content(classes=(), clients=rows))).texts if tag in ("td", "th")]
    assert texts.count("helped") == 10
    assert "c1" not in texts


def test_of_many_clients_the_largest_and_the_extremes_are_shown() -> None:
    """Sixty clients of 1 to 60 rows in no order; the smaller a client is, the more it is helped."""
    order = [(7 * k) % 60 for k in range(60)]
    rows = [
        ClientRow(name=f"c{k:02}", rows=(k + 1,), scaffold=1.0, fedavg=1.0, common=1.0, local=1.5 - k / 60.0)
        for k in order
    ]
    page = render(content(clients=rows, classes=()))
    shown = [f"c{k:02}" for k in [*range(59, 34, -1), *range(4, -1, -1)]]  # 25 largest, 5 smallest
    caption = "the largest, those most hurt and most helped; 30 others are left out"
    table = page[page.index(caption) :]
    assert re.findall(r"c\d\d", table[: table.index("</table>")]) == shown
    assert "30 clients between them are left out." in page
    drawing = page[page.index("Rows of 30 clients, from most to fewest") :]
    assert re.findall(r">(c\d\d)<", drawing[: drawing.index("</svg>")]) == shown


def test_the_plans_curve_is_shown_where_there_is_a_plan() -> None:
    assert "as the plan predicted it" in render(content())
    assert "predicted it" not in render(content(predicted=None))


def test_lines_are_where_their_values_are() -> None:
    values = np.array([1.0, 0.1, 0.01])
    svg = curves([("scaffold", values)], levels=[], title="t", x_label="x", y_label="y")
    found = re.search(r'points="([^"]+)"', svg)
    assert found is not None
    points = np.array([tuple(map(float, point.split(","))) for point in found[1].split()])
    assert points[1] == pytest.approx((points[0] + points[2]) / 2, abs=0.11)  # a straight line on a log scale
    assert points[0, 1] < points[2, 1]


def test_values_of_zero_are_left_out_of_a_log_scale() -> None:
    svg = curves([("scaffold", np.array([1.0, 0.1, 0.0]))], levels=[], title="t", x_label="x", y_label="y")
    found = re.search(r'points="([^"]+)"', svg)
    assert found is not None
    assert len(found[1].split()) == 2
    assert "nan" not in svg
    assert "inf" not in svg


@pytest.mark.parametrize(
    ("last", "ticks"),
    [(1, [0, 1]), (14, [0, 5, 10]), (25, [0, 5, 10, 15, 20, 25]), (1999, [0, 500, 1000, 1500])],
)
def test_ticks(last: int, ticks: list[int]) -> None:
    assert round_ticks(last) == ticks


def test_classes_beyond_the_colours_are_one_group() -> None:
    names, groups = grouped_classes(VARIANTS["many"])
    assert len(names) == 10
    assert names[-1] == "5 others"
    assert sorted(j for group in groups for j in group) == list(range(14))


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_enough_in_light_and_dark() -> None:
    """WCAG 2: 4.5 for text, 3 for drawings."""
    blocks = re.findall(r":root \{[^}]*--paper[^}]*\}", stylesheet())
    assert len(blocks) == 3
    for block in blocks:
        colours = dict(re.findall(r"--(\w+): (#\w{6})", block))
        for name, colour in colours.items():
            if name in ("ink", "soft", "scaffold", "fedavg", "target"):
                assert contrast(colour, colours["paper"]) >= 4.5, name
            elif name.startswith("k"):
                assert contrast(colour, colours["paper"]) >= 3, name

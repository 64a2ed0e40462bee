"""The HTML pages: self-contained, in order, escaped, and true to the objects that they are about."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from jinja2 import UndefinedError

import fedscaffold.reports.page as room
from fedscaffold.inference.summary import number
from fedscaffold.reports.page import environment, render
from fedscaffold.reports.page.drawings import curves, round_ticks
from fedscaffold.reports.page.render import bound, clearest
from tests.reports.pages import BAD, RUNNING, Page, classes, live, pages

NAMES = (
    "classes", "numbers", "many", "study", "study-many", "study-classes", "study-plain", "site", "site-empty",
)  # fmt: skip
TEMPLATES = Path(str(room.__file__)).parent / "templates"


@pytest.fixture(params=NAMES)
def made(request: pytest.FixtureRequest) -> tuple[str, Page]:
    text = pages()[request.param]
    return text, Page(text)


def style() -> str:
    return environment().get_template("style.css.j2").render()


def test_all_pages_are_tested() -> None:
    assert set(pages()) == set(NAMES)


def test_every_element_is_closed_and_the_language_is_given(made: tuple[str, Page]) -> None:
    text, page = made
    assert page.open == []
    assert text.startswith("<!DOCTYPE html>")
    assert ("html", {"lang": "en"}) in page.elements


def test_nothing_is_fetched_and_nothing_runs(made: tuple[str, Page]) -> None:
    """Though every name on the page tries to be a script and to end the attribute that holds it."""
    text, page = made
    assert BAD in page.words
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not {"src", "href", "srcset", "xlink:href", "data"} & attributes.keys()
        assert all(re.fullmatch(r"(?!on)[a-z][a-z0-9-]*", name) for name in attributes)
    assert "<script" not in text
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
    assert len(tables) >= 2
    assert all(tags[k + 1] == "caption" for k in tables)
    assert all("scope" in attributes for tag, attributes in page.elements if tag == "th")


def test_every_drawing_says_what_it_shows(made: tuple[str, Page]) -> None:
    page = made[1]
    drawings = [
        attributes for tag, attributes in page.elements if tag == "svg" and "aria-hidden" not in attributes
    ]
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in drawings)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("figcaption") == tags.count("figure") == len(drawings)
    assert sum(tag == "title" for tag, _ in page.texts) == len(drawings) + 1


def test_classes_of_elements_are_in_the_style(made: tuple[str, Page]) -> None:
    used = {name for _, attributes in made[1].elements for name in (attributes.get("class") or "").split()}
    assert all(f".{name} " in style() or f".{name}," in style() for name in used), used


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


def test_every_text_of_a_fit_and_of_a_study_is_on_its_page_as_it_is() -> None:
    texts = {words for _, words in Page(pages()["classes"]).texts}
    for name in ("age", "y", "c", ".csv"):
        assert f"{BAD}{name}" in texts
    assert {f"{BAD}ward={BAD}1", f"fit '{BAD}.csv'", f"{BAD}no, {BAD}yes"} <= texts
    texts = {words for _, words in Page(pages()["study"]).texts}
    for name in ("age", "y", "study"):
        assert f"{BAD}{name}" in texts
    assert any(words.startswith(f"1 indicator: {BAD}1, {BAD}2; reference {BAD}") for words in texts)


def test_templates_escape_everything_and_miss_nothing() -> None:
    """No template or drawing calls a text safe that it did not write, and a wrong attribute is an error."""
    assert environment().autoescape is True
    for file in TEMPLATES.iterdir():
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", file.read_text()), file
        assert not re.search(r"<[^>{]*=\{\{", file.read_text()), f"{file}: an attribute without quotes"
    for file in TEMPLATES.parent.glob("*.py"):
        assert not re.search(r"Markup\((?!['\"]|frame\))", file.read_text()), file
    with pytest.raises(UndefinedError, match="no attribute"):
        render("fit", fit=object())


STOPPED = RUNNING.model_copy(update={"state": "stopped", "error": BAD, "history": ()})


@pytest.mark.parametrize("status", [None, RUNNING, STOPPED])
def test_the_live_page_is_closed_and_escaped(status: object) -> None:
    text = live(status)  # type: ignore[arg-type]
    page = Page(text)
    assert page.open == []
    assert [attributes for tag, attributes in page.elements if tag == "script"] == [{"nonce": "nonce"}]
    assert text.count("<script") == 1
    assert "http" not in text
    if status is not None:
        for name in ("pilot", "bonn", "column 'age' is missing", "Scaffold was taken."):
            assert f"{BAD}{name}" in page.words
        assert all(re.fullmatch(r"(?!on)[a-z][a-z0-9-]*", name) for _, found in page.elements for name in found)


# the page about a fit


def test_numbers_of_a_fit_are_on_the_page() -> None:
    page, fit = Page(pages()["classes"]), classes()
    assert "4 clients with 37 rows in all have one model." in page.words
    error = fit.certified_error["standard_errors"]
    assert error is not None
    assert page.facts["largest of a coefficient, in its standard errors"] == f"at most {bound(error)}"
    assert page.facts[f"{BAD}accuracy"] == "0.8765"
    assert number(fit.summary().coef[-1]) in [words for tag, words in page.texts if tag == "td"]


def test_a_fit_without_standard_errors_says_so() -> None:
    page = Page(pages()["numbers"])
    assert page.facts["largest of a coefficient, in its standard errors"] == "not known"
    assert page.facts["checked instead"] == "a relative distance of at most 0.005"
    assert page.facts["trainer"] == "scaffold"
    assert "Coefficients in the table's own units" not in page.words
    assert "estimated from the latest rounds" in page.words


# the pages about a study and a site


def test_the_page_of_secure_sums_knows_nothing_about_single_sites() -> None:
    page = Page(pages()["study"])
    assert page.row("all sites")[0] == "all sites"
    assert not any(tag == "th" and words in "ABC" for tag, words in page.texts)
    assert "the coordinator got sums over all sites and nothing else" in page.facts["sums over sites"]
    assert "all two-way counts" not in Page(pages()["site-empty"]).words


def test_the_page_of_open_sums_has_the_largest_sites() -> None:
    page = Page(pages()["study-many"])
    assert "The 30 largest of" in page.words
    assert any(words.startswith("a-site-with-a-long-name") for tag, words in page.texts if tag == "th")
    assert "the coordinator has read each site's numbers" in page.facts["sums over sites"]
    assert [words for tag, words in Page(pages()["study-classes"]).texts if tag == "th"].count(f"{BAD}b") == 2


def test_a_site_that_sent_nothing_says_so() -> None:
    assert "Nothing has left this site" in Page(pages()["site-empty"]).words


# drawings and texts


def test_lines_are_where_their_values_are() -> None:
    values = np.array([1.0, 0.1, 0.01])
    svg = curves([("scaffold", range(3), values)], level=None, title="t", x_label="x", y_label="y")
    found = re.search(r'points="([^"]+)"', svg)
    assert found is not None
    points = np.array([tuple(map(float, point.split(","))) for point in found[1].split()])
    assert points[1] == pytest.approx((points[0] + points[2]) / 2, abs=0.11)  # a straight line on a log scale
    assert points[0, 1] < points[2, 1]


def test_unknown_values_and_zero_are_left_out_of_a_log_scale() -> None:
    values: list[float | None] = [1.0, 0.1, 0.0, None]
    lines = [("scaffold", range(4), values)]
    svg = curves(lines, level=None, dots=[("dot-local", [1, 2], [0.1, 0.0])], title="t", x_label="x", y_label="y")
    found = re.search(r'points="([^"]+)"', svg)
    assert found is not None
    assert len(found[1].split()) == 2
    assert svg.count("<circle") == 1
    assert "nan" not in svg
    assert "inf" not in svg


@pytest.mark.parametrize(
    ("last", "ticks"),
    [(1, [0, 1]), (2, [0, 1, 2]), (14, [0, 5, 10]), (25, [0, 5, 10, 15, 20, 25]), (1999, [0, 500, 1000, 1500])],
)
def test_ticks(last: int, ticks: list[int]) -> None:
    assert round_ticks(last) == ticks


def test_of_many_effects_the_clearest_are_drawn() -> None:
    effects = np.append(np.arange(40.0) - 20.0, np.nan)
    widths = np.where(effects > 0, 1.0, 100.0)
    drawn = clearest(effects, widths)
    assert len(drawn) == 30
    assert drawn[:19] == list(range(39, 20, -1))  # all positive effects, the largest first
    assert set(drawn[19:]) == set(range(11))


def test_bounds_on_errors_are_never_below_the_error() -> None:
    assert [bound(value) for value in (0.0, 3e-13, 1.0409e-7, 0.25)] == ["1e-9", "1e-9", "1.1e-07", "0.25"]


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_enough_in_light_and_dark() -> None:
    """WCAG 2: 4.5 for text, 3 for drawings; dark is for screens alone, so that paper is light."""
    blocks = re.findall(r":root \{[^}]*--paper[^}]*\}", style())
    assert len(blocks) == 2
    assert "@media screen and (prefers-color-scheme: dark)" in style()
    for block in blocks:
        colours = dict(re.findall(r"--(\w+): (#\w{6})", block))
        for name, colour in colours.items():
            if name in ("ink", "soft", "scaffold", "fedavg", "target"):
                assert contrast(colour, colours["paper"]) >= 4.5, name
            elif name.startswith("k"):
                assert contrast(colour, colours["paper"]) >= 3, name

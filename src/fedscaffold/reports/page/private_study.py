"""The page about a study under a privacy budget: from what the budget covers and what was public before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedscaffold.reports.page import elements
from fedscaffold.reports.page.content import Facts, Page
from fedscaffold.reports.page.study import rows_figure, traffic_section
from fedscaffold.reports.page.study_content import PhaseTraffic


@dataclass(frozen=True, kw_only=True)
class PrivateStudyContent:
    """What the page about a study under a privacy budget shows.

    Attributes
    ----------
    title, summary
        Heading and first paragraph.
    protects
        What the budget protects, such as "every row".
    request, budget, agreed, provenance
        Names and values for the tables of these sections.
    protected
        Sentences on what the budget covers, what was public, and what was not made.
    coefficients
        Name and value of each coefficient, as text.
    error
        A sentence on the predicted error of the coefficients.
    columns
        A row of text for every column: name, how it is coded, missing values.
    rows
        Number of rows of each site, which a budget of rows takes as public; empty where they are secret.
    traffic
        What left each site, by phase.
    promised
        Sentences about what leaves a site.
    """

    title: str
    summary: str
    protects: str
    request: Facts
    budget: Facts
    agreed: Facts
    provenance: Facts
    protected: Sequence[str]
    coefficients: Sequence[tuple[str, str]]
    error: str
    columns: Sequence[tuple[str, str, str]]
    rows: Mapping[str, int]
    traffic: Mapping[str, Sequence[PhaseTraffic]]
    promised: Sequence[str]


def private_study_page(content: PrivateStudyContent) -> Page:
    """The coordinator's page of a study under a privacy budget."""
    section, facts, paragraph = elements.section, elements.facts, elements.paragraph
    return Page(
        title=content.title,
        summary=content.summary,
        sections=(
            section("What was asked", facts("The study", content.request)),
            section(
                f"What protects {content.protects}",
                facts("The budget and how it was spent", content.budget),
                *map(paragraph, content.protected),
            ),
            section(
                "Coefficients",
                elements.table(
                    "In the units of the tables", ("coefficient", "value, with noise"), content.coefficients
                ),
                paragraph(content.error),
            ),
            *([section("Sites", rows_figure(content.rows))] if content.rows else []),
            section(
                "What was agreed",
                facts("The encoding that all sites accepted, from public bounds", content.agreed),
                elements.table("Columns", ("column", "how it becomes numbers", "missing values"), content.columns),
            ),
            traffic_section(content.traffic, content.promised),
            section("Where this came from", facts("Origin", content.provenance)),
        ),
    )

"""Self-contained HTML pages about a fit, a study and a site: no scripts, nothing fetched."""

from fedscaffold.reports.page.content import (
    ClientRow,
    CoefficientRow,
    CoefficientTable,
    ModelRow,
    Page,
    ReportContent,
)
from fedscaffold.reports.page.fit import fit_page
from fedscaffold.reports.page.render import render

__all__ = [
    "ClientRow",
    "CoefficientRow",
    "CoefficientTable",
    "ModelRow",
    "Page",
    "ReportContent",
    "fit_page",
    "render",
]

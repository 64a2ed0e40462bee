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
from fedscaffold.reports.page.private_study import PrivateStudyContent, private_study_page
from fedscaffold.reports.page.render import render
from fedscaffold.reports.page.study import site_page, study_page

__all__ = [
    "ClientRow",
    "CoefficientRow",
    "CoefficientTable",
    "ModelRow",
    "Page",
    "PrivateStudyContent",
    "ReportContent",
    "fit_page",
    "private_study_page",
    "render",
    "site_page",
    "study_page",
]

"""One self-contained HTML page about a fit: no scripts, nothing fetched."""

from fedscaffold.reports.page.content import ClientRow, CoefficientRow, ModelRow, ReportContent
from fedscaffold.reports.page.render import render

__all__ = ["ClientRow", "CoefficientRow", "ModelRow", "ReportContent", "render"]

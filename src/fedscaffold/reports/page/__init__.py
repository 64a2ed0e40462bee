"""One self-contained HTML page about a fit: no scripts, nothing fetched."""

from fedscaffold.reports.page.content import Candidate, ClientRow, Content
from fedscaffold.reports.page.render import render

__all__ = ["Candidate", "ClientRow", "Content", "render"]

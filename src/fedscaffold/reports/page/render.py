"""From a page's sections to one piece of HTML."""

from html import escape

from fedscaffold.reports.page.content import Page
from fedscaffold.reports.page.style import stylesheet


def render(page: Page) -> str:
    """The page as one piece of HTML that needs no other file."""
    title, body = escape(page.title), "\n".join(page.sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{stylesheet()}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<h1>{title}</h1>\n<p class="lead">{escape(page.summary)}</p>\n</header>\n'
        f"{body}\n<footer>Made by fedscaffold.</footer>\n</main>\n</body>\n</html>\n"
    )

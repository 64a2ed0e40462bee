"""Self-contained HTML pages about fits, studies and sites: Jinja2 templates on the objects that they are about.

Every template extends `base.html.j2`; nothing on a page is fetched. Names of columns, sites and levels come from
other people: Jinja2 escapes each of them, and an attribute that an object lacks is an error, not an empty string.
"""

from fedscaffold.reports.page.render import environment, fmt, format_bytes, json_text, render

__all__ = ["environment", "fmt", "format_bytes", "json_text", "render"]

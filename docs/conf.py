"""Settings with which `make docs` builds this folder."""

import sys
from pathlib import Path

import fedscaffold

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "fedscaffold"
author = "The fedscaffold authors"
version = release = fedscaffold.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "measured"]
html_theme = "furo"
html_title = f"fedscaffold {version}"
nitpicky = False
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]

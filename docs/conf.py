"""How `make docs` builds this folder."""

import fedscaffold

project = "fedscaffold"
author = "The fedscaffold authors"
version = release = fedscaffold.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
html_theme = "furo"
html_title = f"fedscaffold {version}"
nitpicky = False
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]

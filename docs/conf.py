"""How `make docs` builds this folder into `build/docs`; neither building nor reading needs the network."""

import os
import sys
from pathlib import Path

import fedscaffold

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
os.environ["MPLBACKEND"] = "agg"  # gallery examples draw into files

project = "fedscaffold"
author = "The fedscaffold authors"
project_copyright = "the fedscaffold authors"
version = release = fedscaffold.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # numpydoc sections become fields, to which autodoc adds the types
    "sphinx_gallery.gen_gallery",
    "array_types",
    "mathml",
]
exclude_patterns = ["gallery/*.ipynb", "gallery/*.py"]

default_role = "code"  # single backquotes in docstrings

html_theme = "furo"
html_title = f"fedscaffold {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 80
autodoc_mock_imports = ["torch"]  # read for `flower.torch`; the pages do not need PyTorch itself
napoleon_google_docstring = False
suppress_warnings = ["ref.python"]  # names of fields, which several classes share, need not be links

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "notebook_extensions": set(),
    "show_memory": False,
    "write_computation_times": False,  # they differ from machine to machine
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "matplotlib_animations": False,
    "image_scrapers": ("matplotlib",),
}


def _is_field(app, what, name, item, skip, options):
    """Leave out the fields of named tuples, which their docstrings describe; None leaves it to autodoc."""
    return True if type(item).__name__ == "_tuplegetter" else None


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", _is_field)

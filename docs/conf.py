"""How the book is built: python -m sphinx -W -b html docs docs/_build/html

Everything is made at build time, by the small extensions in _ext/, from the files of
minamp/ themselves: quotations, annotated pages, formulas (MathML), drawings (SVG), the
table of differences. The pages need no network and no JavaScript.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE / "_ext"), str(HERE / "figures")]

import minamp  # noqa: E402  (the path is set first)

project = "minamp"
author = "The minamp authors"
copyright = "The minamp authors"
version = release = minamp.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "annotated",
    "answer",
    "demo_list",
    "differences",
    "drawing",
    "mathml",
    "quote",
    "reference",
]
myst_enable_extensions = ["deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_ext", "figures"]
suppress_warnings = ["config.cache"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 72

html_theme = "furo"
html_title = "minamp"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["minamp.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1f6fa8",
        "color-brand-content": "#1f6fa8",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7ab8e6",
        "color-brand-content": "#7ab8e6",
    },
    "footer_icons": [],
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

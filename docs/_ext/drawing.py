"""`drawing`: an SVG made at build time by a script of figures/, set into the page.

    ```{drawing} sixteen_bits
    What one sees, which is the caption.
    ```

calls `draw()` of figures/sixteen_bits.py. Since it is part of the page, its colours are
those of the page: light, dark, or print.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FIGURES = Path(__file__).parents[1] / "figures"


class Drawing(SphinxDirective):
    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if not (FIGURES / f"{name}.py").exists():
            raise self.error(f"drawing: there is no docs/figures/{name}.py")
        self.env.note_dependency(str(FIGURES / f"{name}.py"))
        drawn = importlib.import_module(name).draw()
        caption = nodes.container(classes=["caption"])
        caption.extend(self.parse_content_to_nodes())
        figure = nodes.container(classes=["drawing"])
        figure += [nodes.raw("", drawn, format="html"), caption]
        return [figure]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("drawing", Drawing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

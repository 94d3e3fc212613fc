"""`demos`: every demo with its question, from the first line of its docstring."""

from __future__ import annotations

import ast

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from prose import inline
from tour import ROOT

FOLDER = ROOT / "demos"


class Demos(SphinxDirective):
    """Numbered ones first, in their order; those that measure after them."""

    def run(self) -> list[nodes.Node]:
        scripts = sorted(FOLDER.glob("[!_]*.py"))
        rows = "".join(map(_row, scripts))
        for script in scripts:
            self.env.note_dependency(str(script))
        return [nodes.raw("", f'<dl class="demos">{rows}</dl>', format="html")]


def _row(script) -> str:
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    question = docstring.split("\n\n")[0]
    command = f"python demos/{script.name}"
    return f"<dt>{inline(question)}</dt><dd><code>{command}</code></dd>"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("demos", Demos)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

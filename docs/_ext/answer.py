"""`answer`: the answer to an exercise, folded away, without JavaScript."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Answer(SphinxDirective):
    has_content = True

    def run(self) -> list[nodes.Node]:
        opening = '<details class="answer"><summary>Answer</summary>'
        return [
            nodes.raw("", opening, format="html"),
            *self.parse_content_to_nodes(),
            nodes.raw("", "</details>", format="html"),
        ]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("answer", Answer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

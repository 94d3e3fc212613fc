"""`differences`: the table of tests/intended_differences.py, as it is in that file.

Each row there names a test that passes for minamp and fails for torch.amp.
"""

from __future__ import annotations

import html
import importlib.util
import sys

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from prose import inline
from tour import ROOT

TABLE = ROOT / "tests" / "intended_differences.py"


class Differences(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(TABLE))
        return [nodes.raw("", _as_html(_load().DIFFERENCES), format="html")]


def _load():
    spec = importlib.util.spec_from_file_location("intended_differences", TABLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _as_html(differences) -> str:
    if not differences:
        return "<p>The table is empty.</p>"
    rows = "".join(
        f'<dt id="difference-{html.escape(d.name.replace(" ", "-"))}">'
        f"{inline(d.name.replace('_', ' '))}</dt><dd>"
        f"<p><b>torch.amp</b> {inline(d.torch_does)}</p>"
        f"<p><b>minamp</b> {inline(d.minamp_does)}</p>"
        f'<p class="why">{inline(d.reason)}</p></dd>'
        for d in differences
    )
    return f'<dl class="differences">{rows}</dl>'


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("differences", Differences)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

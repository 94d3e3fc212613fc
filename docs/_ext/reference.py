"""Docstrings in the reference look as they do beside the source.

autodoc finds the names and their signatures; the text goes through `prose`, so that a
docstring needs no markup but what reads well in a file.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from prose import to_html


def docstring_as_html(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    if not any(lines):
        return
    body = to_html("\n".join(lines)).splitlines()
    lines[:] = [".. raw:: html", "", '   <div class="prose">']
    lines += [f"   {line}" for line in body] + ["   </div>", ""]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", docstring_as_html)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

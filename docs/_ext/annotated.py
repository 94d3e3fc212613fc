"""`annotated`: a source file as a page, prose on the left and code on the right.

The page is made from the file itself. Module docstring, docstrings and whole-line
comments are its prose; each stands beside the code that it speaks of. On a narrow
screen prose and code follow one another. One page a file, and an index, are written to
source/ when a build begins.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from prose import Link, to_html
from reading import Row, rows_of
from tour import ROOT, Stop, find, tour


class Annotated(SphinxDirective):
    """The file named by the argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = ROOT / self.arguments[0]
        self.env.note_dependency(str(path))
        lead, rows = rows_of(path.read_text(encoding="utf-8"))
        page = nodes.container(classes=["annotated"])
        page += nodes.raw(
            "", f'<div class="lead">{self.html(lead)}</div>', format="html"
        )
        page.extend(self.rendered(row) for row in rows)
        return [page]

    def html(self, text: str) -> str:
        return to_html(text, links_from(self.env.docname))

    def rendered(self, row: Row) -> nodes.Node:
        node = nodes.container(classes=["row"])
        if row.name:
            node["ids"] = [row.name]
        prose = "\n".join(self.html(text) for text in row.prose)
        node += nodes.raw("", f'<div class="prose">{prose}</div>', format="html")
        if row.source:
            node += nodes.literal_block(row.source, row.source, language="python")
        return node


def links_from(docname: str) -> Link:
    """Where `file.py`, named on the page `docname`, has its own page."""

    def link(name: str) -> str | None:
        stop = find(name) if name.endswith(".py") else None
        if stop is None or stop.docname == docname:
            return None
        return "../" * docname.count("/") + stop.docname + ".html"

    return link


PAGE = """---
hide-toc: true
---
# {name}

*{floor}*

```{{annotated}} {path}
```
"""

INDEX = """# The source, annotated

Every file of minamp, prose left and code right, made from the files themselves. The
order is one to read in: a file imports only from floors below its own, and from what
comes before it in this list.
"""


def write_pages(app: Sphinx) -> None:
    """One page a file, and the index of them; only what has changed is written."""
    index = INDEX
    for floor, stops in groupby(tour(), key=lambda stop: stop.floor):
        here = list(stops)
        index += f"\n## {floor}\n\n" + "\n".join(map(_entry, here)) + "\n"
        pages = "\n".join(map(_toctree_entry, here))
        index += f"\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"
        for stop in here:
            text = PAGE.format(name=_title(stop), floor=stop.floor, path=stop.path)
            _write(Path(app.srcdir, stop.docname + ".md"), text)
    _write(Path(app.srcdir, "source/index.md"), index)


def _title(stop: Stop) -> str:
    return stop.path.removeprefix("minamp/").replace("__", r"\_\_")


def _entry(stop: Stop) -> str:
    name = stop.path.split("/")[-1]
    return f"- [`{name}`]({stop.docname.removeprefix('source/')}.md): {stop.about}"


def _toctree_entry(stop: Stop) -> str:
    return f"{stop.path.split('/')[-1]} <{stop.docname.removeprefix('source/')}>"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("annotated", Annotated)
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

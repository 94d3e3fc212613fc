"""The book keeps its promises: its code runs, what it names exists, no source is lost.

(Links between pages, and that pages build at all, are checked by building the book:
`python -m sphinx -W -b html docs docs/_build/html`. These tests need no Sphinx.)
"""

from __future__ import annotations

import ast
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS / "figures")]

import prose  # noqa: E402  (the path is set first)
import reading  # noqa: E402
import tour  # noqa: E402

PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("book/*.md")])
CHAPTERS = [page for page in PAGES if page.parent.name == "book"]
FIGURES = sorted(
    path.stem for path in DOCS.glob("figures/*.py") if "def draw(" in path.read_text()
)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def roles(page: Path, role: str) -> list[str]:
    return re.findall(rf"{{{role}}}`([^`]+)`", text_of(page))


def directives(page: Path, name: str) -> list[str]:
    return re.findall(rf"^ *`{{3,}}{{{name}}} *(.*)$", text_of(page), re.M)


def code_of(page: Path) -> str:
    """The Python blocks of a page as one script, each at its own line number."""
    lines, indent = [], None
    for line in text_of(page).splitlines():
        if indent is not None and line.lstrip().startswith("```"):
            indent = None
        lines.append("" if indent is None else line[indent:])
        if line.lstrip() == "```python":
            indent = len(line) - len(line.lstrip())
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_code_block_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a block that saves a checkpoint saves it there
    name = str(page.relative_to(ROOT))
    exec(compile(code_of(page), name, "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_everything_a_page_names_exists(page):
    for name in directives(page, "quote"):
        assert reading.quoted(name)[2]
    assert set(roles(page, "test")) <= set(reading.tests())
    assert all(tour.find(name) for name in roles(page, "src"))
    demos = [name.split()[0] for name in roles(page, "demo")]
    assert [demo for demo in demos if not (ROOT / "demos" / demo).exists()] == []
    assert set(directives(page, "drawing")) <= set(FIGURES)


def functions_of(path: Path) -> list[str]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    return [name for name, _ in reading.definitions(module)]


def test_each_step_of_the_exercises_is_graded_by_some_test():
    commands = re.findall(r"^grade (.*)$", text_of(DOCS / "exercises.md"), re.M)
    assert len(commands) > 10
    for command in commands:
        files = re.findall(r"tests/\w+\.py", command)
        assert all((ROOT / file).exists() for file in files)
        names = [name for file in files for name in functions_of(ROOT / file)]
        for word in re.findall(r"\w+", "".join(re.findall(r'-k "(.*?)"', command))):
            assert word == "or" or any(word in name for name in names), word


def test_a_name_that_does_not_exist_is_found_out():
    with pytest.raises(LookupError, match="defines no previous_state"):
        reading.quoted("minamp.scaling.scale_rule.previous_state")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda page: page.stem)
def test_a_chapter_has_all_its_parts(chapter):
    assert directives(chapter, "drawing"), "a picture"
    assert directives(chapter, "quote") or directives(chapter, "differences")
    assert roles(chapter, "test"), "a test that guards it"
    assert roles(chapter, "demo"), "something to try"
    assert len(directives(chapter, "answer")) == 2, "two exercises"


@pytest.mark.parametrize("stop", tour.tour(), ids=lambda stop: stop.path)
def test_an_annotated_page_holds_every_line_of_its_file(stop):
    source = (ROOT / stop.path).read_text(encoding="utf-8")
    lead, rows = reading.rows_of(source)
    shown = "\n".join([lead, *("\n".join([*row.prose, *row.code]) for row in rows)])
    words = set(re.findall(r"\w+", source))
    assert words <= set(re.findall(r"\w+", shown))
    code = [line for row in rows for line in row.code if line.strip()]
    positions = [source.splitlines().index(line) for line in dict.fromkeys(code)]
    assert positions == sorted(positions)


class Balance(HTMLParser):
    """Fails on a tag that is closed but not open, or opened and never closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("stop", tour.tour(), ids=lambda stop: stop.path)
def test_prose_of_a_file_becomes_well_formed_html(stop):
    lead, rows = reading.rows_of((ROOT / stop.path).read_text(encoding="utf-8"))
    for text in [lead, *(part for row in rows for part in row.prose)]:
        parser = Balance()
        parser.feed(prose.to_html(text))
        parser.close()
        assert parser.open == []


def test_the_markup_of_prose_is_understood():
    html = prose.to_html(
        "At `x < 1` the *step* is 2^(e - m).\n\n* one\n  and more\n* two\n\n    a < b\n"
        "\nRaises:\n    ValueError: too small,\n        too large.\n"
    )
    assert "<code>x &lt; 1</code>" in html
    assert "<em>step</em> is 2<sup>e - m</sup>" in html
    assert "<li>one and more</li><li>two</li>" in html
    assert "<pre>a &lt; b</pre>" in html
    assert "<dt><code>ValueError</code></dt><dd>too small, too large.</dd>" in html


@pytest.mark.parametrize("name", FIGURES)
def test_a_drawing_is_well_formed_and_has_a_title(name):
    module = __import__(name)
    drawing = ElementTree.fromstring(module.draw())
    namespace = "{http://www.w3.org/2000/svg}"
    assert drawing.tag == namespace + "svg"
    assert drawing.find(namespace + "title").text

"""Quoting the source by name, so that no chapter holds a stale copy.

    ```{quote} minamp.scaling.scale_rule.next_state
    ```                                              the source of a function or class
    {src}`scaling/scale_rule.py`                     a link to its annotated page
    {test}`test_growth_takes_a_whole_interval`       a test that exists
    {demo}`compare.py`                               a demo that exists

A name that does not exist fails the build.
"""

from __future__ import annotations

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from reading import quoted, tests
from tour import ROOT, find, stops_by_path


class Quote(SphinxDirective):
    """The source of the name in the argument, and where it stands."""

    required_arguments = 1
    option_spec = {"docstring": directives.flag}

    def run(self) -> list[nodes.Node]:
        try:
            path, inside, source = quoted(
                self.arguments[0], "docstring" in self.options
            )
        except LookupError as error:
            raise self.error(f"quote: {error}") from error
        self.env.note_dependency(str(path))
        figure = nodes.container(classes=["quoted"])
        figure += self.caption(str(path.relative_to(ROOT)), inside)
        figure += nodes.literal_block(source, source, language="python")
        return [figure]

    def caption(self, path: str, inside: str) -> nodes.Node:
        caption = nodes.paragraph(classes=["quoted-from"])
        stop = stops_by_path().get(path)
        label = nodes.literal(text=f"{path} · {inside}")
        if stop is None:
            caption += label
        else:
            up = "../" * self.env.docname.count("/")
            target = f"{up}{stop.docname}.html#{inside}"
            caption += nodes.reference("", "", label, refuri=target, internal=True)
        return caption


class SourceRole(SphinxRole):
    """A link to the annotated page of a file."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        stop = find(self.text)
        if stop is None:
            return [], [
                _unknown(self, f"no single file of minamp is called {self.text}")
            ]
        up = "../" * self.env.docname.count("/")
        label = nodes.literal(text=self.text.split("/")[-1])
        target = f"{up}{stop.docname}.html"
        return [nodes.reference("", "", label, refuri=target, internal=True)], []


class TestRole(SphinxRole):
    """The name of a test, which must exist."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        if self.text not in tests():
            return [], [_unknown(self, f"there is no test {self.text}")]
        file = tests()[self.text].name
        return [nodes.literal(text=f"tests/{file}::{self.text}", classes=["test"])], []


class DemoRole(SphinxRole):
    """The command that runs a demo, which must exist."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        if not (ROOT / "demos" / self.text.split()[0]).exists():
            return [], [_unknown(self, f"there is no demo {self.text}")]
        return [nodes.literal(text=f"python demos/{self.text}")], []


def _unknown(role: SphinxRole, message: str) -> nodes.system_message:
    return role.inliner.reporter.error(message, line=role.lineno)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("quote", Quote)
    app.add_role("src", SourceRole())
    app.add_role("test", TestRole())
    app.add_role("demo", DemoRole())
    return {"parallel_read_safe": True, "parallel_write_safe": True}

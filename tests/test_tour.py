"""The README's tour of the source is complete, and can be read in its order."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ["numbers", "tensors", "policy", "autocasting", "scaling", "weights", "loop"]


def tour() -> list[str]:
    """The source files that the README links to, in its order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## How to read the source\n(.*?)^## ", text, re.M | re.S)
    return re.findall(r"\]\((minamp/[^)]+\.py)\)", section)


def source_files() -> set[str]:
    """Every file of the package but the `__init__.py`s, which hold no code of ours."""
    files = (ROOT / "minamp").rglob("*.py")
    return {str(path.relative_to(ROOT)) for path in files if path.name != "__init__.py"}


class WithoutTypes(ast.NodeTransformer):
    """Leaves out `if TYPE_CHECKING:`, whose imports are only for annotations."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


def imported_by(name: str) -> set[str]:
    """The files of minamp that a file imports when it runs."""
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    modules = set()
    for node in ast.walk(WithoutTypes().visit(tree)):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    paths = {module.replace(".", "/") + ".py" for module in modules}
    return paths & source_files()


def test_the_tour_names_every_file_once():
    assert sorted(tour()) == sorted(source_files())


def test_the_tour_goes_floor_by_floor():
    floors = [name.split("/")[1] for name in tour() if name.count("/") == 2]
    assert list(dict.fromkeys(floors)) == FLOORS
    assert floors == sorted(floors, key=FLOORS.index)


@pytest.mark.parametrize("name", sorted(source_files()))
def test_what_a_file_imports_was_read_before_it(name):
    order = tour()
    read = set(order[: order.index(name)])
    assert imported_by(name) <= read

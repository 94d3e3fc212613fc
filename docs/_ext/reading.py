"""Reading Python files: their prose and their code, and what is defined in them.

Knows nothing of Sphinx, so that the tests can ask it too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from prose import cleandoc
from tour import ROOT

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Row:
    """Some prose, and the code it speaks of."""

    name: str = ""
    prose: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    @property
    def source(self) -> str:
        return "\n".join(self.code).strip("\n").rstrip()


def rows_of(source: str) -> tuple[str, list[Row]]:
    """The module docstring of `source`, and the rest of it in rows."""
    module = ast.parse(source)
    starts = {first_line(node): (name, node) for name, node in definitions(module)}
    hidden = set(docstring_lines(module))
    for _, node in starts.values():
        hidden |= set(docstring_lines(node))
    rows, in_comment = [Row()], False
    for number, line in enumerate(source.splitlines(), start=1):
        is_comment = line.lstrip().startswith("#") and number not in hidden
        if number in starts:
            name, node = starts[number]
            if rows[-1].source:
                rows.append(Row())
            rows[-1].name = name
            if ast.get_docstring(node):
                rows[-1].prose.append(cleandoc(ast.get_docstring(node, False) or ""))
        if is_comment and not line.lstrip().startswith(("#:", "#!")):
            if rows[-1].source and not in_comment:
                rows.append(Row())
            text = line.lstrip().removeprefix("#").removeprefix(" ")
            if in_comment:
                rows[-1].prose[-1] += "\n" + text
            else:
                rows[-1].prose.append(text)
        elif number not in hidden:
            rows[-1].code.append(line)
        in_comment = is_comment
    docstring = ast.get_docstring(module, False) or ""
    return cleandoc(docstring), [row for row in rows if row.source or row.prose]


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Every class, function and method, with its dotted name; not what is nested."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from definitions(child, f"{prefix}{child.name}.")


def first_line(node: Definition) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def docstring_lines(node: Definition | ast.Module) -> range:
    """The lines of a docstring; of a class with the empty one that follows it."""
    if ast.get_docstring(node) is None:
        return range(0)
    docstring = node.body[0]
    # The line after it is empty by custom wherever there is one of code to set apart.
    after = 1 if isinstance(node, ast.ClassDef) and len(node.body) > 1 else 0
    return range(docstring.lineno, (docstring.end_lineno or 0) + 1 + after)


def quoted(name: str, docstring: bool = False) -> tuple[Path, str, str]:
    """File, dotted name within it, and source of `package.module.name`.

    Raises LookupError if there is no such name.
    """
    path, inside = _file_of(name)
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    module = ast.parse(source)
    for found, node in definitions(module):
        if found == inside:
            hidden = () if docstring else docstring_lines(node)
            numbers = range(first_line(node), (node.end_lineno or 0) + 1)
            return (
                path,
                inside,
                _dedented(lines[n - 1] for n in numbers if n not in hidden),
            )
    for node in module.body:
        if inside in _assigned(node):
            return path, inside, "\n".join(lines[node.lineno - 1 : node.end_lineno])
    raise LookupError(f"{path.relative_to(ROOT)} defines no {inside}")


def _file_of(name: str) -> tuple[Path, str]:
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        path = ROOT.joinpath(*parts[:length]).with_suffix(".py")
        if path.exists():
            return path, ".".join(parts[length:])
    raise LookupError(f"no file of this repository holds {name}")


def _dedented(lines: Iterable[str]) -> str:
    kept = list(lines)
    indent = len(kept[0]) - len(kept[0].lstrip())
    return "\n".join(line[indent:] for line in kept)


def _assigned(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


@cache
def tests() -> dict[str, Path]:
    """Every test function, and the file it is in."""
    found = {}
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        for name, _ in definitions(ast.parse(path.read_text(encoding="utf-8"))):
            found[name.split(".")[-1]] = path
    return found

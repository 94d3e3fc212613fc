"""The tour of the source that the README gives: every file, in an order to read it in.

(A test makes sure that the tour is complete, and that no file imports a later one.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Stop:
    """A file of the tour, what the README says of it, and the floor it is on."""

    path: str
    about: str
    floor: str

    @property
    def docname(self) -> str:
        """The page of the book that shows this file."""
        return "source/" + self.path.removeprefix("minamp/").removesuffix(".py")


@cache
def tour() -> tuple[Stop, ...]:
    """All files, in order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## How to read the source")[1].split("\n## ")[0]
    stops, floor = [], ""
    for line in section.splitlines():
        if line.startswith("**Floor"):
            floor = line.strip("*")
        found = re.match(r"- \[.*?\]\((minamp/\S+\.py)\): (.*)", line)
        if found:
            stops.append(Stop(found[1], found[2].strip("*"), floor))
    stops.append(Stop("minamp/__init__.py", "the public names", "And the door"))
    return tuple(stops)


@cache
def stops_by_path() -> dict[str, Stop]:
    return {stop.path: stop for stop in tour()}


def find(name: str) -> Stop | None:
    """The stop for `minamp/floor/file.py`, `floor/file.py` or, if unique, `file.py`."""
    found = [stop for stop in tour() if f"/{stop.path}".endswith(f"/{name}")]
    return found[0] if len(found) == 1 else None

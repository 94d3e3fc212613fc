"""Docstrings and comments as HTML.

They are written to be read in a file, with very little markup, and that little is what
is understood here: paragraphs, bullets, indented blocks (shown as they are), sections
like "Args:", `code`, *emphasis*, and powers such as 2^(e - m). Nothing in a docstring
can break the build.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable

Link = Callable[[str], str | None]

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
BULLET = re.compile(r"[-*] +")
CODE = re.compile(r"``(.+?)``|`(.+?)`", re.S)
STRONG = re.compile(r"(?<![\w*])\*\*(?=\w)(.+?)\*\*(?![\w*])", re.S)
EMPHASIS = re.compile(r"(?<![\w*])\*(?=\w)([^*]+?)\*(?![\w*])", re.S)
POWER = re.compile(r"(?<=[\w)])\^(?:\(([^()]+)\)|([-−]?\w+))")


def to_html(text: str, link: Link = lambda name: None) -> str:
    """`text` as HTML; `link` gives the address of a file named in backticks."""
    lines = textwrap.dedent(text).strip("\n").splitlines()
    parts: list[str] = []
    while lines:
        parts.append(_take_block(lines, link))
    return "\n".join(part for part in parts if part)


def cleandoc(docstring: str) -> str:
    """A docstring without the indentation of the code around it."""
    first, _, rest = docstring.expandtabs().partition("\n")
    return f"{first.strip()}\n{textwrap.dedent(rest)}".rstrip()


def _take_block(lines: list[str], link: Link) -> str:
    if not lines[0].strip():
        lines.pop(0)
        return ""
    if lines[0].startswith(" "):
        return _preformatted(_take_indented(lines))
    if SECTION.match(lines[0]):
        heading = lines.pop(0).rstrip(":")
        return _section(heading, _take_indented(lines), link)
    if BULLET.match(lines[0]):
        return _bullets(lines, link)
    return f"<p>{inline(' '.join(_take_paragraph(lines)), link)}</p>"


def _take_paragraph(lines: list[str]) -> list[str]:
    taken = [lines.pop(0)]
    while lines and lines[0].strip() and not lines[0].startswith(" "):
        if BULLET.match(lines[0]) or SECTION.match(lines[0]):
            break
        taken.append(lines.pop(0))
    taken[-1] = re.sub("::$", ":", taken[-1])
    return taken


def _take_indented(lines: list[str]) -> str:
    taken = []
    while lines and (lines[0].startswith(" ") or not lines[0].strip()):
        taken.append(lines.pop(0))
    return textwrap.dedent("\n".join(taken)).strip("\n")


def _preformatted(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def _bullets(lines: list[str], link: Link) -> str:
    items: list[str] = []
    while lines and (BULLET.match(lines[0]) or lines[0].startswith("  ")):
        line = lines.pop(0)
        if BULLET.match(line):
            items.append(BULLET.sub("", line, count=1))
        else:
            items[-1] += " " + line.strip()
        if len(lines) > 1 and not lines[0].strip() and BULLET.match(lines[1]):
            lines.pop(0)  # bullets may be set apart by empty lines
    return f"<ul>{''.join(f'<li>{inline(item, link)}</li>' for item in items)}</ul>"


def _section(heading: str, body: str, link: Link) -> str:
    entries: list[str] = []
    for line in body.splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        elif line.strip():
            entries.append(line)
    rows = "".join(_entry(entry, link) for entry in entries)
    return f'<p class="section">{heading}</p><dl>{rows}</dl>'


def _entry(entry: str, link: Link) -> str:
    name, colon, text = entry.partition(": ")
    if not colon:
        return f"<dd>{inline(entry, link)}</dd>"
    return f"<dt><code>{html.escape(name)}</code></dt><dd>{inline(text, link)}</dd>"


def inline(text: str, link: Link = lambda name: None) -> str:
    """One paragraph's markup."""
    parts = CODE.split(text)  # text, ``code`` or None, `code` or None, text, ...
    done = [_marked_up(parts[0])]
    for double, single, after in zip(
        parts[1::3], parts[2::3], parts[3::3], strict=True
    ):
        done += [_code(double or single, link), _marked_up(after)]
    return "".join(done)


def _marked_up(text: str) -> str:
    text = html.escape(text, quote=False)
    text = EMPHASIS.sub(r"<em>\1</em>", STRONG.sub(r"<strong>\1</strong>", text))
    return POWER.sub(lambda m: f"<sup>{m[1] or m[2]}</sup>", text)


def _code(text: str, link: Link) -> str:
    code = f"<code>{html.escape(' '.join(text.split()))}</code>"
    address = link(text)
    return f'<a href="{address}">{code}</a>' if address else code

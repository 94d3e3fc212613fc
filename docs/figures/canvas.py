"""A sheet to draw on: SVG by hand, in the colours of the page it is set into.

Drawings are 480 units wide, with letters of 13 units, so that they can be read on a
phone. Colours are CSS variables (`--fp16` and so on), text is `currentColor`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

FP32, FP16, BF16, FP8 = "var(--fp32)", "var(--fp16)", "var(--bf16)", "var(--fp8)"
GOOD, LOST, GRID = "var(--good)", "var(--lost)", "var(--grid)"
INK = "currentColor"


class Canvas:
    """An SVG under construction; `str()` of it is the finished one."""

    def __init__(self, width: float, height: float, title: str, wide: bool = False):
        self.width, self.height, self.title = width, height, title
        self._class = "wide" if wide else "narrow"
        self._parts: list[str] = []

    def add(self, tag: str, text: str | None = None, **attributes: object) -> Canvas:
        pairs = (
            f'{name.rstrip("_").replace("_", "-")}="{html.escape(_short(value))}"'
            for name, value in attributes.items()
            if value is not None
        )
        inside = "/>" if text is None else f">{html.escape(text, quote=False)}</{tag}>"
        self._parts.append(f"<{tag} {' '.join(pairs)}{inside}")
        return self

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str = "none",
        stroke: str = "none", opacity: float | None = None, r: float = 0,
        stroke_width: float = 1,
    ) -> Canvas:  # fmt: skip
        return self.add(
            "rect", x=x, y=y, width=max(width, 0), height=max(height, 0), rx=r,
            fill=fill, stroke=stroke, stroke_width=stroke_width, fill_opacity=opacity,
        )  # fmt: skip

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = INK,
        width: float = 1, dash: str | None = None, opacity: float | None = None,
    ) -> Canvas:  # fmt: skip
        return self.add(
            "line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, stroke_width=width,
            stroke_dasharray=dash, stroke_opacity=opacity,
        )  # fmt: skip

    def dot(self, x: float, y: float, r: float = 3, fill: str = INK) -> Canvas:
        return self.add("circle", cx=x, cy=y, r=r, fill=fill)

    def curve(
        self, points: Iterable[Sequence[float]], stroke: str = INK, width: float = 2,
        dash: str | None = None, fill: str = "none", opacity: float | None = None,
    ) -> Canvas:  # fmt: skip
        path = " ".join(f"{_short(x)},{_short(y)}" for x, y in points)
        return self.add(
            "polyline", points=path, fill=fill, stroke=stroke, stroke_width=width,
            stroke_dasharray=dash, stroke_linejoin="round", stroke_opacity=opacity,
        )  # fmt: skip

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = INK,
        width: float = 1.4, dash: str | None = None,
    ) -> Canvas:  # fmt: skip
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        along_x, along_y = (x2 - x1) / length, (y2 - y1) / length
        back_x, back_y = x2 - 7 * along_x, y2 - 7 * along_y
        self.line(x1, y1, back_x, back_y, stroke, width, dash)
        left = back_x - 3.5 * along_y, back_y + 3.5 * along_x
        right = back_x + 3.5 * along_y, back_y - 3.5 * along_x
        tip = " ".join(f"{_short(x)},{_short(y)}" for x, y in ((x2, y2), left, right))
        return self.add("polygon", points=tip, fill=stroke)

    def text(
        self, x: float, y: float, text: str, size: float = 13, anchor: str = "start",
        fill: str | None = None, bold: bool = False, mono: bool = False,
        faint: bool = False,
    ) -> Canvas:  # fmt: skip
        classes = " ".join(["mono"] * mono + ["faint"] * faint) or None
        style = f"fill:{fill}" if fill else None
        return self.add(
            "text", text, x=x, y=y, font_size=size, text_anchor=anchor, style=style,
            font_weight="bold" if bold else None, class_=classes,
        )  # fmt: skip

    def __str__(self) -> str:
        title = html.escape(self.title)
        return (
            f'<svg class="{self._class}" viewBox="0 0 {self.width} {self.height}" '
            f'role="img" aria-label="{title}" xmlns="http://www.w3.org/2000/svg">'
            f"<title>{title}</title>{''.join(self._parts)}</svg>"
        )


# The colours of _static/minamp.css, for a drawing that stands alone.
STANDALONE = """
svg { --fp32: #4d4d4d; --fp16: #c8561b; --bf16: #1f6fa8; --fp8: #7a4fa3;
  --good: #2e7d4f; --lost: #b3261e; --grid: #0002; --color-background-primary: #fff;
  color: #111; background: #fff; font-family: system-ui, sans-serif; }
text { fill: currentColor; } .mono { font-family: monospace; } .faint { opacity: .7; }
"""


def standalone(drawing: str) -> str:
    """A drawing as the text of an SVG file, with its colours in it."""
    return drawing.replace("<title>", f"<style>{STANDALONE}</style><title>", 1)


def _short(value: object) -> str:
    return (
        f"{value:.2f}".rstrip("0").rstrip(".")
        if isinstance(value, float)
        else f"{value}"
    )


def power_of_two(exponent: int) -> str:
    """2 with a raised exponent, in Unicode."""
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"2{raised}" if exponent else "1"


class Axes:
    """A rectangle of a canvas with numbers along two of its sides."""

    def __init__(
        self, canvas: Canvas, box: tuple[float, float, float, float],
        x: tuple[float, float], y: tuple[float, float],
    ) -> None:  # fmt: skip
        self.canvas, self.box, self._x, self._y = canvas, box, x, y

    def at(self, x: float, y: float) -> tuple[float, float]:
        left, top, width, height = self.box
        across = (x - self._x[0]) / (self._x[1] - self._x[0])
        up = (y - self._y[0]) / (self._y[1] - self._y[0])
        return left + across * width, top + height - up * height

    def ticks_x(self, ticks: dict[float, str], label: str = "") -> None:
        left, top, width, height = self.box
        self.canvas.line(left, top + height, left + width, top + height)
        for value, text in ticks.items():
            x, _ = self.at(value, self._y[0])
            self.canvas.line(x, top, x, top + height, GRID)
            self.canvas.text(x, top + height + 16, text, 12, "middle")
        self.canvas.text(left + width, top + height + 32, label, 12, "end", faint=True)

    def ticks_y(self, ticks: dict[float, str], label: str = "") -> None:
        left, top, width, _ = self.box
        for value, text in ticks.items():
            _, y = self.at(self._x[0], value)
            self.canvas.line(left, y, left + width, y, GRID)
            self.canvas.text(left - 6, y + 4, text, 12, "end")
        self.canvas.text(left - 4, top - 10, label, 12, "start", faint=True)

    def curve(self, points: Iterable[Sequence[float]], **style: object) -> None:
        self.canvas.curve([self.at(x, y) for x, y in points], **style)

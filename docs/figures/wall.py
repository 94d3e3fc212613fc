"""The drawing for the wall: a call through the floors, and a step round its course.

python docs/figures/wall.py wall.svg        the drawing as a file, to be printed
"""

from __future__ import annotations

import sys
from pathlib import Path

import dispatcher
import one_step
from canvas import BF16, FP8, FP16, FP32, GRID, INK, Canvas, power_of_two, standalone
from minamp import BF16 as BF16_FORMAT
from minamp import FP16 as FP16_FORMAT
from minamp import FP32 as FP32_FORMAT
from minamp.numbers.formats import floor_log2
from minamp.policy.op_lists import Category
from minamp.policy.torch_lists import CUDA

PAPER = "var(--color-background-primary)"
COLOURS = {
    Category.LOWER_PRECISION_FP: FP16,
    Category.FP32: FP32,
    Category.FP32_SET_OPT_DTYPE: FP32,
    Category.PROMOTE: BF16,
    Category.BANNED: FP8,
}


def draw() -> str:
    canvas = Canvas(1040, 860, "Mixed precision on one sheet", wide=True)
    canvas.text(20, 40, "Mixed precision on one sheet", 28, bold=True)
    canvas.text(20, 74, "One call: down the floors of the dispatcher", 17, bold=True)
    dispatcher.floors(canvas, 20, 92, 480)
    canvas.text(540, 74, "One step: down to half, up to float32", 17, bold=True)
    one_step.step(canvas, 540, 86)
    canvas.text(20, 424, "What the formats hold", 17, bold=True)
    formats(canvas, 20, 440)
    canvas.text(20, 610, "Who runs where (CUDA)", 17, bold=True)
    families(canvas, 20, 628)
    canvas.text(540, 540, "The loss scale", 17, bold=True)
    rule(canvas, 540, 556)
    return str(canvas)


def formats(canvas: Canvas, x: float, y: float) -> None:
    def across(power: float) -> float:
        return x + 60 + (power + 149) / 277 * 400

    for power in (-149, -126, -24, 0, 16, 128):
        canvas.line(across(power), y, across(power), y + 108, GRID)
        canvas.text(across(power), y + 126, power_of_two(power), 12, "middle")
    rows = ((FP32_FORMAT, FP32), (BF16_FORMAT, BF16), (FP16_FORMAT, FP16))
    for row, (fmt, colour) in enumerate(rows):
        top = y + 8 + 34 * row
        lowest = across(floor_log2(fmt.smallest_subnormal))
        normal, right = across(fmt.min_exponent), across(fmt.max_exponent + 1)
        canvas.text(x, top + 16, fmt.name, 15, bold=True, fill=colour)
        canvas.rect(lowest, top, normal - lowest, 22, colour, opacity=0.35)
        canvas.rect(normal, top, right - normal, 22, colour, opacity=0.85)
        digits = f"{fmt.mantissa_bits + 1} digits"
        if fmt is FP16_FORMAT:
            canvas.text(right + 8, top + 16, digits, 12)
        else:
            canvas.text(right - 4, top + 16, digits, 12, "end", PAPER)


def families(canvas: Canvas, x: float, y: float) -> None:
    """The families of ops on CUDA's lists, the largest first, with their reasons."""
    found: dict[tuple[str, Category], list[str]] = {}
    for row in CUDA:
        if row.category in COLOURS:
            found.setdefault((row.why, row.category), []).append(row.op)
    for number, ((why, category), ops) in enumerate(list(found.items())):
        column, line = divmod(number, 8)
        left, top = x + 520 * column, y + 27 * line
        canvas.rect(left, top, 8, 20, COLOURS[category], opacity=0.9, r=2)
        shown = why.split(":")[0].split(";")[0].split(", or")[0]
        canvas.text(left + 16, top + 15, shown, 13, bold=True)
        names = ", ".join(dict.fromkeys(op.split(".")[0] for op in ops if op[0] != "_"))
        room = 62 - len(shown)
        if len(names) > room:
            names = names[:room].rsplit(",", 1)[0] + " …"
        canvas.text(left + 500, top + 15, names, 11, "end", mono=True, faint=True)


def rule(canvas: Canvas, x: float, y: float) -> None:
    for row, (when, what, colour) in enumerate(
        (
            ("overflow", "skip the step, scale × ½, count anew", FP16),
            ("2000 clean steps", "scale × 2, count anew", BF16),
        )
    ):
        canvas.rect(x, y + 26 * row, 8, 20, colour, opacity=0.9, r=2)
        canvas.text(x + 16, y + 15 + 26 * row, when, 13, bold=True)
        canvas.text(x + 150, y + 15 + 26 * row, what, 13, fill=INK)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(standalone(draw()), encoding="utf-8")

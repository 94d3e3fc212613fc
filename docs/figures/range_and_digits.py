"""Formats by how far they reach and how many digits they have."""

from __future__ import annotations

from canvas import BF16, FP8, FP16, FP32, GRID, Axes, Canvas
from minamp import BF16 as BF16_FORMAT
from minamp import FP8_E4M3, FP8_E5M2, FloatFormat
from minamp import FP16 as FP16_FORMAT
from minamp import FP32 as FP32_FORMAT
from minamp.numbers.formats import floor_log2

TF32 = FloatFormat("tf32", exponent_bits=8, mantissa_bits=10)
FORMATS = (
    (FP32_FORMAT, "fp32", FP32, "end"),
    (TF32, "tf32 (19 bits)", FP32, "end"),
    (BF16_FORMAT, "bf16", BF16, "end"),
    (FP16_FORMAT, "fp16", FP16, "start"),
    (FP8_E5M2, "fp8 e5m2", FP8, "start"),
    (FP8_E4M3, "fp8 e4m3", FP8, "start"),
)


def draw() -> str:
    canvas = Canvas(480, 262, "Number formats by range and by digits")
    axes = Axes(canvas, (40, 26, 424, 184), (0, 300), (0, 26))
    axes.ticks_x(
        {n: str(n) for n in (0, 50, 100, 150, 200, 250, 300)}, "binades it reaches"
    )
    axes.ticks_y(
        {n: str(n) for n in (0, 4, 8, 12, 16, 20, 24)}, "binary digits it keeps"
    )
    for fmt, name, colour, anchor in FORMATS:
        binades = fmt.max_exponent - floor_log2(fmt.smallest_subnormal) + 1
        x, y = axes.at(binades, fmt.mantissa_bits + 1)
        canvas.line(x, y, x, 210, GRID)
        canvas.dot(x, y, 6, colour)
        shift = 11 if anchor == "start" else -11
        lower = -4 if fmt is FP8_E4M3 else 5  # its neighbour needs the room below
        canvas.text(x + shift, y + lower, name, 13, anchor, colour, bold=True)
    return str(canvas)

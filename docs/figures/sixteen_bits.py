"""The bits of five formats, and the powers of two that each of them reaches."""

from __future__ import annotations

from canvas import BF16 as BLUE
from canvas import FP8, FP16, FP32, GRID, INK, Canvas, power_of_two
from minamp import BF16 as BF16_FORMAT
from minamp import FP8_E4M3, FP8_E5M2, FloatFormat
from minamp import FP16 as FP16_FORMAT
from minamp import FP32 as FP32_FORMAT
from minamp.numbers.formats import floor_log2

FORMATS = {
    FP32_FORMAT: FP32,
    BF16_FORMAT: BLUE,
    FP16_FORMAT: FP16,
    FP8_E5M2: FP8,
    FP8_E4M3: FP8,
}


def draw() -> str:
    canvas = Canvas(480, 372, "The bits of five formats and the range of each")
    for row, (fmt, colour) in enumerate(FORMATS.items()):
        bits(canvas, fmt, colour, 26 + 30 * row)
    canvas.text(0, 12, "sign, exponent, mantissa", 12, faint=True)
    canvas.text(0, 196, "powers of two it reaches (pale: subnormal)", 12, faint=True)
    for power in (-149, -126, -24, 0, 16, 128):
        canvas.line(across(power), 206, across(power), 346, GRID)
        canvas.text(across(power), 364, power_of_two(power), 13, "middle")
    for row, (fmt, colour) in enumerate(FORMATS.items()):
        reach(canvas, fmt, colour, 212 + 27 * row)
    return str(canvas)


def bits(canvas: Canvas, fmt: FloatFormat, colour: str, top: float) -> None:
    canvas.text(0, top + 14, name(fmt), bold=True, fill=colour)
    for bit in range(fmt.bits):
        part = 0 if bit == 0 else 1 if bit <= fmt.exponent_bits else 2
        x = 92 + 11.7 * bit + 3 * min(part, 2)
        opacity = (0.25, 1, 0.5)[part]
        canvas.rect(x, top, 10, 18, colour, opacity=opacity, r=2)


def name(fmt: FloatFormat) -> str:
    return fmt.name.replace("fp8_", "").replace("e4m3fn", "e4m3")


def across(power: float) -> float:
    return 80 + (power + 149) / 277 * 380


def reach(canvas: Canvas, fmt: FloatFormat, colour: str, top: float) -> None:
    lowest = floor_log2(fmt.smallest_subnormal)
    left, normal, right = map(across, (lowest, fmt.min_exponent, fmt.max_exponent + 1))
    canvas.text(0, top + 14, name(fmt), bold=True, fill=colour)
    canvas.rect(left, top + 2, normal - left, 15, colour, opacity=0.35)
    canvas.rect(normal, top + 2, right - normal, 15, colour, opacity=0.9)
    canvas.line(across(0), top, across(0), top + 19, INK, opacity=0.4)

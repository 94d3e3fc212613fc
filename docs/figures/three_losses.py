"""What fp16 and bf16 do to a number of each size: relative error, by power of two."""

from __future__ import annotations

import math

import torch

from canvas import BF16, FP16, LOST, Axes, Canvas, power_of_two


def draw() -> str:
    canvas = Canvas(480, 250, "Relative error of a number stored in fp16 and in bf16")
    axes = Axes(canvas, (44, 26, 424, 176), (-34, 22), (-4.2, 0.3))
    axes.ticks_x(
        {p: power_of_two(p) for p in (-30, -24, -14, 0, 16)}, "size of the number"
    )
    axes.ticks_y(
        {0: "100%", -1: "10%", -2: "1%", -3: "0.1%", -4: "0.01%"},
        "largest relative error",
    )
    for dtype, colour in ((torch.bfloat16, BF16), (torch.float16, FP16)):
        axes.curve(worst_errors(dtype), stroke=colour, width=2.4)
    for x, text, anchor in ((-27.4, "underflow", "end"), (16.6, "overflow", "start")):
        canvas.text(
            *axes.at(x, 0.12 if anchor == "start" else -0.42), text, 12, anchor, LOST
        )
    canvas.text(*axes.at(-3, -3.05), "fp16: rounding, half an ulp", 12, "middle", FP16)
    canvas.text(
        *axes.at(-3, -2.15), "bf16: the same at every size here", 12, "middle", BF16
    )
    canvas.text(*axes.at(-22.6, -1.55), "subnormal:", 12, "end", FP16)
    canvas.text(*axes.at(-22.6, -1.85), "bits run out", 12, "end", FP16)
    return str(canvas)


def worst_errors(dtype: torch.dtype) -> list[tuple[float, float]]:
    """For each power of two, log10 of the largest relative error among many numbers."""
    points = []
    for power in range(-34, 22):
        values = torch.linspace(1, 2, 4001, dtype=torch.float64)[:-1] * 2.0**power
        error = ((values.to(dtype).double() - values) / values).abs().max().item()
        height = math.log10(min(error, 1.0))
        points += [(power, height), (power + 1, height)]
    return points

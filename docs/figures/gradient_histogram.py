"""Gradients of a small network by power of two, before and after scaling."""

from __future__ import annotations

import torch

from canvas import FP16, FP32, GOOD, LOST, Axes, Canvas, power_of_two
from minamp import FP16 as FORMAT
from minamp import ExponentHistogram, exponent_histogram
from minamp.numbers.formats import floor_log2

POWER = 11


def gradients() -> ExponentHistogram:
    """Those of a ten-layer network that classifies noise, at its first batch."""
    torch.manual_seed(0)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(96, 96), torch.nn.ReLU()) for _ in range(9)
    ]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(96, 10))
    inputs, classes = torch.randn(512, 96), torch.randint(10, (512,))
    torch.nn.functional.cross_entropy(model(inputs), classes).backward()
    parts = (exponent_histogram(weight.grad) for weight in model.parameters())
    return sum(parts, ExponentHistogram({}))


def draw() -> str:
    canvas = Canvas(
        480, 290, "Gradients by power of two, before and after loss scaling"
    )
    before = gradients()
    after = before.scaled_by_power_of_two(POWER)
    for row, (title, counted) in enumerate(
        (("as they are", before), (f"loss times {power_of_two(POWER)}", after))
    ):
        one(canvas, title, counted, 26 + 148 * row)
    return str(canvas)


def one(canvas: Canvas, title: str, counted: ExponentHistogram, top: float) -> None:
    highest = max(counted.counts.values())
    axes = Axes(canvas, (10, top, 460, 84), (-46, 18), (0, highest))
    lowest = floor_log2(FORMAT.smallest_subnormal)
    zones = ((lowest, FORMAT.min_exponent, 0.09), (FORMAT.min_exponent, 16, 0.2))
    for start, end, opacity in zones:
        (left, _), (right, _) = axes.at(start, 0), axes.at(end, 0)
        canvas.rect(left, top, right - left, 84, GOOD, opacity=opacity)
    for power, number in counted.counts.items():
        (left, high), (right, low) = axes.at(power, number), axes.at(power + 1, 0)
        colour = (
            LOST if power < lowest else FP16 if power < FORMAT.min_exponent else FP32
        )
        canvas.rect(left, high, right - left - 0.8, low - high, colour)
    axes.ticks_x({p: power_of_two(p) for p in (-40, -24, -14, 0, 16)})
    lost = counted.share_below_smallest_subnormal(FORMAT)
    short = counted.share_subnormal(FORMAT)
    canvas.text(12, top - 8, title, 13, bold=True)
    canvas.text(
        470, top - 8, f"below fp16: {lost:.0%}, subnormal: {short:.0%}", 12, "end"
    )

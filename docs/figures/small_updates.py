"""Two hundred small steps on a weight of 1, with four ways to keep it."""

from __future__ import annotations

import torch

from canvas import BF16, FP8, FP16, GOOD, Axes, Canvas
from minamp import KahanSummation, MasterWeights, StochasticRounding

STEPS, RATE = 200, 1e-4


def path(kind: type | None) -> list[tuple[int, float]]:
    """The weight after each step of SGD with gradient 1, held in float16 by `kind`."""
    torch.manual_seed(2)
    model = torch.nn.Linear(1, 1, bias=False).half()
    with torch.no_grad():
        model.weight.fill_(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    if kind is not None:
        kind(model, optimizer)
    points = []
    for step in range(STEPS + 1):
        points.append((step, model.weight.item()))
        optimizer.zero_grad()
        model.weight.sum().backward()
        optimizer.step()
    return points


def draw() -> str:
    canvas = Canvas(
        480, 258, "Two hundred updates of a ten-thousandth on a weight of one"
    )
    axes = Axes(canvas, (52, 24, 418, 166), (0, STEPS), (0.976, 1.0035))
    axes.ticks_x({n: str(n) for n in (0, 50, 100, 150, 200)}, "step")
    axes.ticks_y({y: f"{y:.3f}" for y in (0.98, 0.985, 0.99, 0.995, 1.0)})
    axes.curve(
        [(0, 1), (STEPS, 1 - STEPS * RATE)],
        stroke=GOOD,
        dash="5 4",
        width=5,
        opacity=0.5,
    )
    axes.curve(path(StochasticRounding), stroke=FP8, width=1.5)
    axes.curve(path(KahanSummation), stroke=BF16, width=3.5, opacity=0.55)
    axes.curve(path(MasterWeights), stroke=FP16, width=1.5)
    axes.curve(path(None), stroke="currentColor", width=2.5)
    canvas.text(60, 36, "float16 alone: it never moves", 12, bold=True)
    for x, text, colour in (
        (52, "exact", GOOD),
        (106, "masters", FP16),
        (176, "Kahan (hidden behind)", BF16),
        (326, "stochastic rounding", FP8),
    ):
        canvas.text(x, 246, text, 12, fill=colour, bold=True)
    return str(canvas)

"""The loss scale over time: `next_state` folded over a history of overflows."""

from __future__ import annotations

import math
import random

from canvas import FP16, GOOD, LOST, Axes, Canvas, power_of_two
from minamp import ScaleState, next_state

INTERVAL = 40


def history() -> list[tuple[float, bool, float]]:
    """The scale, whether the step overflowed, and log2 of the best scale: 400 steps.

    The largest scale that does not overflow wanders, as it does in training.
    """
    chance = random.Random(1)
    state = ScaleState(scale=2.0**16, growth_interval=INTERVAL)
    best, steps = 13.4, []
    for step in range(400):
        best += chance.gauss(0, 0.06) + (0.01 if step < 250 else -0.012)
        found_inf = state.scale > 2.0**best
        steps.append((state.scale, found_inf, best))
        state = next_state(state, found_inf)
    return steps


def draw() -> str:
    canvas = Canvas(
        480, 236, "The loss scale searches for the largest that does not overflow"
    )
    axes = Axes(canvas, (44, 22, 426, 166), (0, 400), (10.5, 18.6))
    axes.ticks_x({n: str(n) for n in (0, 100, 200, 300, 400)}, "step")
    axes.ticks_y({p: power_of_two(p) for p in (11, 13, 15, 17)})
    steps = history()
    axes.curve(
        [(n, best) for n, (_, _, best) in enumerate(steps)],
        stroke=GOOD,
        dash="4 3",
        width=1.5,
    )
    axes.curve(staircase(steps), stroke=FP16)
    for number, (scale, found_inf, _) in enumerate(steps):
        if found_inf:
            canvas.dot(*axes.at(number, math.log2(scale)), 3.2, LOST)
    canvas.text(44, 14, "loss scale", 12, fill=FP16, bold=True)
    canvas.text(130, 14, "largest safe scale", 12, fill=GOOD, bold=True)
    canvas.text(262, 14, "● overflow: step skipped", 12, fill=LOST, bold=True)
    canvas.text(44, 230, f"growth interval {INTERVAL}", 12, faint=True)
    return str(canvas)


def staircase(steps: list) -> list[tuple[float, float]]:
    points = []
    for number, (scale, _, _) in enumerate(steps):
        height = math.log2(scale)
        points += [(number, height), (number + 1, height)]
    return points

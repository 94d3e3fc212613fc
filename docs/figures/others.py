"""One history, four rules: what each tool's loss scale does. Interval 10 for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from canvas import BF16, FP8, FP16, LOST, Axes, Canvas
from minamp import ScaleState, next_state

INTERVAL, STEPS, START, BEST = 10, 90, 2.0**10, 2.0**13
CHANCE = (4, 27, 28, 64)  # overflows for a reason of their own

Rule = Iterator[float]  # next(rule) is the scale, rule.send(found_inf) the one after


def torch_rule():
    """torch.amp's, and minamp's."""
    state = ScaleState(scale=START, growth_interval=INTERVAL)
    while True:
        state = next_state(state, (yield state.scale))


def flax_rule():
    """Grows in the step after the interval is full."""
    scale, finite = START, 0
    while True:
        found_inf = yield scale
        grows = finite == INTERVAL
        if found_inf:
            scale, finite = scale / 2, 0
        else:
            scale, finite = (scale * 2, 0) if grows else (scale, finite + 1)


def megatron_rule(hysteresis: int = 2):
    """Backs off once so many overflows have come since the scale last grew."""
    scale, clean, patience = START, 0, hysteresis
    while True:
        if (yield scale):
            clean, patience = 0, patience - 1
            scale = scale / 2 if patience <= 0 else scale
        else:
            clean += 1
            if clean == INTERVAL:
                scale, clean, patience = scale * 2, 0, hysteresis


def deepspeed_rule(hysteresis: int = 2):
    """Patience as above; clean steps are counted from the last overflow, one late."""
    scale, last, patience, step = START, -1, hysteresis, 0
    while True:
        if (yield scale):
            last = step
            if patience == 1:
                scale = max(scale / 2, 1)
            else:
                patience -= 1
        else:
            stable = step - last - 1
            if stable > 0 and stable % INTERVAL == 0:
                scale, patience = scale * 2, hysteresis
        step += 1


RULES: tuple[tuple[str, Callable[[], Rule], str], ...] = (
    ("torch.amp, minamp", torch_rule, FP16),
    ("flax", flax_rule, BF16),
    ("Megatron, hysteresis 2", megatron_rule, FP8),
    ("DeepSpeed, hysteresis 2", deepspeed_rule, FP8),
)


def run(rule: Rule) -> list[tuple[float, bool]]:
    scale, steps = next(rule), []
    for step in range(STEPS):
        found_inf = scale > BEST or step in CHANCE
        steps.append((scale, found_inf))
        scale = rule.send(found_inf)
    return steps


def draw() -> str:
    canvas = Canvas(
        480, 400, "The loss scale of four tools on one history of overflows"
    )
    for row, (name, rule, colour) in enumerate(RULES):
        axes = Axes(canvas, (8, 24 + 92 * row, 464, 62), (0, STEPS), (8.5, 14.5))
        last = row == len(RULES) - 1
        ticks = {n: str(n) if last else "" for n in range(0, STEPS + 1, 10)}
        axes.ticks_x(ticks, "step" if last else "")
        steps = run(rule())
        points = [
            (step + side, math.log2(scale))
            for step, (scale, _) in enumerate(steps)
            for side in (0, 1)
        ]
        axes.curve(points, stroke=colour)
        for step, (scale, found_inf) in enumerate(steps):
            if found_inf:
                canvas.dot(*axes.at(step + 0.5, math.log2(scale)), 3, LOST)
        skipped = sum(found_inf for _, found_inf in steps)
        canvas.text(8, 16 + 92 * row, name, 13, fill=colour, bold=True)
        canvas.text(472, 16 + 92 * row, f"{skipped} skipped", 12, "end", faint=True)
    return str(canvas)

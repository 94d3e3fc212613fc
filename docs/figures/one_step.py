"""One step of training, as a round trip between float32 and half."""

from __future__ import annotations

from canvas import BF16, FP16, FP32, GOOD, LOST, Canvas

LEFT, RIGHT = 96, 384


def draw() -> str:
    canvas = Canvas(480, 412, "One step: weights down to half, gradients up to float32")
    step(canvas, 0, 0)
    return str(canvas)


def step(canvas: Canvas, x: float, y: float) -> None:
    """The round trip, 480 by 412; also a part of the drawing for the wall."""
    canvas.text(x + LEFT, y + 16, "forward", 13, "middle", faint=True)
    canvas.text(x + RIGHT, y + 16, "backward", 13, "middle", faint=True)
    box(canvas, x + LEFT, y + 26, "weights", "float32", FP32)
    box(canvas, x + LEFT, y + 112, "weights, copies", "half", FP16)
    box(canvas, x + LEFT, y + 198, "activations", "half", FP16)
    box(canvas, x + LEFT, y + 284, "loss", "float32", FP32)
    box(canvas, x + RIGHT, y + 284, "loss times scale", "float32", FP32)
    box(canvas, x + RIGHT, y + 198, "gradients, scaled", "half", FP16)
    box(canvas, x + RIGHT, y + 112, "gradients, scaled", "float32", FP32)
    box(canvas, x + RIGHT, y + 26, "gradients", "float32", FP32)
    down = (("1 cast", 82), ("2 multiply", 168), ("3 reduce", 254))
    for text, top in down:
        canvas.arrow(x + LEFT, y + top - 6, x + LEFT, y + top + 28)
        canvas.text(x + LEFT + 8, y + top + 14, text, 12)
    canvas.arrow(x + LEFT + 82, y + 309, x + RIGHT - 82, y + 309, BF16)
    canvas.text(x + 240, y + 301, "4 scale", 12, "middle", BF16)
    up = (("5 chain rule", 254), ("6 cast back", 168), ("7 unscale, check, clip", 82))
    for text, top in up:
        canvas.arrow(x + RIGHT, y + top + 28, x + RIGHT, y + top - 6)
        canvas.text(x + RIGHT - 8, y + top + 14, text, 12, "end")
    canvas.arrow(x + RIGHT - 82, y + 51, x + LEFT + 82, y + 51, GOOD)
    canvas.text(x + 240, y + 42, "8 step, if finite", 12, "middle", GOOD)
    canvas.text(x + 240, y + 66, "else skip", 12, "middle", LOST)
    canvas.rect(x + 60, y + 362, 360, 40, BF16, BF16, opacity=0.1, r=6)
    canvas.text(
        x + 240, y + 387, "9 adapt the scale for the next step", 13, "middle", BF16
    )
    canvas.arrow(x + RIGHT, y + 362, x + RIGHT, y + 338, BF16)


def box(canvas: Canvas, x: float, y: float, what: str, dtype: str, colour: str) -> None:
    canvas.rect(x - 78, y, 156, 50, colour, colour, opacity=0.12, r=6)
    canvas.text(x, y + 21, what, 13, "middle", bold=True)
    canvas.text(x, y + 39, dtype, 12, "middle", colour)

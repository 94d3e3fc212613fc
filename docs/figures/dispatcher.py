"""The house of the dispatcher: a call rides down, and autocast is one of the floors."""

from __future__ import annotations

from canvas import BF16, FP16, FP32, INK, Canvas

FLOORS = (
    ("Python", "torch.nn.functional.linear(x, w)", INK),
    ("Autocast", "minamp's kernel: cast x and w, shut this floor, call again", FP16),
    ("Autograd", "writes the op down, for the backward pass", BF16),
    ("CPU or CUDA", "the kernel that computes", FP32),
)


def draw() -> str:
    canvas = Canvas(480, 304, "A call rides down the floors of the dispatcher")
    floors(canvas, 0, 6, 480)
    return str(canvas)


def floors(canvas: Canvas, left: float, top: float, width: float) -> None:
    """The house; also a part of the drawing for the wall."""
    for row, (name, does, colour) in enumerate(FLOORS):
        y = top + 74 * row
        canvas.rect(left + 1, y, width - 2, 62, colour, colour, opacity=0.1, r=6)
        canvas.text(left + 12, y + 24, name, 15, bold=True, fill=colour)
        canvas.text(left + 12, y + 46, does, 13, mono=row == 0)
    lifts(canvas, left + width, top)


def lifts(canvas: Canvas, right: float, top: float) -> None:
    """Two cars: a listed op stops at the autocast floor, any other does not."""
    listed, other = right - 96, right - 34
    canvas.text(listed, top + 20, "listed op", 12, "middle", FP16)
    canvas.text(other, top + 20, "other", 12, "middle", faint=True)
    canvas.arrow(listed, top + 28, listed, top + 80, FP16)
    canvas.dot(listed, top + 88, 5, FP16)
    canvas.arrow(listed, top + 96, listed, top + 158, FP16)
    canvas.arrow(listed, top + 166, listed, top + 234, FP16)
    canvas.arrow(other, top + 28, other, top + 158, INK)
    canvas.arrow(other, top + 166, other, top + 234, INK)

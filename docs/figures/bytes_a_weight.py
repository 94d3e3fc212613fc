"""Bytes for each weight under Adam, by what they are for, in each way to train."""

from __future__ import annotations

from canvas import BF16, FP8, FP16, FP32, Canvas

PAPER = "var(--color-background-primary)"

# weight, what else keeps it, gradient, Adam's two moments, copies while in a region
WAYS = {
    "float32": (4, 0, 4, 8, 0),
    "autocast": (4, 0, 4, 8, 2),
    "masters": (2, 4, 4, 8, 0),
    "Kahan": (2, 2, 4, 8, 0),
    "stochastic": (2, 0, 4, 8, 0),
}
PARTS = (
    ("weight", FP16),
    ("master, rest", FP8),
    ("gradient", BF16),
    ("moments", FP32),
    ("half copy", FP16),
)


def draw() -> str:
    canvas = Canvas(480, 216, "Bytes a weight under Adam")
    for row, (name, sizes) in enumerate(WAYS.items()):
        top, left = 6 + 34 * row, 92.0
        canvas.text(0, top + 18, name, 13, bold=True)
        for size, (part, colour) in zip(sizes, PARTS, strict=True):
            opacity = 0.45 if part == "half copy" else 0.85
            canvas.rect(left, top, 20 * size - 2, 26, colour, opacity=opacity, r=2)
            if size:
                canvas.text(
                    left + 10 * size - 1, top + 18, f"{size}", 12, "middle", PAPER
                )
            left += 20 * size
        canvas.text(left + 6, top + 18, f"{sum(sizes)}", 13, bold=True)
    left = 0.0
    for (part, colour), width in zip(PARTS, (76, 112, 88, 90, 90), strict=True):
        opacity = 0.45 if part == "half copy" else 0.85
        canvas.rect(left, 190, 12, 12, colour, opacity=opacity, r=2)
        canvas.text(left + 16, 201, part, 12)
        left += width
    return str(canvas)

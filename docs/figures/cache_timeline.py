"""A weight through one region: what the cache holds, and what makes it cast anew."""

from __future__ import annotations

from canvas import BF16, FP16, FP32, GRID, INK, Canvas

EVENTS = (
    (66, "layer(x)", "cast", "float16, v0", FP16),
    (150, "layer(x)", "hit", "", FP16),
    (234, "w.add_(d)", "v1", "", FP32),
    (318, "layer(x)", "cast", "float16, v1", FP16),
    (402, "bf16 inside", "cast", "bfloat16, v1", BF16),
)


def draw() -> str:
    canvas = Canvas(480, 190, "What the weight cache does in one region")
    canvas.rect(20, 8, 440, 176, "none", GRID, r=8)
    canvas.text(30, 26, "with autocast(...):", 13, mono=True, faint=True)
    canvas.line(36, 70, 446, 70, INK)
    for x, what, does, holds, colour in EVENTS:
        canvas.dot(x, 70, 5, colour)
        canvas.text(x, 52, what, 12, "middle", mono=True)
        canvas.text(x, 92, does, 13, "middle", fill=colour, bold=True)
        if holds:
            canvas.arrow(x, 98, x, 122, colour)
            kind, version = holds.split(", ")
            canvas.rect(x - 36, 124, 72, 40, colour, colour, opacity=0.12, r=5)
            canvas.text(x, 140, kind, 12, "middle", mono=True)
            canvas.text(x, 156, version, 12, "middle", mono=True)
    canvas.text(150, 148, "same entry", 12, "middle", faint=True)
    canvas.text(234, 148, "key changes", 12, "middle", faint=True)
    return str(canvas)

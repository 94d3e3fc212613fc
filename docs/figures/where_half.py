"""How PyTorch divides the ops, on CUDA and on the CPU, by category."""

from __future__ import annotations

from collections import Counter

from canvas import FP16, FP32, GOOD, LOST, Canvas
from minamp.policy.op_lists import Category
from minamp.policy.torch_lists import CPU, CUDA

BANDS = {
    "halves": (FP16, {Category.LOWER_PRECISION_FP}),
    "float32": (
        FP32,
        {Category.FP32, Category.FP32_SET_OPT_DTYPE, Category.FP32_APPEND_DTYPE},
    ),
    "widest": (GOOD, {Category.PROMOTE}),
    "banned": (LOST, {Category.BANNED}),
}


def draw() -> str:
    canvas = Canvas(480, 158, "Ops on each list, for CUDA and for the CPU")
    for row, (name, rows) in enumerate((("CUDA", CUDA), ("CPU", CPU))):
        top = 22 + 56 * row
        counts = Counter(entry.category for entry in rows)
        canvas.text(0, top + 20, name, bold=True)
        left = 52.0
        for colour, categories in BANDS.values():
            number = sum(counts[category] for category in categories)
            width = number * 420 / max(len(CUDA), len(CPU))
            canvas.rect(left, top, max(width - 2, 0), 30, colour, opacity=0.85, r=2)
            if width > 30:
                canvas.text(
                    left + 6,
                    top + 20,
                    f"{number}",
                    13,
                    fill="var(--color-background-primary)",
                    bold=True,
                )
            left += width
    left = 52.0
    for label, (colour, _) in BANDS.items():
        canvas.rect(left, 132, 12, 12, colour, opacity=0.85, r=2)
        canvas.text(left + 17, 143, label, 13)
        left += 100
    canvas.text(52, 14, "ops that are listed, of PyTorch's thousands", 12, faint=True)
    return str(canvas)

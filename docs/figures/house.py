"""The seven floors of minamp, with the lines on each; read from the files."""

from __future__ import annotations

from pathlib import Path

from canvas import BF16, FP16, FP32, GOOD, INK, Canvas

SOURCE = Path(__file__).parents[2] / "minamp"
FLOORS = {
    "loop": ("the whole step, recipes, checkpoints", INK),
    "weights": ("half weights, float32 masters", FP32),
    "scaling": ("the loss scale", BF16),
    "autocasting": ("regions, dispatcher, cache", FP16),
    "policy": ("which op in which precision", FP16),
    "tensors": ("casts, gradients, histograms", GOOD),
    "numbers": ("formats and rounding, no torch", GOOD),
}


def draw() -> str:
    canvas = Canvas(480, 270, "The seven floors of minamp")
    for row, (floor, (about, colour)) in enumerate(FLOORS.items()):
        files = [
            path for path in (SOURCE / floor).glob("*.py") if path.stem != "__init__"
        ]
        lines = sum(
            len(path.read_text(encoding="utf-8").splitlines()) for path in files
        )
        y = 6 + 37 * row
        canvas.rect(1, y, 478, 32, colour, colour, opacity=0.12, r=4)
        canvas.text(12, y + 21, floor, 14, bold=True, fill=colour)
        canvas.text(118, y + 21, about, 13)
        canvas.text(
            470, y + 21, f"{len(files)} files, {lines} lines", 12, "end", faint=True
        )
    return str(canvas)

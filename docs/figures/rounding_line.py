"""The numbers of fp16 around 2048, and where what lies between them goes."""

from __future__ import annotations

from fractions import Fraction

from canvas import FP16, GOOD, GRID, INK, Canvas
from minamp import FP16 as FORMAT
from minamp import round_to_nearest_even

FIRST, LAST = 2044, 2056
ASKED = [Fraction(x) for x in (2045.25, 2045.5, 2046.5, 2049, 2050.75, 2051, 2053)]


def draw() -> str:
    canvas = Canvas(480, 156, "Rounding to the numbers of fp16 around 2048")
    canvas.line(10, 100, 470, 100, INK, 1.2)
    for number in range(FIRST, LAST + 1):
        if round_to_nearest_even(Fraction(number), FORMAT) == number:
            spacing = FORMAT.spacing(number)
            is_even = (number / spacing) % 2 == 0
            canvas.line(
                across(number), 90, across(number), 110, FP16, 3 if is_even else 1.5
            )
            canvas.text(across(number), 128, str(number), 12, "middle", mono=True)
    canvas.line(across(2048), 20, across(2048), 90, GRID, 1.5, "4 3")
    canvas.text(across(2048) - 6, 16, "step 1", 12, "end", faint=True)
    canvas.text(across(2048) + 6, 16, "step 2", 12, "start", faint=True)
    for asked in ASKED:
        goes_to = round_to_nearest_even(asked, FORMAT)
        spacing = FORMAT.spacing(asked)
        is_tie = (asked / spacing) % 1 == Fraction(1, 2)
        colour = FP16 if is_tie else GOOD
        canvas.dot(across(asked), 44, 3.5, colour)
        canvas.arrow(across(asked), 50, across(goes_to), 88, colour)
    canvas.dot(30, 146, 3.5, FP16)
    canvas.text(40, 150, "a tie: to the even neighbour (thick)", 12)
    canvas.dot(272, 146, 3.5, GOOD)
    canvas.text(282, 150, "the nearer neighbour", 12)
    return str(canvas)


def across(number: Fraction | float) -> float:
    return float(20 + (number - FIRST) / (LAST - FIRST) * 440)

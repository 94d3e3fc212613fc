"""Which numbers do fp16, bf16 and fp32 hold, and how far apart are they?

A float is a count of equal steps, and the step doubles at every power of two:
|x| = n * 2^(e - m).  More exponent bits reach further, more mantissa bits step finer,
and sixteen bits cannot have both.

    python demos/01_where_floats_live.py
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from rich.table import Table

import _common as common
import _lesson
from minamp.numbers.formats import BF16, FP16, FP32, FloatFormat
from minamp.numbers.patterns import value_of
from minamp.numbers.rounding import fate, round_to_nearest_even

FORMATS = (FP16, BF16, FP32)
GUESTS = (0.1, 1.001, 1.003, 257.0, 2049.0, 65519.0, 65520.0, 1e-5, 6e-8, 2e-8, 1e38)


def as_table() -> Table:
    made = common.table(
        "What each format holds",
        *("", "exponent, mantissa bits", "smallest", "smallest normal", "largest"),
        *("step at 1", "step at 2048"),
    )
    for fmt in FORMATS:
        limits = fmt.smallest_subnormal, fmt.smallest_normal, fmt.largest
        steps = fmt.spacing(1), fmt.spacing(2048)
        numbers = [f"{float(x):.3g}" for x in (*limits, *steps)]
        made.add_row(fmt.name, f"{fmt.exponent_bits}, {fmt.mantissa_bits}", *numbers)
    return made


def as_guest_table() -> Table:
    """What becomes of some numbers; rounded by hand, in exact arithmetic."""
    made = common.table("What becomes of", *("", *(fmt.name for fmt in FORMATS)))
    for x in GUESTS:
        rounded = [float(round_to_nearest_even(x, fmt)) for fmt in FORMATS]
        fates = [fate(x, fmt).name.lower() for fmt in FORMATS]
        cells = [f"{y:.8g}  {why:9}" for y, why in zip(rounded, fates, strict=True)]
        made.add_row(f"{x:.6g}", *cells)
    return made


def rounds_as_torch(fmt: FloatFormat) -> bool:
    guests = torch.tensor(GUESTS, dtype=torch.float64)
    by_torch = guests.to(common.DTYPES[fmt.name]).double().tolist()
    return by_torch == [float(round_to_nearest_even(x, fmt)) for x in GUESTS]


def finite_numbers(fmt: FloatFormat) -> tuple[int, bool]:
    """How many of the 65,536 patterns are finite, and does torch read the same?"""
    patterns = torch.arange(2**16).to(torch.uint16)
    by_torch = patterns.view(common.DTYPES[fmt.name]).double().tolist()
    ours = [float(value_of(pattern, fmt)) for pattern in range(2**16)]
    same = all(
        a == b or (math.isnan(a) and math.isnan(b))
        for a, b in zip(ours, by_torch, strict=True)
    )
    return sum(map(math.isfinite, ours)), same


def draw() -> Any:
    drawn, ((reach, line),) = common.figure(1, 2)
    for fmt in FORMATS:
        powers = range(fmt.min_exponent - fmt.mantissa_bits, fmt.max_exponent + 1)
        # At a power of two p the step is 2^-digits times p.
        digits = [power - math.log2(fmt.spacing(2.0**power)) for power in powers]
        reach.plot(powers, digits, lw=3, color=common.COLOURS[fmt.name])
        place = fmt.min_exponent + 8, fmt.mantissa_bits + 0.6
        reach.text(*place, fmt.name, color=common.COLOURS[fmt.name])
    reach.set(title="binary digits after the first", ylim=(-1, 26))
    reach.set_xlabel("where: 2 to the ...")
    for row, fmt in enumerate(FORMATS):
        step = max(float(fmt.spacing(2047)), 1 / 16)  # fp32's would be a solid bar
        held = [x for x in numbers_from(2032, 2064, step) if is_held(x, fmt)]
        line.plot(held, [row] * len(held), "|", ms=16, color=common.COLOURS[fmt.name])
    line.set_yticks(range(3), [fmt.name for fmt in FORMATS])
    line.set(title="the numbers around 2048", ylim=(2.6, -0.6))
    line.set_xlabel("(of fp32, one in 512 is drawn below 2048, one in 256 above)")
    return drawn


def numbers_from(low: float, high: float, step: float) -> list[float]:
    return [low + i * step for i in range(int((high - low) / step) + 1)]


def is_held(x: float, fmt: FloatFormat) -> bool:
    return round_to_nearest_even(x, fmt) == x


def main() -> int:
    args = _lesson.begin(__doc__, __file__, quick="no difference: it is quick")
    common.console.print(as_table())
    common.console.print(as_guest_table())
    common.save_figure(draw(), args.out / "where_floats_live.svg")
    (fp16, fp16_same), (bf16, bf16_same) = map(finite_numbers, (FP16, BF16))
    finer = BF16.epsilon / FP16.epsilon
    further = math.log2(BF16.largest / FP16.largest)
    return common.conclude(
        f"n * 2^(e - m) gives all {fp16:,} finite numbers of fp16 and all {bf16:,} of "
        f"bf16 as torch reads them from the bits, and rounding to them is torch's; "
        f"fp16 steps {finer} times finer, bf16 reaches 2^{further:.0f} times further.",
        fp16_same
        and bf16_same
        and all(map(rounds_as_torch, FORMATS))
        and (finer, round(further)) == (8, 112),
    )


if __name__ == "__main__":
    sys.exit(main())

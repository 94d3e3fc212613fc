"""Rounding: which number of a format stands for a given one, in exact arithmetic.

The one idea: measure in steps, then round the count. At |x| the format's numbers lie
one `spacing` apart, so

    rounded = round(|x| / spacing) * spacing,    a tie going to the even count,

and what is now above the largest number has overflowed. "Even" is the last bit of the
mantissa being 0, so ties go up as often as down and sums do not drift (IEEE 754,
section 4.3.1). This is the slow truth; a tensor's `.to(dtype)` must agree with it.
"""

from __future__ import annotations

import enum
import math
from fractions import Fraction

from minamp.numbers.formats import FloatFormat
from minamp.numbers.patterns import has_minus_sign, pattern_of, sign_bit, value_of


class Fate(enum.Enum):
    """What becomes of a number that is stored in a smaller format."""

    EXACT = "the format holds this very number"
    ROUNDED = "a neighbour stands for it, at most half a step away"
    UNDERFLOW = "it was not zero, and now it is"
    OVERFLOW = "it is past the largest number: now infinite, or NaN if nothing is"


def round_to_pattern(x: Fraction | float, fmt: FloatFormat) -> int:
    """The bit pattern of `x` rounded to the nearest number of `fmt`, ties to even.

    Signs survive everything: -0.0 stays -0.0, and a negative number that underflows
    becomes -0.0. Infinities and NaN stay what they are. Past the largest number by
    half a step or more is infinity; a format without infinities gives NaN there
    (as PyTorch 2.11 does; the cast of 2.13 to e4m3fn stops at 448 instead).
    """
    if has_minus_sign(x):
        return sign_bit(fmt) | round_to_pattern(-x, fmt)
    return pattern_of(_round_magnitude(x, fmt), fmt)


def round_to_nearest_even(x: Fraction | float, fmt: FloatFormat) -> Fraction | float:
    """`x` as `fmt` would hold it: a Fraction, or a float inf or nan."""
    return value_of(round_to_pattern(x, fmt), fmt)


def fate(x: Fraction | float, fmt: FloatFormat) -> Fate:
    """Whether `x` survives in `fmt`, and if not, in which way it is lost."""
    rounded = round_to_nearest_even(x, fmt)
    is_nan = x != x
    if rounded == x or is_nan:
        return Fate.EXACT
    if isinstance(rounded, float):
        return Fate.OVERFLOW
    return Fate.ROUNDED if rounded else Fate.UNDERFLOW


def _round_magnitude(x: Fraction | float, fmt: FloatFormat) -> Fraction | float:
    if isinstance(x, float) and math.isnan(x):
        return x
    if x == math.inf:
        return math.inf if fmt.has_infinity else math.nan
    step = fmt.spacing(x)
    # Python's round() of a Fraction is exact and takes ties to the even integer.
    rounded = round(Fraction(x) / step) * step
    return rounded if rounded <= fmt.largest else _round_magnitude(math.inf, fmt)

"""Bit patterns: how the numbers of a format are written down as bits.

The one idea: patterns count. Leave the sign bit away, and pattern 0 is zero, pattern 1
the smallest subnormal number, and each next pattern the next larger number:

    pattern = 2^m * (binades below |x|) + |x| / spacing(x)

Only at the very end comes infinity, then NaN. So the neighbour of a number is its
pattern plus one, and "how many ulps apart" is a subtraction.
"""

from __future__ import annotations

import math
from fractions import Fraction

from minamp.numbers.formats import FloatFormat, floor_log2, power_of_two


def pattern_of(value: Fraction | float, fmt: FloatFormat) -> int:
    """The bit pattern of a value that `fmt` holds exactly.

    A float -0.0 keeps its sign, and so does NaN, which becomes the quiet NaN.
    Raises ValueError for a value that is not in the format: round it first
    (`minamp.numbers.rounding`).
    """
    sign = sign_bit(fmt) if has_minus_sign(value) else 0
    if isinstance(value, float) and not math.isfinite(value):
        return sign | _special_pattern(value, fmt)
    return sign | _finite_pattern(abs(Fraction(value)), fmt)


def value_of(pattern: int, fmt: FloatFormat) -> Fraction | float:
    """The exact value of a bit pattern: a Fraction, or a float inf or nan.

    A Fraction has no -0, so both zeros are Fraction(0); the sign bit of the pattern
    tells them apart. Raises ValueError if the pattern has more bits than the format.
    """
    _check_width(pattern, fmt)
    without_sign = pattern & ~sign_bit(fmt)
    sign = -1 if pattern & sign_bit(fmt) else 1
    if without_sign <= _largest_pattern(fmt):
        return sign * _magnitude(without_sign, fmt)
    is_infinite = fmt.has_infinity and without_sign == _largest_pattern(fmt) + 1
    return sign * math.inf if is_infinite else math.nan


def sign_bit(fmt: FloatFormat) -> int:
    """The pattern in which only the sign bit is set; it is that of -0.0."""
    return 1 << (fmt.bits - 1)


def has_minus_sign(x: Fraction | float) -> bool:
    """Whether `x` is negative; unlike `x < 0`, this is true of -0.0 as well."""
    return math.copysign(1.0, x) < 0 if isinstance(x, float) else x < 0


def _special_pattern(value: float, fmt: FloatFormat) -> int:
    if math.isnan(value):
        return _quiet_nan(fmt)
    if not fmt.has_infinity:
        raise ValueError(
            f"{fmt.name} has no infinity; what overflows becomes NaN there. "
            "Write math.nan, or round: round_to_nearest_even(value, fmt)."
        )
    return _largest_pattern(fmt) + 1


def _finite_pattern(magnitude: Fraction, fmt: FloatFormat) -> int:
    step = fmt.spacing(magnitude)
    if magnitude > fmt.largest or magnitude % step:
        raise ValueError(
            f"{magnitude} is not a number of {fmt.name}. Round it first: "
            "minamp.numbers.rounding.round_to_nearest_even(value, fmt)."
        )
    binades_below = floor_log2(step / fmt.smallest_subnormal)
    return (binades_below << fmt.mantissa_bits) + int(magnitude / step)


def _magnitude(pattern: int, fmt: FloatFormat) -> Fraction:
    stored_exponent = pattern >> fmt.mantissa_bits
    steps = pattern & ((1 << fmt.mantissa_bits) - 1)
    # A stored exponent of 0 means subnormal: the lowest binade, and no leading one.
    if stored_exponent:
        steps += 1 << fmt.mantissa_bits
    exponent = max(stored_exponent, 1) - fmt.bias
    return steps * power_of_two(exponent - fmt.mantissa_bits)


def _largest_pattern(fmt: FloatFormat) -> int:
    all_ones = sign_bit(fmt) - 1
    # The last pattern is NaN; with infinities, so is the last exponent's mantissa.
    return all_ones - (1 << fmt.mantissa_bits if fmt.has_infinity else 1)


def _quiet_nan(fmt: FloatFormat) -> int:
    all_ones = sign_bit(fmt) - 1
    mantissa_below_quiet_bit = (1 << (fmt.mantissa_bits - 1)) - 1
    return all_ones - (mantissa_below_quiet_bit if fmt.has_infinity else 0)


def _check_width(pattern: int, fmt: FloatFormat) -> None:
    if not 0 <= pattern < 1 << fmt.bits:
        raise ValueError(
            f"{pattern:#x} is no pattern of {fmt.name}, which has {fmt.bits} bits: "
            f"give a number from 0 to {(1 << fmt.bits) - 1:#x}."
        )

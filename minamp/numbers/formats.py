"""Number formats: which numbers a 16-bit (or 8-bit, or 32-bit) float can hold.

The one idea: a float is a count of equal steps, and the step doubles at every power
of two. With m mantissa bits, the numbers from 2^e up to 2^(e+1) are

    |x| = n * 2^(e - m)    for n = 2^m, 2^m + 1, ..., 2^(m+1) - 1

and below the smallest normal power of two the step stays as it is, so that n counts
down to 0: those are the subnormal numbers. From this follow the limits of every
format, and the three ways to lose a number in it: it is too large (overflow), too
small (underflow), or too near a neighbour (rounding).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format with a sign bit, an exponent and a mantissa.

    `exponent_bits` decide the range, `mantissa_bits` the precision. Formats follow
    IEEE 754 (the largest exponent holds the infinities and NaN) unless
    `has_infinity` is false: then that exponent holds ordinary numbers as well, and
    only the pattern of all ones is NaN. That is how the eight-bit e4m3fn gets from
    240 to 448 (Micikevicius et al. 2022, "FP8 formats for deep learning", table 1).

    Raises ValueError for fewer than two exponent bits or no mantissa bit.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True

    def __post_init__(self) -> None:
        if self.exponent_bits < 2 or self.mantissa_bits < 1:
            raise ValueError(
                f"{self.name} has {self.exponent_bits} exponent and "
                f"{self.mantissa_bits} mantissa bits. With fewer than 2 and 1 there "
                "are no normal numbers left between zero and NaN: give it more bits."
            )

    @property
    def bits(self) -> int:
        """Width in bits: sign, exponent and mantissa."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is added to an exponent to store it as an unsigned number."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def min_exponent(self) -> int:
        """Power of two of the smallest normal number."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        """Power of two just below the largest number."""
        return self.bias if self.has_infinity else self.bias + 1

    @cached_property
    def largest(self) -> Fraction:
        """The largest finite number, 2^(max_exponent + 1) minus one step.

        Minus two steps without infinities, since there the last pattern is NaN.
        """
        step = power_of_two(self.max_exponent - self.mantissa_bits)
        steps_short = 1 if self.has_infinity else 2
        return power_of_two(self.max_exponent + 1) - steps_short * step

    @cached_property
    def smallest_normal(self) -> Fraction:
        """The smallest number that still has the format's full precision."""
        return power_of_two(self.min_exponent)

    @cached_property
    def smallest_subnormal(self) -> Fraction:
        """The smallest number above zero: one step in the lowest binade."""
        return power_of_two(self.min_exponent - self.mantissa_bits)

    @property
    def epsilon(self) -> Fraction:
        """The distance from 1 to the next larger number."""
        return power_of_two(-self.mantissa_bits)

    def spacing(self, x: Fraction | float) -> Fraction:
        """The step between neighbouring numbers at `x`, one ulp: 2^(e - m).

        e is the power of two just at or below |x|, but never less than the smallest
        normal one; so the subnormal numbers all have the same spacing. Above the
        largest number the steps go on as if the exponent had no end: this is what
        decides which numbers overflow. Raises ValueError for infinities and NaN.
        """
        if isinstance(x, float) and not math.isfinite(x):
            raise ValueError(
                f"{x} has no neighbours, so there is no spacing at it: ask only at "
                "finite numbers (math.isfinite)."
            )
        magnitude = abs(Fraction(x))
        exponent = floor_log2(magnitude) if magnitude else self.min_exponent
        return power_of_two(max(exponent, self.min_exponent) - self.mantissa_bits)


def power_of_two(exponent: int) -> Fraction:
    """2^exponent, exactly."""
    return Fraction(2) ** exponent


def floor_log2(x: Fraction) -> int:
    """The e with 2^e <= x < 2^(e+1), for x > 0. Exact, unlike math.log2."""
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    # The lengths alone can be one too high: 3/4 has lengths 2 and 3, but so has 2/7.
    return exponent if x >= power_of_two(exponent) else exponent - 1


FP32 = FloatFormat("fp32", exponent_bits=8, mantissa_bits=23)
FP16 = FloatFormat("fp16", exponent_bits=5, mantissa_bits=10)
BF16 = FloatFormat("bf16", exponent_bits=8, mantissa_bits=7)
FP8_E5M2 = FloatFormat("fp8_e5m2", exponent_bits=5, mantissa_bits=2)
FP8_E4M3 = FloatFormat(
    "fp8_e4m3fn", exponent_bits=4, mantissa_bits=3, has_infinity=False
)

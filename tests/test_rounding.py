"""Exact rounding agrees with what torch's casts do, to the bit."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given

import strategies
from minamp.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32
from minamp.numbers.patterns import pattern_of, sign_bit, value_of
from minamp.numbers.rounding import Fate, fate, round_to_nearest_even, round_to_pattern
from oracles import DTYPE_OF, all_patterns, integer_bits

SMALL = [FP16, BF16, FP8_E5M2, FP8_E4M3]
by_format = pytest.mark.parametrize("fmt", SMALL, ids=lambda f: f.name)


def patterns_by_torch(values: torch.Tensor, fmt) -> list[int]:
    """What `.to(dtype)` makes of float32 values, as unsigned patterns."""
    bits = integer_bits(values.to(DTYPE_OF[fmt])).tolist()
    return [pattern & ((1 << fmt.bits) - 1) for pattern in bits]


def assert_rounds_like_torch(values: torch.Tensor, fmt) -> None:
    if not fmt.has_infinity:
        values = values[~(values.abs() > _last_that_does_not_overflow(fmt))]
    in_torch = patterns_by_torch(values, fmt)
    for x, expected in zip(values.tolist(), in_torch, strict=True):
        ours = round_to_pattern(x, fmt)
        both_nan = _is_nan(ours, fmt) and _is_nan(expected, fmt)
        assert ours == expected or both_nan, f"{x!r} in {fmt.name}"


def _is_nan(pattern: int, fmt) -> bool:
    return math.isnan(value_of(pattern, fmt))


def _last_that_does_not_overflow(fmt) -> float:
    """For e4m3fn the tie after 448, which goes back to the even 448."""
    return float(fmt.largest + fmt.spacing(fmt.largest) / 2)


@pytest.mark.parametrize("x", [464.5, 480.0, 1e9, math.inf])
def test_overflow_without_infinity_is_nan_here_and_nan_or_the_largest_in_torch(x):
    """torch changed its mind: NaN in 2.11, the largest number (saturation) in 2.13."""
    assert math.isnan(round_to_nearest_even(x, FP8_E4M3))
    (in_torch,) = torch.tensor([x]).to(DTYPE_OF[FP8_E4M3]).float().tolist()
    assert math.isnan(in_torch) or in_torch == FP8_E4M3.largest


@pytest.mark.slow
@by_format
def test_every_number_of_a_format_rounds_to_itself(fmt):
    assert_rounds_like_torch(all_patterns(fmt).float(), fmt)


@pytest.mark.slow
@by_format
def test_every_tie_goes_to_the_even_neighbour_as_in_torch(fmt):
    """All midpoints; float32 holds them exactly. The last one decides overflow."""
    assert_rounds_like_torch(_midpoints(fmt), fmt)


@by_format
@pytest.mark.parametrize("direction", [-math.inf, math.inf])
def test_a_hair_beside_every_tie_goes_to_the_nearer_neighbour_as_in_torch(
    fmt, direction
):
    midpoints = _midpoints(fmt)
    beside = torch.nextafter(midpoints, torch.full_like(midpoints, direction))
    assert_rounds_like_torch(beside[:: 1 if fmt.bits == 8 else 7], fmt)


def _midpoints(fmt) -> torch.Tensor:
    """Halfway from each finite number >= 0 to the next, with both signs."""
    largest = pattern_of(fmt.largest, fmt)
    numbers = all_patterns(fmt)[: largest + 1].double()
    beyond_largest = float(fmt.largest + fmt.spacing(fmt.largest))
    following = torch.cat([numbers[1:], torch.tensor([beyond_largest]).double()])
    midpoints = ((numbers + following) / 2).float()
    return torch.cat([midpoints, -midpoints])


@by_format
def test_rounding_float32_bit_patterns_agrees_with_torch(fmt):
    torch.manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (4000,)).to(torch.int32)
    assert_rounds_like_torch(bits.view(torch.float32), fmt)


@given(strategies.numbers(FP16))
@example(65519.99609375).via("the largest float32 that does not overflow in fp16")
@example(-65520.0).via("a tie at the very end: rounds to infinity")
def test_rounding_zones_of_fp16_agrees_with_torch(x):
    assert_rounds_like_torch(torch.tensor([x]), FP16)


@given(strategies.numbers(BF16))
@example(3.3961775292304957e38).via("a tie at the very end: rounds to infinity")
def test_rounding_zones_of_bf16_agrees_with_torch(x):
    assert_rounds_like_torch(torch.tensor([x]), BF16)


@given(strategies.positive_fractions(), strategies.invented_formats())
def test_the_rounded_number_is_a_nearest_one_of_the_format(x, fmt):
    rounded = round_to_nearest_even(x, fmt)
    if isinstance(rounded, float):
        assert x >= fmt.largest + fmt.spacing(fmt.largest) / 2
    else:
        assert abs(rounded - x) <= fmt.spacing(x) / 2
        assert value_of(pattern_of(rounded, fmt), fmt) == rounded


@given(strategies.invented_formats(), strategies.positive_fractions())
def test_rounding_twice_changes_nothing_more(fmt, x):
    once = round_to_pattern(x, fmt)
    again = round_to_pattern(value_of(once, fmt), fmt)
    assert once == again


@given(strategies.positive_fractions(), strategies.positive_fractions())
def test_rounding_keeps_the_order(x, y):
    low, high = sorted([x, y])
    assert round_to_nearest_even(low, FP16) <= round_to_nearest_even(high, FP16)


@given(strategies.numbers(FP16))
def test_a_sign_survives_rounding(x):
    negated = round_to_pattern(-x, FP16)
    assert negated == round_to_pattern(x, FP16) ^ sign_bit(FP16)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (Fraction(1), Fate.EXACT),
        (-0.0, Fate.EXACT),
        (math.inf, Fate.EXACT),
        (math.nan, Fate.EXACT),
        (Fraction(1, 3), Fate.ROUNDED),
        (Fraction(1, 2**25), Fate.UNDERFLOW),
        (Fraction(3, 2**26), Fate.ROUNDED),
        (Fraction(65519), Fate.ROUNDED),
        (Fraction(65520), Fate.OVERFLOW),
        (Fraction(-(10**400)), Fate.OVERFLOW),
        (Fraction(-1, 10**400), Fate.UNDERFLOW),
    ],
)
def test_the_fates_of_numbers_in_fp16(x, expected):
    assert fate(x, FP16) is expected


def test_infinity_in_a_format_without_it_is_an_overflow_to_nan():
    assert math.isnan(round_to_nearest_even(math.inf, FP8_E4M3))
    assert fate(math.inf, FP8_E4M3) is Fate.OVERFLOW
    assert fate(math.nan, FP8_E4M3) is Fate.EXACT


def test_underflow_keeps_the_minus_sign():
    assert round_to_pattern(Fraction(-1, 10**400), FP32) == sign_bit(FP32)


@given(strategies.numbers(FP16))
def test_fate_says_what_happened(x):
    rounded, what = round_to_nearest_even(x, FP16), fate(x, FP16)
    assert (what is Fate.UNDERFLOW) == (x != 0 and rounded == 0)
    assert (what is Fate.OVERFLOW) == (math.isfinite(x) and math.isinf(rounded))
    assert (what is Fate.EXACT) == (rounded == x or math.isnan(x))

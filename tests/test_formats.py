"""The formats and their bit patterns agree with torch, pattern by pattern."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given

import strategies
from minamp.numbers.formats import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    FloatFormat,
    floor_log2,
    power_of_two,
)
from minamp.numbers.patterns import pattern_of, sign_bit, value_of
from oracles import DTYPE_OF, all_patterns, integer_bits

FORMATS = [FP32, FP16, BF16, FP8_E5M2, FP8_E4M3]
ENUMERABLE = [FP16, BF16, FP8_E5M2, FP8_E4M3]
by_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
by_enumerable_format = pytest.mark.parametrize("fmt", ENUMERABLE, ids=lambda f: f.name)


@by_format
def test_limits_are_those_of_torch_finfo(fmt):
    info = torch.finfo(DTYPE_OF[fmt])
    assert fmt.largest == Fraction(info.max)
    assert fmt.smallest_normal == Fraction(info.smallest_normal)
    assert fmt.epsilon == Fraction(info.eps)
    assert fmt.bits == info.bits


@by_format
def test_smallest_subnormal_is_the_first_number_above_zero(fmt):
    zero = torch.zeros((), dtype=torch.float32)
    if fmt.bits > 8:  # torch has no nextafter for the 8-bit formats
        zero = zero.to(DTYPE_OF[fmt])
        above = torch.nextafter(zero, torch.ones_like(zero))
        assert fmt.smallest_subnormal == Fraction(above.item())
    assert fmt.smallest_subnormal == value_of(1, fmt)


@by_enumerable_format
def test_every_pattern_has_the_value_torch_gives_it(fmt):
    in_torch = all_patterns(fmt).double().tolist()
    for pattern, expected in enumerate(in_torch):
        value = value_of(pattern, fmt)
        assert value == expected or (math.isnan(value) and math.isnan(expected))


@pytest.mark.slow
@by_enumerable_format
def test_every_value_goes_back_to_its_pattern(fmt):
    for pattern in range(1 << fmt.bits):
        value = value_of(pattern, fmt)
        if not math.isnan(value):
            sign = pattern & sign_bit(fmt)
            assert sign | pattern_of(abs(value), fmt) == pattern


@by_enumerable_format
def test_both_zeros_have_the_patterns_torch_gives_them(fmt):
    in_torch = integer_bits(torch.tensor([0.0, -0.0]).to(DTYPE_OF[fmt])).tolist()
    width = (1 << fmt.bits) - 1
    ours = [pattern_of(zero, fmt) for zero in (0.0, -0.0)]
    assert ours == [pattern & width for pattern in in_torch]


@by_enumerable_format
def test_our_nan_is_nan_to_torch_and_keeps_its_sign(fmt):
    """Which of its NaN patterns a cast picks differs between torch's own kernels."""
    nan = pattern_of(math.nan, fmt)
    assert all_patterns(fmt)[nan].isnan()
    assert pattern_of(-math.nan, fmt) == nan | sign_bit(fmt)


@given(strategies.finite_patterns_with_formats())
def test_spacing_is_the_distance_to_the_next_number(drawn):
    pattern, fmt = drawn
    here, following = value_of(pattern, fmt), value_of(pattern + 1, fmt)
    if following not in (math.inf, -math.inf) and not math.isnan(following):
        assert abs(following - here) == fmt.spacing(here)


@given(strategies.finite_patterns_with_formats())
def test_positive_patterns_count_the_numbers_in_order(drawn):
    pattern, fmt = drawn
    without_sign = pattern & ~sign_bit(fmt)
    if without_sign:
        assert value_of(without_sign - 1, fmt) < value_of(without_sign, fmt)


@given(strategies.invented_formats())
def test_largest_number_is_followed_by_infinity_or_nan(fmt):
    following = value_of(pattern_of(fmt.largest, fmt) + 1, fmt)
    assert following == math.inf if fmt.has_infinity else math.isnan(following)


@given(strategies.positive_fractions())
def test_floor_log2_brackets_its_argument(x):
    exponent = floor_log2(x)
    assert power_of_two(exponent) <= x < power_of_two(exponent + 1)


def test_a_format_without_normal_numbers_is_refused_with_a_cure():
    with pytest.raises(ValueError, match="give it more bits"):
        FloatFormat("too small", exponent_bits=1, mantissa_bits=3)
    with pytest.raises(ValueError, match="give it more bits"):
        FloatFormat("too small", exponent_bits=5, mantissa_bits=0)


def test_a_value_between_two_numbers_has_no_pattern_and_the_error_says_round():
    with pytest.raises(ValueError, match="Round it first"):
        pattern_of(Fraction(1, 3), FP16)
    with pytest.raises(ValueError, match="Round it first"):
        pattern_of(2 * FP16.largest, FP16)


def test_infinity_has_no_pattern_in_a_format_without_infinity():
    with pytest.raises(ValueError, match="no infinity"):
        pattern_of(math.inf, FP8_E4M3)


def test_a_pattern_that_is_too_wide_is_refused():
    with pytest.raises(ValueError, match="16 bits"):
        value_of(1 << 16, FP16)


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
def test_there_is_no_spacing_at_infinity_or_nan(special):
    with pytest.raises(ValueError, match="no neighbours"):
        FP16.spacing(special)

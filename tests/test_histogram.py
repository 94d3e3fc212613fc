"""The histogram counts every value once, at its own power of two."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

import strategies
from minamp.numbers.formats import FP8_E4M3, FP8_E5M2, FP16, floor_log2
from minamp.numbers.rounding import Fate, fate
from minamp.tensors.histogram import (
    ExponentHistogram,
    exponent_histogram,
    share_lost_to_zero,
)
from oracles import all_patterns

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@by_dtype
def test_each_value_sits_at_its_power_of_two_and_specials_apart(dtype, device):
    values = [1.0, -1.5, 2.0, 0.25, 0.0, -0.0, math.inf, -math.inf, math.nan]
    histogram = exponent_histogram(torch.tensor(values, dtype=dtype, device=device))
    assert histogram == ExponentHistogram(
        {-2: 1, 0: 2, 1: 1}, zeros=2, infinities=2, nans=1
    )
    assert histogram.total == len(values)


def test_every_number_of_fp16_is_counted_by_its_exponent(device):
    histogram = exponent_histogram(all_patterns(FP16).to(device))
    binades = range(FP16.min_exponent, FP16.max_exponent + 1)
    assert {e: histogram.counts[e] for e in binades} == dict.fromkeys(binades, 2 * 1024)
    subnormal = range(-24, FP16.min_exponent)
    assert [histogram.counts[e] for e in subnormal] == [2 << n for n in range(10)]
    assert histogram.total == 65536


@pytest.mark.parametrize("fmt", [FP8_E4M3, FP8_E5M2], ids=lambda f: f.name)
def test_eight_bit_formats_are_counted_like_their_float32_values(fmt, device):
    values = all_patterns(fmt).to(device)
    assert exponent_histogram(values) == exponent_histogram(values.float())
    assert exponent_histogram(values).total == 256


@given(strategies.tensors(elements=strategies.numbers(FP16)))
def test_counts_agree_with_exact_exponents_in_every_layout(values):
    histogram = exponent_histogram(values)
    exact: dict[int, int] = {}
    for x in values.reshape(-1).tolist():
        if math.isfinite(x) and x:
            exponent = math.frexp(x)[1] - 1
            exact[exponent] = exact.get(exponent, 0) + 1
    assert histogram.counts == exact
    assert histogram.total == values.numel()


@given(strategies.tensors(elements=strategies.numbers(FP16)))
def test_a_power_of_two_only_moves_the_histogram(values):
    # float64 so that no product overflows or underflows.
    values = values.double()
    moved = exponent_histogram(values).scaled_by_power_of_two(16)
    assert moved == exponent_histogram(values * 2.0**16)


@given(
    strategies.tensors(elements=strategies.numbers(FP16)),
    strategies.tensors(elements=strategies.numbers(FP16)),
)
def test_histograms_of_parts_add_up_to_that_of_the_whole(left, right):
    whole = torch.cat([left.reshape(-1), right.reshape(-1)])
    parts = exponent_histogram(left) + exponent_histogram(right)
    assert parts == exponent_histogram(whole)


@given(strategies.tensors(elements=strategies.numbers(FP16)))
def test_lost_are_exactly_the_values_that_underflow(values):
    fates = [fate(x, FP16) for x in values.reshape(-1).tolist() if x]
    lost = fates.count(Fate.UNDERFLOW)
    assert share_lost_to_zero(values, FP16) == (lost / len(fates) if fates else 0.0)


def test_lost_share_agrees_with_what_a_cast_really_loses(device):
    torch.manual_seed(0)
    values = (torch.randn(10_000) * 1e-8).to(device)
    really_lost = (values.half() == 0).double().mean().item()
    assert 0.9 < share_lost_to_zero(values, FP16) < 1
    assert share_lost_to_zero(values, FP16) == really_lost


def test_shares_of_the_three_zones():
    histogram = exponent_histogram(torch.tensor([2.0**-26, 2.0**-20, 1.0, 2.0**16]))
    assert histogram.share_below_smallest_subnormal(FP16) == 0.25
    assert histogram.share_subnormal(FP16) == 0.25
    assert histogram.share_above_largest(FP16) == 0.25


def test_shares_begin_exactly_at_the_limits_of_the_format():
    lowest = floor_log2(FP16.smallest_subnormal)
    at_limits = {lowest: 1, FP16.min_exponent: 1, FP16.max_exponent: 1}
    assert ExponentHistogram(at_limits).share_below_smallest_subnormal(FP16) == 0
    assert ExponentHistogram(at_limits).share_subnormal(FP16) == pytest.approx(1 / 3)
    assert ExponentHistogram(at_limits).share_above_largest(FP16) == 0


def test_a_tensor_without_a_non_zero_value_has_lost_nothing(device):
    for values in (torch.zeros(3, device=device), torch.empty(0, device=device)):
        assert share_lost_to_zero(values, FP16) == 0
        assert exponent_histogram(values).share_subnormal(FP16) == 0


def test_parameters_can_be_counted_without_detaching_them_first():
    weight = torch.nn.Parameter(torch.ones(3))
    assert exponent_histogram(weight).counts == {0: 3}


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool])
def test_tensors_without_exponents_are_refused_with_a_cure(dtype):
    with pytest.raises(TypeError, match="Convert it first"):
        exponent_histogram(torch.ones(2, dtype=dtype))


def test_the_smallest_float32_numbers_are_counted_too(device):
    smallest = torch.tensor([1], dtype=torch.int32, device=device).view(torch.float32)
    assert exponent_histogram(smallest).counts == {-149: 1}

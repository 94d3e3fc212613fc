"""Laws of stochastic rounding: neighbours only, and right on average."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minamp.scaling.scaler import DynamicLossScaler
from minamp.weights.stochastic_rounding import (
    StochasticRounding,
    _ulp,
    round_stochastically,
)
from oracles import FORMAT_OF, all_patterns, assert_same_bits
from strategies import numbers
from weight_helpers import OneWeight

HALVES = (torch.float16, torch.bfloat16)
both_halves = pytest.mark.parametrize("dtype", HALVES, ids=str)
IN_RANGE = ("subnormal", "normal", "tie")


@both_halves
def test_every_half_number_is_left_as_it_is(dtype):
    patterns = all_patterns(FORMAT_OF[dtype])
    assert_same_bits(round_stochastically(patterns.float(), dtype), patterns)


@given(data=st.data(), dtype=st.sampled_from(HALVES))
def test_ulp_is_the_spacing_of_the_format(data, dtype):
    fmt = FORMAT_OF[dtype]
    x = data.draw(numbers(fmt, zones=("zero", *IN_RANGE, "underflow")))
    # On a power of two the spacing above and below differ: ours is the one above.
    expected = float(fmt.spacing(x)) if x else float(fmt.smallest_subnormal)
    assert _ulp(torch.tensor([x]), dtype).item() == expected


@given(data=st.data(), dtype=st.sampled_from(HALVES))
def test_result_is_one_of_the_two_neighbours(data, dtype):
    fmt = FORMAT_OF[dtype]
    x = data.draw(numbers(fmt, zones=IN_RANGE))
    ulp = fmt.spacing(x)
    low = math.floor(Fraction(x) / ulp) * ulp
    neighbours = torch.tensor([low, low + ulp], dtype=torch.float64).to(dtype)
    rounded = round_stochastically(torch.full((16,), x), dtype)
    assert set(rounded.tolist()) <= set(neighbours.tolist())


@given(dtype=st.sampled_from(HALVES), data=st.data())
def test_share_of_roundings_upward_is_the_fraction_of_the_ulp(data, dtype):
    fmt = FORMAT_OF[dtype]
    x = data.draw(numbers(fmt, zones=("subnormal", "normal")))
    eighths = data.draw(st.integers(1, 7))
    value = Fraction(x) + fmt.spacing(x) * eighths / 8
    assert_share_upward(value, dtype, seed=data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("sign", [1, -1])
@both_halves
def test_share_is_that_of_the_narrower_ulp_just_below_a_power_of_two(dtype, sign):
    """An eighth of the ulp above is a quarter of the ulp below, towards zero."""
    ulp_above = FORMAT_OF[dtype].spacing(1.0)
    assert_share_upward(sign * (1 - ulp_above / 8), dtype, seed=0)


def assert_share_upward(value: Fraction, dtype: torch.dtype, seed: int) -> None:
    """The mean is right: the law of the file, by counting 65,536 coins."""
    fraction = (value / FORMAT_OF[dtype].spacing(float(value))) % 1
    torch.manual_seed(seed)
    trials = 2**16
    values = torch.full((trials,), float(value))
    up = (round_stochastically(values, dtype) > values).sum().item()
    # A count of coins is within 6 standard deviations but once in 500 million times.
    deviation = math.sqrt(trials * fraction * (1 - fraction))
    assert abs(up - trials * fraction) <= 6 * deviation


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
@both_halves
def test_infinity_and_nan_stay_what_they_are(special, dtype):
    value = torch.tensor([special])
    assert_same_bits(round_stochastically(value, dtype), value.to(dtype))


@both_halves
def test_updates_under_half_an_ulp_are_kept_on_average(dtype):
    torch.manual_seed(0)
    model, ulp = OneWeight(torch.ones(4096, dtype=dtype)), torch.finfo(dtype).eps
    optimizer = torch.optim.SGD(model.parameters(), lr=ulp / 16)
    StochasticRounding(model, optimizer)
    for _ in range(64):
        optimizer.zero_grad()
        (-model.weight.float().sum()).backward()
        optimizer.step()
    # Each step moves a weight by a whole ulp with probability 1/16, so 64 steps by 4
    # ulps with variance 64 * 15/256 < 4: the mean of 4096 is within 6 * 2/64 ulps.
    moved = (model.weight.double().mean() - 1) / ulp
    assert abs(moved.item() - 4) < 6 * 2 / 64


@pytest.mark.parametrize("fused", [False, True])
@both_halves
def test_skipped_step_leaves_weights_alone(dtype, fused):
    model = OneWeight(torch.ones(4096, dtype=dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, fused=fused)
    ways = StochasticRounding(model, optimizer)
    scaler = DynamicLossScaler("cpu", init_scale=4.0)
    for poison in (0.0, math.inf):
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        scaler.scale(model.weight.float().sum()).backward()
        next(ways.parameters()).grad[0] += poison
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(model.weight, before) == (poison == math.inf)


@both_halves
def test_nothing_but_the_half_weight_is_kept_between_steps(dtype):
    model = OneWeight(torch.ones(4096, dtype=dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (twin,) = StochasticRounding(model, optimizer).parameters()
    assert twin.shape == model.weight.shape
    assert twin.untyped_storage().nbytes() == 4  # one float32 for all of them
    assert optimizer.state_dict()["stochastic_rounding"] == []

"""Laws of Kahan summation: what rounding cuts off is not lost."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minamp.scaling.scaler import DynamicLossScaler
from minamp.weights.kahan import KahanSummation
from minamp.weights.master_weights import MasterWeights
from oracles import FORMAT_OF, assert_same_bits
from strategies import numbers, tensors
from weight_helpers import OneWeight

HALVES = (torch.float16, torch.bfloat16)
both_halves = pytest.mark.parametrize("dtype", HALVES, ids=str)


def move(model: OneWeight, optimizer: torch.optim.Optimizer, grad: Tensor) -> None:
    optimizer.zero_grad()
    model.give_gradient(grad)
    optimizer.step()


def digits(dtype: torch.dtype) -> int:
    """Of a weight and its rest together: twice those of the half format."""
    return 2 * (FORMAT_OF[dtype].mantissa_bits + 1)


@given(data=st.data(), dtype=st.sampled_from(HALVES))
def test_weight_is_the_rounded_sum_and_the_rest_what_was_cut_off(data, dtype):
    fmt = FORMAT_OF[dtype]
    values = data.draw(tensors(elements=numbers(fmt, zones=("zero", "normal", "tie"))))
    model = OneWeight(values)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    (rest,) = KahanSummation(model, optimizer, dtype).memory
    assert rest.dtype is model.weight.dtype is dtype
    assert_same_bits(model.weight.detach(), values.to(dtype))
    assert_same_bits(rest, (values - values.to(dtype).float()).to(dtype))


@both_halves
def test_updates_under_half_an_ulp_add_up(dtype):
    step = torch.finfo(dtype).eps / 16
    model = OneWeight(torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=step)
    KahanSummation(model, optimizer, dtype)
    for _ in range(64):
        move(model, optimizer, -torch.ones(3))
    assert_same_bits(model.weight.detach(), torch.full((3,), 1 + 64 * step).to(dtype))


@given(
    dtype=st.sampled_from(HALVES), seed=st.integers(0, 2**16), steps=st.integers(1, 40)
)
def test_sum_of_many_small_updates_is_kept_to_twice_the_digits(dtype, seed, steps):
    generator = torch.Generator().manual_seed(seed)
    start = 1 + torch.rand(16, generator=generator)
    kahan, exact = OneWeight(start), start.double()
    optimizer = torch.optim.SGD(kahan.parameters(), lr=1.0)
    (rest,) = KahanSummation(kahan, optimizer, dtype).memory
    for _ in range(steps):
        grad = (torch.randn(16, generator=generator) * 1e-4).to(dtype)
        move(kahan, optimizer, grad)
        exact -= grad.double()
    error = (kahan.weight.double() + rest.double() - exact).abs().max().item()
    # Weights stay below 4.  The start and each step round the rest to half of its own
    # ulp, 4 * 2^-digits in all, and each step the sum in float32 to 4 * 2^-24.
    assert error <= 4 * ((steps + 1) * 2.0 ** -digits(dtype) + steps * 2.0**-24)


@both_halves
def test_without_a_rest_to_lose_it_is_master_weights_to_the_bit(dtype):
    """Updates with few digits: both sums are exact, so the weights are the same."""
    ways = []
    for way in (KahanSummation, MasterWeights):
        model = OneWeight(torch.linspace(1, 1.9, 10).to(dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.finfo(dtype).eps / 8)
        way(model, optimizer)
        for _ in range(50):
            move(model, optimizer, torch.arange(-5.0, 5.0))
        ways.append(model.weight.detach())
    assert_same_bits(*ways)


@pytest.mark.parametrize("fused", [False, True])
@both_halves
def test_skipped_step_leaves_weights_and_rests_alone(dtype, fused):
    torch.manual_seed(0)
    model = OneWeight(torch.randn(1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=fused)
    ways = KahanSummation(model, optimizer, dtype)
    scaler = DynamicLossScaler("cpu", init_scale=4.0)
    for poison in (0.0, 0.0, math.inf):
        before = [model.weight.detach().clone(), ways.memory[0].clone()]
        optimizer.zero_grad()
        scaler.scale(model.weight.float().square().sum()).backward()
        next(ways.parameters()).grad[0] += poison
        scaler.step(optimizer)
        scaler.update()
        unchanged = torch.equal(ways.memory[0], before[1])
        assert unchanged == (poison == math.inf)
    assert_same_bits(model.weight.detach(), before[0])


@both_halves
def test_rest_of_a_weight_that_was_overwritten_is_dropped(dtype):
    model = OneWeight(1 + torch.rand(100, generator=torch.Generator().manual_seed(0)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    (rest,) = KahanSummation(model, optimizer, dtype).memory
    kept = rest[50:].clone()
    assert kept.any()
    with torch.no_grad():
        model.weight[:50] = 0.0
    move(model, optimizer, torch.zeros(100))
    assert_same_bits(rest[:50], torch.zeros(50, dtype=dtype))
    assert_same_bits(rest[50:], kept)


@both_halves
def test_rest_of_half_an_ulp_is_kept_when_another_weight_is_overwritten(dtype):
    """Just below the middle of two neighbours the rest itself rounds to half an ulp."""
    ulp = torch.finfo(dtype).eps
    below_a_tie = 1 + ulp + ulp / 2 * (1 - 2.0 ** -(digits(dtype) // 2 + 1))
    model = OneWeight(torch.tensor([below_a_tie, 1.0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    (rest,) = KahanSummation(model, optimizer, dtype).memory
    with torch.no_grad():
        model.weight[1] = 2.0
    move(model, optimizer, torch.zeros(2))
    assert_same_bits(model.weight.detach(), torch.tensor([1 + ulp, 2.0]).to(dtype))
    assert_same_bits(rest, torch.tensor([ulp / 2, 0.0]).to(dtype))


@both_halves
def test_two_bytes_are_kept_beside_the_half_weight(dtype):
    model = OneWeight(torch.ones(64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ways = KahanSummation(model, optimizer, dtype)
    (twin,) = ways.parameters()
    assert twin.untyped_storage().nbytes() == 4  # one float32 for all of them
    assert [rest.element_size() for rest in ways.memory] == [2]

"""The laws of the finite check: every bad element is found, and nothing else is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import strategies
from minamp.numbers.formats import FP32
from oracles import FORMAT_OF
from scaler_loop import make_scaler
from strategies import LAYOUTS, ScalerSettings

POISONS = [math.inf, -math.inf, math.nan]
# A gradient that a scaler may rescale in place has a place for each element.
GRADIENT_LAYOUTS = [layout for layout in LAYOUTS if layout != "expanded"]
GRADIENT_DTYPES = [torch.float32, torch.bfloat16, torch.float64]
by_dtype = pytest.mark.parametrize("dtype", GRADIENT_DTYPES, ids=str)


@by_dtype
@pytest.mark.parametrize("layout", GRADIENT_LAYOUTS)
@given(data=st.data())
def test_one_bad_element_anywhere_is_found(amp, device, dtype, layout, data):
    poison = data.draw(st.sampled_from(POISONS))
    drawn = strategies.tensors(dtype, st.just(poison), [layout], device)
    assert skips(amp, device, data.draw(drawn), data) == (layout != "empty")


@by_dtype
@pytest.mark.parametrize("layout", GRADIENT_LAYOUTS)
@given(data=st.data())
def test_nothing_finite_is_flagged_up_to_the_largest_number(
    amp, device, dtype, layout, data
):
    fmt = FORMAT_OF.get(dtype, FP32)
    largest = strategies.numbers(fmt, ["near the maximum", "normal", "subnormal"])
    drawn = strategies.tensors(dtype, largest, [layout], device)
    assert not skips(amp, device, data.draw(drawn), data)


def skips(amp, device: str, gradient: torch.Tensor, data) -> bool:
    """Whether a step is skipped when this is the gradient of one of its parameters."""
    others = [torch.ones(2, device=device), torch.ones(3, device=device).bfloat16()]
    gradients = data.draw(st.permutations([gradient, *others]))
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, its_gradient in zip(parameters, gradients, strict=True):
        parameter.grad = its_gradient
    scaler = make_scaler(amp.GradScaler, device, ScalerSettings(1.0, 2.0, 0.5, 100))
    scaler.scale(torch.ones((), device=device))
    scaler.step(torch.optim.SGD(parameters, 2.0**-10))
    scaler.update()
    has_stood_still = all(not parameter.any() for parameter in parameters)
    assert has_stood_still == (scaler.get_scale() == 0.5)
    return has_stood_still

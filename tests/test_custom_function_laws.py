"""custom_fwd and custom_bwd: the user's own autograd functions in a region."""

from __future__ import annotations

import pytest
import torch

from op_calls import dtype_of_mm
from oracles import assert_same_bits

by_low = pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)


@by_low
def test_custom_fwd_casts_inputs_and_leaves_the_region_for_the_forward_pass(
    amp, device, low
):
    seen = {}

    class Square(torch.autograd.Function):
        @staticmethod
        @amp.custom_fwd(device_type=device, cast_inputs=torch.float32)
        def forward(ctx, x):
            seen["forward"] = x.dtype, dtype_of_mm(device)
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @amp.custom_bwd(device_type=device)
        def backward(ctx, grad):
            seen["backward"] = grad.dtype, dtype_of_mm(device)
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    x = torch.randn(3, device=device).to(low).requires_grad_()
    with amp.autocast(device, dtype=low):
        Square.apply(x).sum().backward()
    # The forward pass runs with autocast off, so the backward pass does so as well.
    assert seen == {"forward": (torch.float32, torch.float32)} | {
        "backward": (torch.float32, torch.float32)
    }
    assert_same_bits(x.grad, (2 * x.detach().float()).to(low))


@by_low
def test_custom_bwd_runs_the_backward_pass_in_the_region_of_the_forward_pass(
    amp, device, low
):
    seen = {}

    class Double(torch.autograd.Function):
        @staticmethod
        @amp.custom_fwd(device_type=device)
        def forward(ctx, x):
            seen["forward"] = dtype_of_mm(device)
            return 2 * x

        @staticmethod
        @amp.custom_bwd(device_type=device)
        def backward(ctx, grad):
            seen["backward"] = dtype_of_mm(device)
            return 2 * grad

    x = torch.randn(3, device=device, requires_grad=True)
    with amp.autocast(device, dtype=low):
        y = Double.apply(x)
    y.sum().backward()
    assert seen == {"forward": low, "backward": low}

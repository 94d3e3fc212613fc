"""The laws of autocast: which precision an op runs in.

The best oracle needs no other autocast: an op inside a region must give, to the bit,
what the same op gives outside on arguments that were cast by hand.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import op_calls
from op_calls import FULL_PRECISION, LOWER_PRECISION, UNLISTED, WIDEST
from oracles import assert_same_bits, assert_same_gradients, cast_by_hand
from small_models import MODELS

LOW = (torch.float16, torch.bfloat16)
lows = st.sampled_from(LOW)
by_low = pytest.mark.parametrize("low", LOW, ids=str)
by_model = pytest.mark.parametrize("model", MODELS)


@given(st.data(), lows)
def test_a_lower_precision_op_is_the_op_on_arguments_cast_by_hand(
    amp, device, data, low
):
    call = data.draw(op_calls.calls(LOWER_PRECISION, device))
    with amp.autocast(device, dtype=low):
        inside = call()
    by_hand = call.with_args(cast_by_hand(call.args, low))()
    assert inside.dtype is low
    assert_same_bits(inside, by_hand, repr(call))


@given(st.data(), lows)
def test_a_full_precision_op_is_the_op_on_float32_arguments(amp, device, data, low):
    call = data.draw(op_calls.calls(FULL_PRECISION, device))
    with amp.autocast(device, dtype=low):
        inside = call()
    by_hand = call.with_args(cast_by_hand(call.args, torch.float32))()
    assert inside.dtype is torch.float32
    assert_same_bits(inside, by_hand, repr(call))


@given(st.data(), lows)
def test_a_promoting_op_runs_in_the_widest_of_its_dtypes(amp, device, data, low):
    dtypes = (torch.float32, low)
    call = data.draw(op_calls.calls(WIDEST[device], device, dtypes))
    widest = low if all(arg.dtype is low for arg in call.args) else torch.float32
    with amp.autocast(device, dtype=low):
        inside = call()
    by_hand = call.with_args(cast_by_hand(call.args, widest))()
    assert inside.dtype is widest
    assert_same_bits(inside, by_hand, repr(call))


@given(st.data(), lows)
def test_an_unlisted_op_does_not_notice_the_region(amp, device, data, low):
    call = data.draw(op_calls.calls(UNLISTED, device))
    with amp.autocast(device, dtype=low):
        inside = call()
    assert_same_bits(inside, call(), repr(call))


@pytest.mark.parametrize("is_lower", [True, False], ids=["lower", "full"])
@given(st.data(), lows)
def test_gradients_are_those_of_the_graph_cast_by_hand(
    amp, device, is_lower, data, low
):
    table = LOWER_PRECISION if is_lower else FULL_PRECISION
    call = data.draw(op_calls.calls(table, device, requires_grad=True))
    with amp.autocast(device, dtype=low):
        inside = call()
    cast = cast_by_hand(call.args, low if is_lower else torch.float32)
    by_hand = call.with_args(cast)()
    leaves = [arg for arg in call.args if getattr(arg, "requires_grad", False)]
    assert_same_gradients(inside, by_hand, leaves)


@given(st.data(), lows)
def test_what_is_not_a_float_of_at_most_32_bits_stays_as_it_is(amp, device, data, low):
    dtype = data.draw(st.sampled_from([torch.float64, torch.complex64, torch.int64]))
    x = torch.arange(6, device=device).reshape(2, 3).to(dtype)
    with amp.autocast(device, dtype=low):
        assert torch.stack([x, x]).dtype is dtype
        if dtype is not torch.int64 or device == "cpu":
            assert_same_bits(torch.mm(x, x.mT), torch.mm(x, x.mT), str(dtype))
            assert torch.mm(x, x.mT).dtype is dtype


@by_low
def test_tensors_of_another_device_type_stay_as_they_are(amp, device, low):
    elsewhere = torch.ones(2, 2, device="meta")
    with amp.autocast(device, dtype=low):
        assert torch.mm(elsewhere, elsewhere).dtype is torch.float32


@by_low
def test_an_out_argument_keeps_its_dtype_and_storage(amp, device, low):
    x = torch.randn(2, 2, device=device)
    out = torch.empty(2, 2, device=device)
    with amp.autocast(device, dtype=low):
        result = torch.mm(x, x, out=out)
    assert result is out
    assert_same_bits(out, torch.mm(x, x))


# --- compiled ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "outside"])
@by_low
def test_a_compiled_function_computes_what_the_eager_one_does(
    amp, device, low, is_inside
):
    weight = torch.randn(4, 4, device=device, requires_grad=True)
    x = torch.randn(4, 4, device=device)

    def compute() -> torch.Tensor:
        return torch.sigmoid(F.linear(x, weight)) + F.mse_loss(x, weight)

    def compute_in_region() -> torch.Tensor:
        with amp.autocast(device, dtype=low):
            return compute()

    with amp.autocast(device, dtype=low):
        eager = compute()
    torch.compiler.reset()
    if is_inside:
        compiled = torch.compile(compute_in_region, backend="aot_eager")()
    else:
        with amp.autocast(device, dtype=low):
            compiled = torch.compile(compute, backend="aot_eager")()
    assert_same_bits(compiled, eager)
    assert_same_gradients(compiled, eager, [weight])

"""Each intended difference from torch.amp, asserted: one test a row of the table."""

from __future__ import annotations

import asyncio
import math
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F

import intended_differences
from op_calls import dtype_of_mm
from oracles import assert_same_bits
from scaler_loop import USUAL, Loop, make_scaler
from strategies import ScalerSettings

Losses = namedtuple("Losses", "first second")


def differs(test):
    """Mark a test as that of the row with its name."""
    name = test.__name__.removeprefix("test_")
    return pytest.mark.intended_difference(name)(test)


def test_each_row_of_the_table_has_its_test_and_each_test_its_row():
    marked = {
        name
        for name, test in globals().items()
        if any(m.name == "intended_difference" for m in getattr(test, "pytestmark", []))
    }
    rows = [difference.test for difference in intended_differences.DIFFERENCES]
    assert marked == set(rows)
    assert len(rows) == len(set(rows))


# --- the scaler ---------------------------------------------------------------------


@differs
def test_the_scale_never_becomes_zero(amp, device):
    loop = Loop(amp.GradScaler, device, ScalerSettings(1.0, 2.0, 1e-4, 1), "sgd")
    for _ in range(20):
        loop.step(math.inf)
    assert loop.scaler.get_scale() > 0
    before = loop.weight.detach().clone()
    loop.step()
    assert not torch.equal(loop.weight, before)
    assert loop.weight.isfinite().all()


@differs
def test_a_loss_that_is_nan_by_itself_keeps_the_scale(amp, device):
    loop = Loop(amp.GradScaler, device, USUAL)
    before = loop.weight.detach().clone()
    with pytest.warns(RuntimeWarning, match="before it was multiplied"):
        loop.step(gradient=math.nan)
    assert loop.scaler.get_scale() == USUAL.init_scale
    assert_same_bits(loop.weight.detach(), before)


@differs
def test_an_optimizer_without_gradients_steps_without_complaint(amp, device):
    loop = Loop(amp.GradScaler, device, USUAL)
    idle = torch.nn.Parameter(torch.ones(2, device=device))
    idle_optimizer = torch.optim.SGD([idle], 0.1)
    loop.scaler.scale(loop.weight.sum()).backward()
    loop.scaler.step(loop.optimizer)
    loop.scaler.step(idle_optimizer)
    loop.scaler.update()
    assert_same_bits(idle.detach(), torch.ones(2, device=device))


@differs
def test_an_abandoned_iteration_may_still_call_update(amp, device):
    loop = Loop(amp.GradScaler, device, USUAL)
    loop.scaler.scale(loop.weight.sum())
    loop.scaler.update()
    assert loop.scaler.state_dict()["_growth_tracker"] == 0
    assert loop.scaler.get_scale() == USUAL.init_scale


def _closure_of(loop: Loop):
    def closure() -> torch.Tensor:
        loop.optimizer.zero_grad()
        loss = loop.weight.sum()
        loop.scaler.scale(loss).backward()
        return loss

    return closure


@differs
def test_a_closure_given_by_position_runs_on_unscaled_gradients(amp, device):
    loop = Loop(amp.GradScaler, device, USUAL, "sgd")
    before = loop.weight.detach().clone()
    loop.scaler.scale(loop.weight.sum()).backward()
    loop.scaler.step(loop.optimizer, _closure_of(loop))
    assert_same_bits(loop.weight.detach(), before - torch.full_like(before, 0.1))


@differs
def test_a_closure_given_by_keyword_is_run(amp, device):
    loop = Loop(amp.GradScaler, device, USUAL, "sgd")
    before = loop.weight.detach().clone()
    loop.scaler.step(loop.optimizer, closure=_closure_of(loop))
    assert_same_bits(loop.weight.detach(), before - torch.full_like(before, 0.1))


@differs
def test_a_backward_pass_after_unscale_is_refused(amp, device):
    loop = Loop(amp.GradScaler, device, USUAL)
    loop.scaler.scale(loop.weight.sum()).backward()
    loop.scaler.unscale_(loop.optimizer)
    with pytest.raises(RuntimeError, match="unscale_"):
        loop.scaler.scale(loop.weight.sum()).backward()


@differs
def test_a_parameter_in_two_optimizers_is_not_unscaled_twice(amp, device):
    loop = Loop(amp.GradScaler, device, USUAL, "sgd")
    second = torch.optim.SGD([loop.weight], 0.1)
    loop.scaler.scale(loop.weight.sum()).backward()
    loop.scaler.step(loop.optimizer)
    with pytest.raises(RuntimeError, match="same parameter"):
        loop.scaler.step(second)


@differs
def test_an_update_between_two_steps_is_refused(amp, device):
    first = Loop(amp.GradScaler, device, USUAL)
    second = Loop(amp.GradScaler, device, USUAL)
    scaler = first.scaler
    scaler.scale(first.weight.sum() + second.weight.sum()).backward()
    scaler.step(first.optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match="update"):
        scaler.step(second.optimizer)


@differs
@pytest.mark.parametrize(
    "setting",
    [
        {"backoff_factor": 0.0},
        {"backoff_factor": -0.5},
        {"growth_interval": 0},
        {"init_scale": math.inf},
        {"init_scale": math.nan},
        {"init_scale": 0.0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(amp, device, setting):
    with pytest.raises(ValueError) as caught:
        amp.GradScaler(device, **setting)
    assert isinstance(caught.value, AssertionError)


@differs
@pytest.mark.parametrize("new_scale", [0.0, -1.0, math.nan, math.inf])
def test_a_new_scale_that_makes_no_sense_is_refused(amp, device, new_scale):
    loop = Loop(amp.GradScaler, device, USUAL)
    loop.step()
    with pytest.raises(ValueError, match="scale"):
        loop.scaler.update(new_scale)
    assert loop.scaler.get_scale() == USUAL.init_scale


@differs
def test_a_half_loss_vector_does_not_overflow_when_scaled(amp, device):
    scaler = amp.GradScaler(device, init_scale=65536.0)
    losses = torch.tensor([2.0, 3.0], dtype=torch.float16, device=device)
    assert scaler.scale(losses).tolist() == [131072.0, 196608.0]


@differs
@pytest.mark.parametrize("kind", ["mapping", "namedtuple"])
def test_a_mapping_or_namedtuple_of_losses_keeps_its_kind(amp, device, kind):
    loss = torch.ones((), device=device)
    losses = Losses(loss, 2 * loss) if kind == "namedtuple" else {"a": loss}
    scaled = make_scaler(amp.GradScaler, device, USUAL).scale(losses)
    assert type(scaled) is type(losses)
    assert scaled == (Losses(1024, 2048) if kind == "namedtuple" else {"a": 1024})


@differs
def test_a_loaded_scaler_may_unscale_before_it_scales(amp, device):
    loop = Loop(amp.GradScaler, device, USUAL)
    loop.step()
    resumed = Loop(amp.GradScaler, device, USUAL)
    resumed.scaler.load_state_dict(loop.scaler.state_dict())
    resumed.weight.grad = torch.full_like(resumed.weight, 1024.0)
    resumed.scaler.unscale_(resumed.optimizer)
    assert_same_bits(resumed.weight.grad, torch.ones_like(resumed.weight))


# --- autocast -------------------------------------------------------------------------


@differs
def test_one_region_entered_twice_leaves_as_it_came(amp, device):
    try:
        region = amp.autocast(device, dtype=torch.bfloat16)
        with region, region:
            pass
        assert dtype_of_mm(device) is torch.float32
    finally:
        # torch.autocast has left itself on; no other test may suffer from it.
        torch.set_autocast_enabled(device, False)


@differs
def test_a_decorated_generator_runs_in_its_region(amp, device):
    @amp.autocast(device, dtype=torch.bfloat16)
    def generate():
        yield dtype_of_mm(device)
        yield dtype_of_mm(device)

    for inside in generate():
        assert inside is torch.bfloat16
        assert dtype_of_mm(device) is torch.float32


@differs
def test_a_decorated_coroutine_runs_in_its_region(amp, device):
    @amp.autocast(device, dtype=torch.bfloat16)
    async def inside() -> list[torch.dtype]:
        before = dtype_of_mm(device)
        await asyncio.sleep(0)
        return [before, dtype_of_mm(device)]

    async def both() -> list[torch.dtype]:
        inner = asyncio.ensure_future(inside())
        await asyncio.sleep(0)
        return [*await inner, dtype_of_mm(device)]

    dtypes = asyncio.run(both())
    assert dtypes == [torch.bfloat16, torch.bfloat16, torch.float32]


@differs
def test_a_weight_changed_inside_a_region_is_seen_changed(amp, device):
    weight = torch.randn(3, 3, device=device, requires_grad=True)
    x = torch.randn(3, 3, device=device)
    with amp.autocast(device, dtype=torch.bfloat16):
        F.linear(x, weight)
        with torch.no_grad():
            weight.mul_(-2)
        inside = F.linear(x, weight)
    assert_same_bits(inside, F.linear(x.bfloat16(), weight.bfloat16()))


@differs
def test_a_weight_has_one_copy_for_each_dtype(amp, device):
    weight = torch.randn(3, 3, device=device, requires_grad=True)
    x = torch.randn(3, 3, device=device)
    with amp.autocast(device, dtype=torch.bfloat16):
        F.linear(x, weight)
        with amp.autocast(device, dtype=torch.float16):
            inside = F.linear(x, weight)
    assert_same_bits(inside, F.linear(x.half(), weight.half()))


@differs
# torch.jit.trace is deprecated, by one category of warning or another.
@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.trace:FutureWarning")
def test_a_model_can_be_traced_in_a_region(amp, device):
    model = torch.nn.Linear(3, 3).to(device)
    x = torch.randn(2, 3, device=device)
    with amp.autocast(device, dtype=torch.bfloat16):
        model(x)
        traced = torch.jit.trace(model, x, check_trace=False)
    assert_same_bits(traced(x), F.linear(x.bfloat16(), *_half_parameters(model)))


def _half_parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.bfloat16() for parameter in model.parameters()]

"""The laws of loss scaling, for any scaler with the interface of GradScaler.

Two oracles: torch.amp.GradScaler, stepped side by side through the same history, and
a ten-line fold of the scale. What only minamp's scaler can do is tested elsewhere.
"""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import strategies
from minamp.numbers.formats import BF16
from oracles import assert_same_bits, fold_scale
from scaler_loop import OPTIMIZERS, USUAL, Loop, assert_same_tensors, make_scaler
from strategies import ScalerSettings

POISONS = [math.inf, -math.inf, math.nan]
NOT_FUSED = [name for name in OPTIMIZERS if "fused" not in name]
by_optimizer = pytest.mark.parametrize("optimizer_name", OPTIMIZERS)


# --- the scale ----------------------------------------------------------------------


@pytest.mark.parametrize("optimizer_name", NOT_FUSED)
@given(strategies.scaler_settings(), strategies.histories())
def test_every_history_goes_as_with_torchs_scaler(
    amp, device, optimizer_name, settings, history
):
    ours = Loop(amp.GradScaler, device, settings, optimizer_name)
    theirs = Loop(torch.amp.GradScaler, device, settings, optimizer_name)
    for number, poison in enumerate(history):
        ours.step(poison)
        theirs.step(poison)
        assert ours.scaler.state_dict() == theirs.scaler.state_dict(), number
        assert_same_tensors(ours, theirs, f"step {number}")


@given(strategies.scaler_settings(only_powers_of_two=True), strategies.histories())
def test_every_history_of_a_fused_optimizer_goes_as_with_torchs_scaler(
    amp, device, settings, history
):
    """A fused optimizer may divide by the scale itself. Others multiply by its
    reciprocal, and only for powers of two is that the same to the bit."""
    ours = Loop(amp.GradScaler, device, settings, "fused adam")
    theirs = Loop(torch.amp.GradScaler, device, settings, "fused adam")
    for number, poison in enumerate(history):
        ours.step(poison)
        theirs.step(poison)
        assert ours.scaler.state_dict() == theirs.scaler.state_dict(), number
        assert_same_bits(ours.weight.detach(), theirs.weight.detach(), f"step {number}")


@given(strategies.scaler_settings(), strategies.histories())
@example(ScalerSettings(65536.0, 2.0, 0.5, 1), [0.0, math.inf, 0.0]).via(
    "one step each"
)
def test_every_history_goes_as_the_ten_line_fold_says(amp, device, settings, history):
    loop = Loop(amp.GradScaler, device, settings)
    for poison in history:
        loop.step(poison)
    overflows = [not math.isfinite(poison) for poison in history]
    scale, tracker = fold_scale(settings, overflows)
    assert loop.scaler.get_scale() == scale
    assert loop.scaler.state_dict()["_growth_tracker"] == tracker


def test_the_scale_grows_right_after_the_last_step_of_the_interval(amp, device):
    loop = Loop(amp.GradScaler, device, USUAL)
    scales = []
    for _ in range(7):
        loop.step()
        scales.append(loop.scaler.get_scale() / 1024)
    assert scales == [1, 1, 2, 2, 2, 4, 4]


def test_a_scale_that_would_become_infinite_does_not_grow(amp, device):
    near_the_end = ScalerSettings(2.0**127, 2.0, 0.5, 1)
    loop = Loop(amp.GradScaler, device, near_the_end)
    for _ in range(3):
        loop.step(gradient=2.0**-120)
    assert loop.scaler.get_scale() == 2.0**127


# --- scaling and unscaling ----------------------------------------------------------


@given(strategies.numbers(BF16, ["zero", "normal", "subnormal"]), st.data())
def test_scale_multiplies_each_tensor_of_a_nest_once(amp, device, x, data):
    scaler = make_scaler(amp.GradScaler, device, USUAL)
    losses = [torch.tensor(x, device=device), torch.tensor([2.0, x], device=device)]
    scaled = scaler.scale((losses[0], losses))
    assert isinstance(scaled, tuple) and isinstance(scaled[1], list)
    for loss, result in zip([losses[0], *losses], [scaled[0], *scaled[1]], strict=True):
        assert_same_bits(result, loss * 1024.0)


@given(st.integers(-20, 20), strategies.tensors(elements=strategies.numbers(BF16)))
def test_unscale_undoes_a_power_of_two_to_the_bit(amp, device, power, gradient):
    """Multiplying by 2^k only moves the exponent, as long as it stays in range."""
    in_range = (gradient.abs() > 2.0**-100) & (gradient.abs() < 2.0**100)
    gradient = torch.where(in_range, gradient, 1.0).to(device)
    settings = ScalerSettings(2.0**power, 2.0, 0.5, 1)
    scaler = make_scaler(amp.GradScaler, device, settings)
    weight = torch.nn.Parameter(torch.ones_like(gradient))
    optimizer = torch.optim.SGD([weight], 1.0)
    scaler.scale((weight * gradient).sum()).backward()
    scaler.unscale_(optimizer)
    assert_same_bits(weight.grad, gradient.contiguous())


def test_gradients_are_divided_by_the_scale_they_were_multiplied_with(amp, device):
    """Also in the step after which the scale grows, and in that after an overflow."""
    loop = Loop(amp.GradScaler, device, ScalerSettings(1024.0, 2.0, 0.5, 1), "sgd")
    for poison in [0.0, 0.0, math.inf, 0.0]:
        before = loop.weight.detach().clone()
        loop.step(poison)
        moved = before - loop.weight.detach()
        expected = torch.zeros_like(moved) if poison else torch.full_like(moved, 0.075)
        torch.testing.assert_close(moved, expected, atol=2**-22, rtol=0)


def test_a_second_unscale_is_refused_and_changes_nothing(amp, device):
    loop = Loop(amp.GradScaler, device, USUAL)
    loop.scaler.scale(loop.weight.sum()).backward()
    loop.scaler.unscale_(loop.optimizer)
    before = loop.weight.grad.clone()
    with pytest.raises(RuntimeError, match="unscale_"):
        loop.scaler.unscale_(loop.optimizer)
    assert_same_bits(loop.weight.grad, before)


# --- stepping and skipping ----------------------------------------------------------


@by_optimizer
@pytest.mark.parametrize("poison", POISONS)
def test_a_skipped_step_leaves_every_bit_of_weights_and_optimizer(
    amp, device, optimizer_name, poison
):
    loop = Loop(amp.GradScaler, device, USUAL, optimizer_name)
    loop.step()
    before = copy.deepcopy(loop.tensors)
    loop.step(poison)
    for left, right in zip(loop.tensors, before, strict=True):
        assert_same_bits(left.detach(), right.detach())


@by_optimizer
def test_with_a_power_of_two_training_is_that_without_a_scaler_to_the_bit(
    amp, device, optimizer_name
):
    scaled = Loop(amp.GradScaler, device, USUAL, optimizer_name)
    plain = Loop(amp.GradScaler, device, USUAL, optimizer_name)
    for _ in range(5):
        scaled.step()
        plain.optimizer.zero_grad()
        (plain.weight * 0.75).sum().backward()
        plain.optimizer.step()
    assert_same_tensors(scaled, plain, optimizer_name)


def test_only_the_optimizer_that_overflowed_is_skipped_but_the_scale_falls(amp, device):
    scaler = make_scaler(amp.GradScaler, device, USUAL)
    loops = [Loop(amp.GradScaler, device, USUAL, "sgd") for _ in range(2)]
    before = loops[0].weight.detach().clone()
    scaler.scale(sum(loop.weight.sum() for loop in loops)).backward()
    loops[0].weight.grad[0] = math.inf
    for loop in loops:
        scaler.step(loop.optimizer)
    scaler.update()
    assert_same_bits(loops[0].weight.detach(), before)
    assert_same_bits(loops[1].weight.detach(), before - torch.full_like(before, 0.1))
    assert scaler.get_scale() == 512.0


# --- save, load, switch off ---------------------------------------------------------


@pytest.mark.parametrize("way", ["state_dict", "pickle", "deepcopy"])
@given(strategies.scaler_settings(), strategies.histories(8), strategies.histories(8))
def test_a_saved_scaler_goes_on_as_if_never_saved(
    amp, device, way, settings, before, after
):
    stopped = Loop(amp.GradScaler, device, settings)
    unstopped = Loop(amp.GradScaler, device, settings)
    for poison in before:
        stopped.step(poison)
        unstopped.step(poison)
    stopped.scaler = _saved_and_loaded(stopped.scaler, way, amp, device)
    for poison in after:
        stopped.step(poison)
        unstopped.step(poison)
        assert stopped.scaler.state_dict() == unstopped.scaler.state_dict()
    assert_same_tensors(stopped, unstopped, way)


def _saved_and_loaded(scaler, way: str, amp, device: str):
    if way == "deepcopy":
        return copy.deepcopy(scaler)
    if way == "pickle":
        return pickle.loads(pickle.dumps(scaler))
    other_settings = ScalerSettings(2.0, 3.0, 0.1, 7)
    fresh = make_scaler(amp.GradScaler, device, other_settings)
    fresh.load_state_dict(scaler.state_dict())
    return fresh


@given(strategies.scaler_settings(), strategies.histories(8))
def test_a_state_dict_goes_into_torchs_scaler_and_back(amp, device, settings, history):
    loop = Loop(amp.GradScaler, device, settings)
    for poison in history:
        loop.step(poison)
    theirs = make_scaler(torch.amp.GradScaler, device, USUAL)
    theirs.load_state_dict(loop.scaler.state_dict())
    back = make_scaler(amp.GradScaler, device, USUAL)
    back.load_state_dict(theirs.state_dict())
    assert back.state_dict() == loop.scaler.state_dict()


def test_a_disabled_scaler_is_invisible(amp, device):
    scaler = amp.GradScaler(device, enabled=False)
    loop = Loop(amp.GradScaler, device, USUAL, "sgd")
    loss = loop.weight.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(loop.optimizer)
    scaler.step(loop.optimizer)
    scaler.update()
    assert_same_bits(loop.weight.grad, torch.ones_like(loop.weight))
    expected = torch.tensor([0.9, -2.1], device=device)
    assert_same_bits(loop.weight.detach(), expected)
    assert scaler.get_scale() == 1.0
    assert scaler.state_dict() == {}
    assert not scaler.is_enabled()

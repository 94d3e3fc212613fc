"""Laws of master weights: what the numbers do, step by step.

How models and optimizers are wired is in `test_master_weights_wiring.py`, what survives
a restart in `test_master_weights_state.py`.
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from minamp.autocasting.region import autocast
from minamp.scaling.scaler import DynamicLossScaler
from minamp.weights.master_weights import MasterWeights
from oracles import FORMAT_OF, assert_same_bits, cast_exactly
from strategies import FINITE_ZONES, numbers, tensors
from weight_helpers import OneWeight

HALVES = (torch.float16, torch.bfloat16)
both_halves = pytest.mark.parametrize("dtype", HALVES, ids=str)

OPTIMIZERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1),
    "SGD, momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "SGD, fused": functools.partial(torch.optim.SGD, lr=0.1, fused=True),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01),
    "Adam, foreach": functools.partial(torch.optim.Adam, lr=0.01, foreach=True),
    "Adam, fused": functools.partial(torch.optim.Adam, lr=0.01, fused=True),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.01),
}


def seeds() -> st.SearchStrategy[int]:
    return st.integers(0, 2**16)


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(
    name=st.sampled_from(sorted(OPTIMIZERS)),
    dtype=st.sampled_from(HALVES),
    seed=seeds(),
    steps=st.integers(1, 6),
)
def test_masters_go_where_a_float32_optimizer_goes_with_the_same_gradients(
    name, dtype, seed, steps, device
):
    start = noise(seed, 3, 5).to(device)
    model, reference = OneWeight(start), OneWeight(start)
    optimizer = OPTIMIZERS[name](model.parameters())
    reference_optimizer = OPTIMIZERS[name](reference.parameters())
    (master,) = MasterWeights(model, optimizer, dtype).parameters()
    for step in range(steps):
        grad_half = noise(seed + step, 3, 5).to(device, dtype)
        model.give_gradient(grad_half)
        reference.weight.grad = grad_half.float()
        optimizer.step()
        reference_optimizer.step()
        optimizer.zero_grad()
        assert_same_bits(master.detach(), reference.weight.detach())


@given(data=st.data(), dtype=st.sampled_from(HALVES))
def test_half_weight_is_the_rounded_master_after_every_step(data, dtype, device):
    elements = numbers(FORMAT_OF[dtype])
    model = OneWeight(data.draw(tensors(elements=elements, device=device)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.37)
    (master,) = MasterWeights(model, optimizer, dtype).parameters()
    for _ in range(3):
        assert_same_bits(model.weight.detach(), cast_by_element(master, dtype))
        model.give_gradient(torch.ones_like(model.weight))
        optimizer.step()


def cast_by_element(master: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded in exact arithmetic; what is not finite stays what it is."""
    finite = torch.where(master.isfinite(), master, 0).detach()
    rounded = cast_exactly(finite, dtype).to(master.device)
    return torch.where(master.isfinite(), rounded, master.detach().to(dtype))


@given(data=st.data(), dtype=st.sampled_from(HALVES))
def test_conversion_keeps_every_bit_of_float32_weights(data, dtype):
    elements = numbers(FORMAT_OF[dtype])
    values = data.draw(tensors(elements=elements))
    model = OneWeight(values)
    masters = MasterWeights(model, torch.optim.SGD(model.parameters(), lr=1.0), dtype)
    assert_same_bits(next(masters.parameters()).detach(), values)
    assert model.weight.dtype is dtype


@both_halves
def test_updates_under_half_an_ulp_add_up_with_masters_and_vanish_without(dtype):
    step = torch.finfo(dtype).eps / 16
    without = nn.Parameter(torch.ones(3, dtype=dtype))
    plain = torch.optim.SGD([without], lr=step)
    model = OneWeight(torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=step)
    MasterWeights(model, optimizer, dtype)
    for _ in range(64):
        model.give_gradient(-torch.ones(3))
        without.grad = -torch.ones(3, dtype=dtype)
        optimizer.step()
        plain.step()
        optimizer.zero_grad()
    assert_same_bits(without.detach(), torch.ones(3, dtype=dtype))
    # 64 sixteenths of an ulp are four ulps, and all of these are exact numbers.
    assert_same_bits(model.weight.detach(), torch.full((3,), 1 + 64 * step).to(dtype))


@given(data=st.data(), dtype=st.sampled_from(HALVES), backwards=st.integers(1, 5))
def test_gradients_of_several_backwards_add_up_in_float32(data, dtype, backwards):
    elements = numbers(FORMAT_OF[dtype], zones=FINITE_ZONES)
    grads = [
        data.draw(tensors(dtype, elements, layouts=("contiguous",)))
        for _ in range(backwards)
    ]
    model = OneWeight(torch.zeros(grads[0].shape))
    masters = MasterWeights(model, torch.optim.SGD(model.parameters(), lr=1.0), dtype)
    (master,) = masters.parameters()
    for grad in grads:
        model.give_gradient(grad)
        assert model.weight.grad is None
    total = grads[0].float()
    for grad in grads[1:]:
        total = total + grad.float()
    assert_same_bits(master.grad, total)


@both_halves
@pytest.mark.parametrize("poison", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("fused", [False, True])
def test_skipped_step_leaves_weights_masters_and_optimizer_bits_alone(
    dtype, poison, fused, device
):
    model = OneWeight(noise(1, 4).to(device))
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    masters = MasterWeights(model, optimizer, dtype)
    scaler = DynamicLossScaler(device, init_scale=8.0)

    def step(grad: Tensor) -> None:
        optimizer.zero_grad()
        scale = scaler.scale(torch.ones((), device=device))
        model.give_gradient(scale * grad.to(device))
        scaler.step(optimizer)
        scaler.update()

    step(torch.ones(4))
    weight = model.weight.detach().clone()
    master = masters.state_dict()["weight"].clone()
    moments = copy.deepcopy(optimizer.state_dict()["state"][0])
    step(torch.tensor([1.0, poison, 1.0, 1.0]))
    assert scaler.get_scale() == 4.0
    assert_same_bits(model.weight.detach(), weight)
    assert_same_bits(masters.state_dict()["weight"], master)
    for key, moment in moments.items():
        assert_same_bits(optimizer.state_dict()["state"][0][key], moment, key)


def test_gradient_that_overflows_in_half_is_found_by_the_scaler(device):
    model = OneWeight(torch.ones(2, device=device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    MasterWeights(model, optimizer, torch.float16)
    scaler = DynamicLossScaler(device, init_scale=2.0**16)
    scaler.scale((model.weight.float() * 2).sum()).backward()  # 2^17: inf in float16
    scaler.step(optimizer)
    scaler.update()
    assert_same_bits(model.weight.detach(), torch.ones(2, device=device).half())
    assert scaler.get_scale() == 2.0**15


def test_gradient_below_float16_survives_by_scale_and_float32_master(device):
    model = OneWeight(torch.ones(2, device=device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    (master,) = MasterWeights(model, optimizer, torch.float16).parameters()
    scaler = DynamicLossScaler(device, init_scale=2.0**16)
    scaler.scale((model.weight.float() * 2.0**-30).sum()).backward()
    scaler.unscale_(optimizer)
    assert_same_bits(master.grad, torch.full_like(master.grad, 2.0**-30))


@both_halves
def test_clipping_the_masters_clips_the_step(dtype):
    model = OneWeight(torch.zeros(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    masters = MasterWeights(model, optimizer, dtype)
    model.give_gradient(torch.tensor([3.0, 4.0]))
    norm = nn.utils.clip_grad_norm_(masters.parameters(), 2.5)
    optimizer.step()
    assert norm.item() == 5.0
    torch.testing.assert_close(model.weight.float(), torch.tensor([-1.5, -2.0]))


@both_halves
def test_closure_runs_the_model_where_the_masters_are(dtype):
    model = OneWeight(torch.zeros(3))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=8)
    (master,) = MasterWeights(model, optimizer, dtype).parameters()
    target = torch.tensor([1.0, -2.0, 0.5])

    def closure() -> Tensor:
        assert_same_bits(model.weight.detach(), master.detach().to(dtype))
        optimizer.zero_grad()
        loss = (model.weight.float() - target).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert (model.weight - target).abs().max() <= torch.finfo(dtype).eps * 2


TOOLS = {
    "minamp": (autocast, DynamicLossScaler),
    "torch": (torch.autocast, torch.amp.GradScaler),
}


@pytest.mark.parametrize("tools", TOOLS)
def test_the_usual_loop_learns_like_float32_training(tools, device):
    """Region, scaler and masters together, ours or PyTorch's."""
    make_region, make_scaler = TOOLS[tools]

    def train(dtype: torch.dtype | None) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 1)
        ).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if dtype is not None:
            MasterWeights(model, optimizer, dtype)
        region = make_region(device, dtype or torch.bfloat16, enabled=dtype is not None)
        scaler = make_scaler(device, enabled=dtype is torch.float16)
        inputs = noise(3, 64, 8).to(device)
        targets = inputs[:, :1] * inputs[:, 1:2]
        for _ in range(60):
            optimizer.zero_grad()
            with region:
                loss = nn.functional.mse_loss(model(inputs).float(), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return loss.item()

    # The targets have mean square 1.  Half activations have 8 or 11 digits, and what
    # is left of the loss is far above what their rounding adds.
    assert train(None) < 0.1
    assert train(torch.float16) < 0.1
    assert train(torch.bfloat16) < 0.1


@both_halves
def test_ten_bytes_a_weight_are_all_that_is_held_after_backward(dtype):
    """2 for the weight, 4 for the master, 4 for its gradient; no copy is left over."""
    model = OneWeight(torch.ones(1000))
    original = model.weight.data_ptr()
    masters = MasterWeights(model, torch.optim.SGD(model.parameters(), lr=1.0), dtype)
    model.give_gradient(torch.ones(1000))
    (master,) = masters.parameters()
    assert master.data_ptr() == original  # the float32 weight became the master
    held = [model.weight, master, master.grad]
    assert sum(tensor.untyped_storage().nbytes() for tensor in held) == 10 * 1000
    assert model.weight.grad is None

"""`scaler.clip_grad_norm_`: unscale, check and clip at once; gradient penalties."""

from __future__ import annotations

import math

import pytest
import torch

from minamp.scaling.no_scaler import NoLossScaler
from minamp.scaling.scaler import DynamicLossScaler
from training import Training

MAX_NORMS = [0.1, 1.0, 1e6]
SHAPES = [(3, 4), (300, 300), (5,), (3, 4), ()]


def scaled_gradients(scale: float, device: str) -> torch.optim.Optimizer:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.ones(s, device=device)) for s in SHAPES]
    for weight in weights:
        noise = torch.randn(weight.shape, generator=generator)
        weight.grad = noise.to(device) * scale
    return torch.optim.SGD(weights, lr=1.0)


def all_gradients(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    grads = [w.grad.reshape(-1) for w in optimizer.param_groups[0]["params"]]
    return torch.cat(grads)


@pytest.mark.parametrize("max_norm", MAX_NORMS)
def test_it_is_unscale_then_clip_grad_norm(max_norm, device):
    scale = 2.0**12
    optimizer, expected = (scaled_gradients(s, device) for s in (scale, 1.0))
    scaler = DynamicLossScaler(device, init_scale=scale)
    scaler.scale(torch.ones((), device=device))
    norm = scaler.clip_grad_norm_(optimizer, max_norm)
    parameters = expected.param_groups[0]["params"]
    expected_norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    # Sums of 90,000 squares in float32, in another order.
    torch.testing.assert_close(norm.float(), expected_norm, rtol=2e-6, atol=0)
    torch.testing.assert_close(
        all_gradients(optimizer), all_gradients(expected), rtol=4e-6, atol=0
    )


@pytest.mark.parametrize("norm_type", [1.0, math.inf])
def test_other_norms_are_clipped_as_torch_does(norm_type, device):
    optimizer, expected = (scaled_gradients(s, device) for s in (4.0, 1.0))
    scaler = DynamicLossScaler(device, init_scale=4.0)
    scaler.scale(torch.ones((), device=device))
    scaler.clip_grad_norm_(optimizer, 0.5, norm_type)
    parameters = expected.param_groups[0]["params"]
    torch.nn.utils.clip_grad_norm_(parameters, 0.5, norm_type)
    assert torch.equal(all_gradients(optimizer), all_gradients(expected))


def test_gradients_already_unscaled_are_clipped_once(device):
    training = Training(device)
    training.backward()
    training.scaler.unscale_(training.optimizer)
    norm = training.scaler.clip_grad_norm_(training.optimizer, 0.5)
    assert norm.item() == pytest.approx(math.sqrt(2))
    assert training.weight.grad.norm().item() == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_an_overflow_is_found_while_clipping(poison, fused, device):
    training = Training(device, optimizer_kwargs={"fused": fused})
    training.backward(poison)
    norm = training.scaler.clip_grad_norm_(training.optimizer, 1.0)
    assert not math.isfinite(norm)
    assert training.weight.grad[1] == 1.0  # unscaled, and still to be looked at
    training.scaler.step(training.optimizer)
    training.scaler.update()
    assert training.steps_taken == 0
    assert training.scaler.get_scale() == 512.0


def test_finite_gradients_whose_squares_overflow_are_no_overflow(device):
    training = Training(device, init_scale=1.0)
    training.backward()
    training.weight.grad.fill_(1e30)
    norm = training.scaler.clip_grad_norm_(training.optimizer, 1.0)
    assert norm.item() == pytest.approx(math.sqrt(2) * 1e30, rel=1e-6)
    training.scaler.step(training.optimizer)
    assert training.scaler.outcome(training.optimizer).stepped


@pytest.mark.parametrize("fused", [False, True])
def test_clip_and_step_divide_by_the_scale_once(fused, device):
    training = Training(device, optimizer_kwargs={"fused": fused})
    training.backward()
    training.scaler.clip_grad_norm_(training.optimizer, 1e6)
    training.scaler.step(training.optimizer)
    assert training.steps_taken == 1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clips", [False, True])
def test_gradients_that_can_be_differentiated_are_only_numbers_here(
    clips, fused, device
):
    """With create_graph=True they have a graph, and unscaling is no part of it."""
    training = Training(device, optimizer_kwargs={"fused": fused})
    loss = training.weight.square().sum() / 2  # its gradient is the weight, 1
    gradient = torch.autograd.grad(
        training.scaler.scale(loss), training.weight, create_graph=True
    )
    (training.weight.grad,) = gradient
    if clips:
        training.scaler.clip_grad_norm_(training.optimizer, 100.0)
    training.scaler.step(training.optimizer)
    assert training.steps_taken == 1


def test_without_gradients_the_norm_is_zero(device):
    training = Training(device)
    training.scaler.scale(training.loss())
    assert training.scaler.clip_grad_norm_(training.optimizer, 1.0).item() == 0.0


def test_a_disabled_scaler_clips_too(device):
    optimizer, expected = (scaled_gradients(1.0, device) for _ in range(2))
    NoLossScaler().clip_grad_norm_(optimizer, 0.5)
    torch.nn.utils.clip_grad_norm_(expected.param_groups[0]["params"], 0.5)
    assert torch.equal(all_gradients(optimizer), all_gradients(expected))


def test_the_gradients_of_a_penalty_are_true_and_differentiable(device):
    weight = torch.nn.Parameter(torch.tensor([2.0, 3.0], device=device))
    scaler = DynamicLossScaler(device, init_scale=64.0)
    results = []
    for source in (scaler, NoLossScaler()):
        (grad,) = source.grad(weight.pow(3).sum(), weight, create_graph=True)
        results.append((grad, torch.autograd.grad(grad.square().sum(), weight)[0]))
    for scaled, plain in zip(*results, strict=True):
        assert torch.equal(scaled, plain)


def test_a_gradient_that_is_not_used_stays_none(device):
    a, b = (torch.ones(1, device=device, requires_grad=True) for _ in range(2))
    scaler = DynamicLossScaler(device)
    assert scaler.grad(a.sum(), [a, b], allow_unused=True)[1] is None

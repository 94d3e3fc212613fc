"""The laws of the weight cache: one cast a region and weight, and never a stale one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from oracles import assert_same_bits, assert_same_gradients
from small_models import MODELS, make_task

by_low = pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
# The LSTM uses its weights once a time step; what that does, has its own test.
USING_EACH_WEIGHT_ONCE = [name for name in MODELS if name != "lstm"]


@by_low
@pytest.mark.parametrize("model", USING_EACH_WEIGHT_ONCE)
def test_the_cache_never_changes_a_result(amp, device, model, low):
    results = []
    for cache_enabled in (True, False):
        task = make_task(model, device)
        with amp.autocast(device, dtype=low, cache_enabled=cache_enabled):
            loss = task.loss(0)
        parameters = list(task.model.parameters())
        results.append([loss, *torch.autograd.grad(loss, parameters)])
    for cached, uncached in zip(*results, strict=True):
        assert_same_bits(cached, uncached, model)


@by_low
@pytest.mark.parametrize("cache_enabled", [True, False])
def test_a_weight_used_twice_has_the_gradient_of_one_cast_or_of_two(
    amp, device, low, cache_enabled
):
    """The one thing the cache does to numbers: the gradients of a shared cast are
    added up in the low precision, those of two casts in float32."""
    weight = torch.randn(3, 3, device=device, requires_grad=True)
    x, y = torch.randn(2, 5, 3, device=device)
    with amp.autocast(device, dtype=low, cache_enabled=cache_enabled):
        inside = F.linear(x, weight).sum() + F.linear(y, weight).sum()
    first = weight.to(low)
    second = first if cache_enabled else weight.to(low)
    by_hand = F.linear(x.to(low), first).sum() + F.linear(y.to(low), second).sum()
    assert_same_gradients(inside, by_hand, [weight])


class CountCasts(TorchDispatchMode):
    """Counts the casts of one tensor, below autograd where every cast arrives."""

    def __init__(self, of: torch.Tensor) -> None:
        super().__init__()
        self.of, self.count = of, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_cast = func is torch.ops.aten._to_copy.default
        if is_cast and args[0].data_ptr() == self.of.data_ptr():
            self.count += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(("cache_enabled", "casts"), [(True, 1), (False, 3)])
def test_a_weight_is_cast_once_a_region_and_each_time_without_the_cache(
    amp, device, cache_enabled, casts
):
    weight = torch.randn(3, 3, device=device, requires_grad=True)
    x = torch.randn(3, 3, device=device)
    with CountCasts(weight) as counted:
        region = amp.autocast(device, dtype=torch.bfloat16, cache_enabled=cache_enabled)
        with region:
            for _ in range(3):
                F.linear(x, weight)
    assert counted.count == casts


@by_low
def test_a_weight_changed_between_two_regions_is_seen_changed(amp, device, low):
    weight = torch.randn(3, 3, device=device, requires_grad=True)
    x = torch.randn(3, 3, device=device)

    def inside() -> torch.Tensor:
        with amp.autocast(device, dtype=low):
            return F.linear(x, weight)

    inside()
    with torch.no_grad():
        weight.mul_(-2)
    assert_same_bits(inside(), F.linear(x.to(low), weight.to(low)))


@by_low
def test_a_weight_used_under_no_grad_first_still_gets_its_gradient(amp, device, low):
    weight = torch.randn(3, 3, device=device, requires_grad=True)
    x = torch.randn(3, 3, device=device)
    with amp.autocast(device, dtype=low):
        with torch.no_grad():
            F.linear(x, weight)
        F.linear(x, weight).sum().backward()
    expected = torch.autograd.grad(F.linear(x.to(low), weight.to(low)).sum(), [weight])
    assert_same_bits(weight.grad, expected[0])

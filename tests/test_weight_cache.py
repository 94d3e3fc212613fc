"""What the weight cache holds, and for how long.

`test_cache_laws.py` puts the common laws to any implementation; here is what minamp
promises beyond them. `count_casts` looks from below autograd, where every cast arrives.
"""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from minamp.autocasting import dispatch_key
from minamp.autocasting.region import autocast, clear_autocast_cache
from minamp.autocasting.weight_cache import WeightCache, is_cacheable
from oracles import assert_same_bits

LOW = torch.bfloat16


def region(dtype: torch.dtype = LOW, **kwargs) -> autocast:
    return autocast("cpu", dtype=dtype, **kwargs)


def held() -> int:
    """How many half copies the cache holds now."""
    return len(dispatch_key.weights)


def make_weight(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(*(shape or (3, 3))))


def assert_fresh(weight: torch.Tensor, x: torch.Tensor) -> None:
    """Here, in a region, `weight` is used with the values it has now."""
    inside = F.linear(x, weight)
    with region(enabled=False):
        by_hand = F.linear(x.to(LOW), weight.to(LOW))
    assert_same_bits(inside, by_hand)


class CountCasts(TorchDispatchMode):
    """Counts all casts from float32 to a half."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default:
            self.count += args[0].dtype is torch.float32
        return func(*args, **kwargs or {})


# --- one cast ------------------------------------------------------------------------


def test_a_weight_is_cast_once_through_nested_regions_of_one_dtype():
    weight, x = make_weight(), torch.randn(3, 3).to(LOW)
    with CountCasts() as counted, region():
        F.linear(x, weight)
        with region():
            F.linear(x, weight)
        with region(enabled=False), region():
            F.linear(x, weight)
        F.linear(x, weight)
    assert counted.count == 1


def test_two_threads_in_regions_share_one_cast():
    weight, x = make_weight(), torch.randn(3, 3).to(LOW)
    halves = set()

    def use() -> None:
        with region():
            F.linear(x, weight)
            halves.add(id(dispatch_key.weights.cast(weight, LOW)))

    with region():
        F.linear(x, weight)
        halves.add(id(dispatch_key.weights.cast(weight, LOW)))
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert held() == 1
    assert len(halves) == 1


def test_recurrent_layers_cast_each_weight_once_whatever_the_length():
    lstm = torch.nn.LSTMCell(4, 4)
    x = torch.randn(5, 2, 4).to(LOW)
    state = (torch.zeros(2, 4).to(LOW), torch.zeros(2, 4).to(LOW))
    with CountCasts() as counted, region():
        for step in x:
            state = lstm(step, state)
    assert counted.count == len(list(lstm.parameters()))


def test_without_a_cache_nothing_is_kept():
    weight, x = make_weight(), torch.randn(3, 3)
    with region(cache_enabled=False):
        F.linear(x, weight)
        assert held() == 0
        with region():  # as around
            F.linear(x, weight)
            assert held() == 0
        with region(cache_enabled=True):
            F.linear(x, weight)
            assert held() == 1


# --- never stale ---------------------------------------------------------------------


def scaled_in_place(weight: torch.nn.Parameter) -> None:
    with torch.no_grad():
        weight.mul_(2)


def one_element_written(weight: torch.nn.Parameter) -> None:
    with torch.no_grad():
        weight[0, 0] = 7


def copied_into(weight: torch.nn.Parameter) -> None:
    with torch.no_grad():
        weight.copy_(torch.ones_like(weight))


def new_data(weight: torch.nn.Parameter) -> None:
    weight.data = weight.data * 2


def data_transposed(weight: torch.nn.Parameter) -> None:
    weight.data = weight.data.t()


def data_cut(weight: torch.nn.Parameter) -> None:
    weight.data = weight.data[:2]


def initialised(weight: torch.nn.Parameter) -> None:
    torch.nn.init.ones_(weight)


def written_by_a_view(weight: torch.nn.Parameter) -> None:
    with torch.no_grad():
        weight.view(-1)[3:].zero_()


def by_foreach(weight: torch.nn.Parameter) -> None:
    with torch.no_grad():
        torch._foreach_mul_([weight], 2.0)


CHANGES = (
    scaled_in_place,
    one_element_written,
    copied_into,
    new_data,
    data_transposed,
    data_cut,
    initialised,
    written_by_a_view,
    by_foreach,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_weight_changed_inside_a_region_is_seen_changed(change):
    weight, x = make_weight(), torch.randn(3, 3)
    with region():
        F.linear(x, weight)
        change(weight)
        assert_fresh(weight, x)


@pytest.mark.parametrize("how", ["for_loop", "foreach", "fused"])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_an_optimizer_step_inside_a_region_is_seen(kind, how):
    weight, x = make_weight(), torch.randn(3, 3)
    flags = {"foreach": how == "foreach", "fused": how == "fused"}
    optimizer = getattr(torch.optim, kind)([weight], lr=0.5, **flags)
    with region():
        for _ in range(3):
            optimizer.zero_grad()
            F.linear(x, weight).float().pow(2).sum().backward()
            optimizer.step()
            assert_fresh(weight, x)


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_loaded_inside_a_region_is_seen(assign):
    layer, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    x = torch.randn(3, 3)
    with region():
        layer(x)
        layer.load_state_dict(other.state_dict(), assign=assign)
        inside = layer(x)
        assert_same_bits(inside, other(x))


def test_memory_that_a_copy_was_made_of_is_given_to_nobody_else():
    """Its address stands for it: were it freed and used again, the copy would lie."""
    weight, x = make_weight(), torch.randn(3, 3)
    memory = StorageWeakRef(weight.untyped_storage())
    with region():
        F.linear(x, weight)
        weight.data = torch.zeros(3, 3)
        assert not memory.expired()
        assert_fresh(weight, x)
        assert memory.expired()


def test_clearing_the_cache_brings_in_what_no_version_tells_of():
    """A write through `.data` counts up no version: neither autograd nor we see it."""
    weight, x = make_weight(), torch.randn(3, 3)
    with region():
        F.linear(x, weight)
        weight.data.mul_(2)
        clear_autocast_cache()
        assert_fresh(weight, x)


def test_a_new_weight_at_the_id_of_a_dead_one_is_not_taken_for_it():
    x = torch.randn(3, 3)
    with region():
        for value in range(20):
            weight = torch.nn.Parameter(torch.full((3, 3), float(value)))
            assert_fresh(weight, x)
            del weight


def test_a_region_of_another_dtype_inside_uses_a_copy_of_its_own():
    weight, x = make_weight(), torch.randn(3, 3)
    with region(torch.bfloat16):
        F.linear(x, weight)
        with region(torch.float16):
            assert F.linear(x, weight).dtype is torch.float16
        assert F.linear(x, weight).dtype is torch.bfloat16
        assert held() == 2


# --- grad modes ----------------------------------------------------------------------

MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "enable_grad": torch.enable_grad,
}


class GradInInference:
    """Grad mode switched on inside inference mode, where it has no effect."""

    def __enter__(self) -> None:
        self.modes = torch.inference_mode(), torch.enable_grad()
        for mode in self.modes:
            mode.__enter__()

    def __exit__(self, *exception: object) -> None:
        for mode in reversed(self.modes):
            mode.__exit__(None, None, None)


@pytest.mark.parametrize("mode", [*MODES.values(), GradInInference])
def test_a_weight_used_in_any_mode_first_still_gets_its_gradient(mode):
    weight, x = make_weight(), torch.randn(3, 3, requires_grad=True)
    with region():
        with mode():
            F.linear(x, weight)
        F.linear(x, weight).sum().backward()
    assert weight.grad is not None and x.grad is not None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_weight_used_with_grad_first_gives_no_graph_under_no_grad(mode):
    weight, x = make_weight(), torch.randn(3, 3)
    with region():
        F.linear(x, weight)
        with mode():
            assert not F.linear(x, weight).requires_grad


def test_a_model_made_in_inference_mode_runs_in_a_region():
    with torch.inference_mode():
        layer = torch.nn.Linear(3, 3)
        with region():
            assert layer(torch.randn(2, 3)).dtype is LOW
            assert layer(torch.randn(2, 3)).dtype is LOW


def test_a_frozen_weight_is_not_kept():
    weight = torch.randn(3, 3)
    with region():
        F.linear(torch.randn(3, 3), weight)
        assert held() == 0


def test_a_weight_frozen_in_mid_region_gets_no_graph():
    weight, x = make_weight(), torch.randn(3, 3)
    with region():
        F.linear(x, weight)
        weight.requires_grad_(False)
        assert not F.linear(x, weight).requires_grad
        weight.requires_grad_(True)
        F.linear(x, weight).sum().backward()
    assert weight.grad is not None


def test_a_second_backward_pass_through_a_shared_cast_works():
    weight, x = make_weight(), torch.randn(3, 3)
    with region():
        first, second = F.linear(x, weight).sum(), F.linear(x, weight).sum()
        first.backward()
        second.backward()  # the graph of `first` is freed by now
    by_hand = F.linear(x.to(LOW), weight.to(LOW)).sum()
    assert_same_bits(weight.grad, 2 * torch.autograd.grad(by_hand, weight)[0])


# --- nothing kept --------------------------------------------------------------------


def test_the_outermost_exit_empties_the_cache_and_an_inner_one_does_not():
    weight, x = make_weight(), torch.randn(3, 3)
    with region():
        with region():
            F.linear(x, weight)
        assert held() == 1
    assert held() == 0


def test_an_exception_empties_the_cache():
    weight = make_weight()
    with pytest.raises(RuntimeError, match="shape"), region():
        F.linear(torch.randn(3, 3), weight)
        F.linear(torch.randn(3, 4), weight)
    assert held() == 0


def test_the_cache_lives_as_long_as_any_thread_is_in_a_region():
    weight, x = make_weight(), torch.randn(3, 3)
    is_inside, may_leave = threading.Event(), threading.Event()

    def stay() -> None:
        with region():
            is_inside.set()
            may_leave.wait(30)

    thread = threading.Thread(target=stay)
    thread.start()
    assert is_inside.wait(30)
    with region():
        F.linear(x, weight)
    assert held() == 1
    may_leave.set()
    thread.join()
    assert held() == 0


def test_a_dead_layer_is_released_with_its_copy_while_the_region_lasts():
    """Without a graph, that is: in grad mode the copy's graph holds the weight."""
    with region(), torch.no_grad():
        layer = torch.nn.Linear(3, 3)
        layer(torch.randn(3, 3))
        half = weakref.ref(dispatch_key.weights.cast(layer.weight, LOW))
        watched = weakref.ref(layer.weight)
        del layer
        gc.collect()
        assert watched() is None and half() is None
        assert held() == 0


def test_a_weight_that_lost_its_old_memory_does_not_keep_it():
    weight = make_weight()
    with region():
        F.linear(torch.randn(3, 3), weight)
        weight.data = torch.randn(3, 3)
        F.linear(torch.randn(3, 3), weight)
        assert held() == 1


# --- what is no weight ---------------------------------------------------------------


def test_activations_and_views_are_not_kept():
    weight, x = make_weight(), torch.randn(3, 3)
    with region():
        F.linear(x, weight * 2)
        F.linear(x, weight.t())
        F.linear(x, weight[:2])
        F.linear(x.requires_grad_() + 0, torch.ones(3, 3))
        assert held() == 0


def test_a_view_of_a_leaf_follows_the_leaf():
    weight, x = make_weight(), torch.randn(3, 3)
    with region():
        F.linear(x, weight.detach().view(3, 3).requires_grad_())
        scaled_in_place(weight)
        assert_fresh(weight.view(3, 3), x)


# functionalize still builds on TorchScript, and PyTorch warns of that itself.
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_function_transforms_leave_nothing_of_theirs_behind():
    weight, x = make_weight(), torch.randn(3, 3)

    def loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight).float().sum()

    with region():
        torch.func.grad(loss)(weight, x)
        torch.func.vmap(loss, in_dims=(None, 0))(weight, torch.randn(2, 3, 3))
        torch.func.vmap(torch.func.grad(loss))(torch.randn(2, 3, 3), x.expand(2, 3, 3))
        torch.func.jvp(lambda w: loss(w, x), (weight.detach(),), (torch.ones(3, 3),))
        torch.func.functionalize(loss)(weight, x)
        kept = [entry[-1] for entry in dispatch_key.weights._entries.values()]
        assert all(type(half) is torch.Tensor for half in kept)
        assert not any(map(torch._C._functorch.is_functorch_wrapped_tensor, kept))
        assert not any(map(torch._is_functional_tensor, kept))
        assert_fresh(weight, x)
        loss(weight, x).backward()
    assert weight.grad is not None


def test_a_graph_traced_over_a_cached_weight_takes_the_weight_it_is_given():
    from torch.fx.experimental.proxy_tensor import make_fx

    weight, other, x = make_weight(), make_weight(), torch.randn(3, 3)
    with region():
        F.linear(x, weight)
        traced = make_fx(lambda weight, x: F.linear(x, weight))(weight, x)
    assert_same_bits(traced(other, x), F.linear(x.to(LOW), other.to(LOW)))


# PyTorch would rather have everybody move to torch.export; traces must still be right.
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_jit_trace_over_a_cached_weight_follows_the_weight():
    layer, x = torch.nn.Linear(3, 3), torch.randn(3, 3)
    with region():
        layer(x)
        traced = torch.jit.trace(layer, x, check_trace=False)
    scaled_in_place(layer.weight)
    with region():
        expected = layer(x)
    assert_same_bits(traced(x), expected)


# --- the cache on its own ------------------------------------------------------------


def test_a_cache_is_emptied_when_as_many_have_left_as_have_entered():
    cache, weight = WeightCache(), make_weight()
    cache.enter()
    cache.enter()
    half = cache.cast(weight, LOW)
    assert cache.cast(weight, LOW) is half
    cache.leave()
    assert len(cache) == 1
    cache.leave()
    assert len(cache) == 0


@pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode])
def test_a_copy_made_in_inference_mode_is_for_inference_mode_alone(first):
    cache, weight = WeightCache(), make_weight()
    for mode in (first, torch.no_grad, torch.inference_mode):
        with mode():
            half = cache.cast(weight, LOW)
            assert half.is_inference() == (mode is torch.inference_mode)


class Subclass(torch.Tensor):
    pass


def test_only_a_plain_float32_leaf_that_requires_grad_is_a_weight():
    weight = torch.ones(2, requires_grad=True)
    subclass = torch.Tensor._make_subclass(Subclass, torch.ones(2), True)
    others = [subclass, weight.detach(), weight * 1, weight.double(), weight.half()]
    assert [is_cacheable(t) for t in (weight, make_weight())] == [True, True]
    assert not any(map(is_cacheable, others))


def test_what_a_function_transform_wraps_is_no_weight():
    seen = []

    def loss(weight: torch.Tensor) -> torch.Tensor:
        seen.append(weight.requires_grad and weight.is_leaf and is_cacheable(weight))
        return weight.sum()

    torch.func.grad(loss)(torch.ones(2, requires_grad=True))
    assert seen == [False]

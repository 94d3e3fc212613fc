"""The laws of regions: the innermost decides, and each leaves what it found."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from op_calls import dtype_of_mm
from oracles import assert_same_bits
from small_models import MODELS, make_task

LOW = (torch.float16, torch.bfloat16)
by_low = pytest.mark.parametrize("low", LOW, ids=str)
by_model = pytest.mark.parametrize("model", MODELS)


class Stop(Exception):
    """Thrown through regions."""


regions = st.lists(st.tuples(st.booleans(), st.sampled_from(LOW)), max_size=5)


@given(regions)
def test_the_innermost_region_decides_and_each_exit_gives_the_outer_one_back(
    amp, device, nested
):
    def descend(rest: list[tuple[bool, torch.dtype]], expected: torch.dtype) -> None:
        assert dtype_of_mm(device) is expected
        if rest:
            (enabled, low), *inner = rest
            with amp.autocast(device, dtype=low, enabled=enabled):
                descend(inner, low if enabled else torch.float32)
        assert dtype_of_mm(device) is expected

    descend(nested, torch.float32)


@given(regions)
def test_an_exception_restores_every_region_it_passes(amp, device, nested):
    def descend(rest: list[tuple[bool, torch.dtype]], expected: torch.dtype) -> None:
        if not rest:
            raise Stop
        (enabled, low), *inner = rest
        with pytest.raises(Stop), amp.autocast(device, dtype=low, enabled=enabled):
            descend(inner, low if enabled else torch.float32)
        assert dtype_of_mm(device) is expected
        raise Stop

    with pytest.raises(Stop):
        descend(nested, torch.float32)
    assert dtype_of_mm(device) is torch.float32


@by_low
def test_a_decorated_function_runs_in_the_region_and_only_while_it_runs(
    amp, device, low
):
    @amp.autocast(device, dtype=low)
    def inside(fail: bool) -> torch.dtype:
        if fail:
            raise Stop
        return dtype_of_mm(device)

    assert inside(fail=False) is low
    with pytest.raises(Stop):
        inside(fail=True)
    assert dtype_of_mm(device) is torch.float32


def test_threads_do_not_share_a_region(amp, device):
    seen: dict[str, torch.dtype] = {}
    both_are_inside = threading.Barrier(2, timeout=30)

    def work(name: str, low: torch.dtype) -> None:
        with amp.autocast(device, dtype=low):
            both_are_inside.wait()
            seen[name] = dtype_of_mm(device)
            both_are_inside.wait()

    threads = [threading.Thread(target=work, args=(str(low), low)) for low in LOW]
    for thread in threads:
        thread.start()
    outside = dtype_of_mm(device)
    for thread in threads:
        thread.join()
    assert seen == {str(low): low for low in LOW}
    assert outside is torch.float32


def test_a_new_thread_starts_outside_every_region(amp, device):
    seen = []
    with amp.autocast(device, dtype=torch.bfloat16):
        thread = threading.Thread(target=lambda: seen.append(dtype_of_mm(device)))
        thread.start()
        thread.join()
    assert seen == [torch.float32]


@by_model
def test_a_disabled_region_is_invisible(amp, device, model):
    task = make_task(model, device)
    plain = task.loss(0)
    plain_grads = torch.autograd.grad(plain, list(task.model.parameters()))
    # Batch norm has seen the batch once by now; it is in training mode, so its output
    # depends on this batch alone.
    with amp.autocast(device, dtype=torch.bfloat16, enabled=False):
        inside = task.loss(0)
    grads = torch.autograd.grad(inside, list(task.model.parameters()))
    assert_same_bits(inside, plain, model)
    for ours, theirs in zip(grads, plain_grads, strict=True):
        assert_same_bits(ours, theirs, model)

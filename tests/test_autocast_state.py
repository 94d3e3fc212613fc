"""The state of autocast as a value: which settings, in which order, told as text."""

from __future__ import annotations

import itertools

import pytest
import torch

from minamp.autocasting.state import AutocastState, Rules, Setting
from minamp.autocasting.weight_cache import WeightCache
from minamp.policy.torch_lists import torch_lists

BF16, FP16 = torch.bfloat16, torch.float16


def setting(
    device_type: str, dtype: torch.dtype = FP16, enabled: bool = True
) -> Setting:
    return Setting(device_type, dtype, enabled, torch_lists())


def state_of(*settings: Setting) -> AutocastState:
    state = AutocastState()
    for each in settings:
        state = state.entering(each, True)
    return state


@pytest.mark.parametrize(
    "order", [*itertools.permutations(["cpu", "cuda", "hpu", "xpu"])], ids="-".join
)
def test_devices_are_asked_in_pytorchs_order_however_the_regions_nest(order):
    state = state_of(*map(setting, order), setting("mps", enabled=False))
    assert [s.device_type for s in state.enabled] == ["cuda", "xpu", "cpu", "hpu"]


def test_the_signature_tells_device_dtype_and_lists_of_each_enabled_setting():
    state = state_of(setting("cpu", BF16), setting("cuda", FP16))
    lists = torch_lists().fingerprint
    assert state.signature == f"cuda:float16:{lists} cpu:bfloat16:{lists}"
    assert state_of(setting("cpu", enabled=False)).signature == ""


def test_entering_leaves_the_old_state_as_it_was():
    outer = state_of(setting("cpu", BF16))
    inner = outer.entering(setting("cpu", FP16), False)
    assert (outer.settings["cpu"].dtype, outer.cache_enabled) == (BF16, True)
    assert (inner.settings["cpu"].dtype, inner.cache_enabled) == (FP16, False)


def test_rules_concern_a_call_if_any_tensor_of_it_lives_on_their_device():
    rules = Rules(setting("cpu"), cache=None)
    here, elsewhere = torch.ones(1), torch.ones(1, device="meta")
    assert rules.device_type == "cpu"
    for values in ([here], [3, None, here], [elsewhere, [elsewhere, here]], [[here]]):
        assert rules.concerns(values)
    for values in ([], [3, None, "text"], [elsewhere, [elsewhere]], [[], ()]):
        assert not rules.concerns(values)


def test_every_caster_of_a_region_shares_its_cache():
    rules = Rules(setting("cpu"), WeightCache())
    weight, activation = torch.nn.Parameter(torch.ones(2)), torch.ones(2)
    half = rules.to_lower(weight)
    assert rules.to_lower(weight) is half and rules.caster(FP16)(weight) is half
    assert rules.to_lower(activation) is not rules.to_lower(activation)


def test_without_a_cache_each_cast_is_a_new_one():
    rules = Rules(setting("cpu"), cache=None)
    weight = torch.nn.Parameter(torch.ones(2))
    assert rules.to_lower(weight) is not rules.to_lower(weight)
    assert rules.to_lower(weight).dtype is FP16

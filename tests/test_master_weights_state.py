"""Laws of master weights: every bit survives a save and a load."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from minamp.weights.kahan import KahanSummation
from minamp.weights.master_weights import MasterWeights
from minamp.weights.stochastic_rounding import StochasticRounding
from minamp.weights.twins import twin_of
from oracles import assert_same_bits
from weight_helpers import assert_same_state

HALVES = (torch.float16, torch.bfloat16)
WAYS = (MasterWeights, KahanSummation, StochasticRounding)


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))


class Run:
    """A model being trained; its data depend on nothing but the number of the step."""

    def __init__(self, dtype: torch.dtype, way=MasterWeights, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = small_net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.masters = way(self.model, self.optimizer, dtype, float32_outside=True)

    def train(self, first: int, last: int) -> None:
        for number in range(first, last):
            generator = torch.Generator().manual_seed(number)
            self.optimizer.zero_grad()
            self.model(
                torch.randn(5, 4, generator=generator)
            ).square().mean().backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }


def through_a_file(state: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@given(
    dtype=st.sampled_from(HALVES),
    way=st.sampled_from(WAYS),
    stop=st.integers(0, 4),
    more=st.integers(0, 3),
    order=st.permutations(["model", "optimizer"]),
)
def test_resumed_run_equals_the_run_never_stopped(dtype, way, stop, more, order):
    run = Run(dtype, way)
    run.train(0, stop)
    saved, coin = through_a_file(run.state()), torch.get_rng_state()
    run.train(stop, stop + more)

    resumed = Run(dtype, way, seed=1)
    for part in order:
        getattr(resumed, part).load_state_dict(saved[part])
    torch.set_rng_state(coin)
    assert_same_state(resumed.state(), saved)
    resumed.train(stop, stop + more)
    assert_same_state(resumed.state(), run.state())


@given(dtype=st.sampled_from(HALVES), steps=st.integers(0, 3))
def test_float32_state_loads_into_a_plain_model_and_back_to_the_bit(dtype, steps):
    run = Run(dtype)
    run.train(0, steps)
    state = through_a_file(run.masters.state_dict())
    assert {value.dtype for value in state.values()} == {torch.float32}

    plain = small_net()
    plain.load_state_dict(state)
    assert_same_state(dict(plain.state_dict()), dict(state))

    other = Run(dtype, seed=1)
    other.model.load_state_dict(plain.state_dict())
    assert_same_state(dict(other.masters.state_dict()), dict(state))
    assert_same_state(dict(other.model.state_dict()), dict(run.model.state_dict()))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_state_loaded_into_the_model_reaches_the_masters(dtype):
    run, other = Run(dtype), Run(dtype, seed=1)
    other.model.load_state_dict(run.model.state_dict())
    weight, master = other.model[0].weight, other.masters.state_dict()["0.weight"]
    assert_same_bits(master, weight.detach().float())
    other.train(0, 1)
    assert (twin_of(weight) - master).abs().max() <= 2e-4  # lr is 1e-4, the old is gone


def test_frozen_half_weight_is_in_the_float32_state_as_it_is():
    model = small_net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[3].parameters())
    masters = MasterWeights(model, optimizer, torch.bfloat16)
    assert_same_bits(masters.state_dict()["0.weight"], model[0].weight.float())


def test_float32_training_continues_with_masters_from_its_own_checkpoint():
    """A checkpoint of plain training: model and optimizer, both float32."""
    torch.manual_seed(0)
    plain = small_net()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-4)
    plain(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    saved = copy.deepcopy((plain.state_dict(), optimizer.state_dict()))
    run = Run(torch.bfloat16, seed=1)
    run.model.load_state_dict(saved[0])
    run.optimizer.load_state_dict(saved[1])
    assert_same_state(dict(run.masters.state_dict()), dict(saved[0]))
    assert_same_state(run.optimizer.state_dict()["state"], saved[1]["state"])


@pytest.mark.parametrize("damage", ["another shape", "one too few"])
def test_masters_that_do_not_fit_are_refused_and_nothing_is_loaded(damage):
    run = Run(torch.bfloat16)
    run.train(0, 1)
    saved, before = (
        copy.deepcopy(run.optimizer.state_dict()),
        copy.deepcopy(run.state()),
    )
    saved["state"].clear()
    if damage == "another shape":
        saved["master_weights"][1] = torch.zeros(9)
    else:
        del saved["master_weights"][1]
    with pytest.raises(ValueError, match=r"master_weights of the checkpoint.*\(8, 4\)"):
        run.optimizer.load_state_dict(saved)
    assert_same_state(run.state(), before)


def test_saving_is_a_look_and_not_a_copy():
    run = Run(torch.bfloat16)
    saved: list[Tensor] = run.optimizer.state_dict()["master_weights"]
    assert saved[0].data_ptr() == twin_of(run.model[0].weight).data_ptr()
    assert not saved[0].requires_grad


def test_a_half_buffer_has_no_master_and_keeps_its_dtype_in_the_float32_state():
    model = small_net()
    model.register_buffer("table", torch.ones(3, dtype=torch.float16))
    optimizer = torch.optim.SGD(model.parameters())
    masters = MasterWeights(model, optimizer, torch.bfloat16)
    assert masters.state_dict()["table"] is model.table


def test_loading_reaches_a_master_behind_a_weight_that_has_none():
    model = small_net()
    model[0].weight.requires_grad_(False)  # the bias comes after it
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad])
    MasterWeights(model, optimizer, torch.bfloat16)
    saved = {name: value + 1 / 3 for name, value in small_net().state_dict().items()}
    model.load_state_dict(saved)
    assert_same_bits(twin_of(model[0].bias).detach(), saved["0.bias"])

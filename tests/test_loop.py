"""The top floor: `train_step` with each recipe, against the loops it stands for.

The references are written out below, as PyTorch's documentation writes them.
"""

from __future__ import annotations

import contextlib
import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from minamp.loop import recipes
from minamp.loop.recipes import RECIPES
from minamp.loop.train_step import train_step
from minamp.scaling.no_scaler import NoLossScaler
from oracles import assert_same_bits

HALF = {"fp16_autocast": torch.float16, "bf16_autocast": torch.bfloat16}
SCALING = {"init_scale": 2.0**12, "growth_interval": 2}

seeds = st.integers(0, 2**31)
# Which steps get a loss so large (but finite) that its float16 gradients overflow.
overflows = st.lists(st.booleans(), min_size=1, max_size=4)


def make_model(device: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)
    return nn.Sequential(*layers).to(device)


def make_batch(device: str, seed: int, overflow: bool = False):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(8, 6, generator=generator)
    classes = torch.randint(4, (8,), generator=generator)
    return inputs.to(device), classes.to(device), 1e9 if overflow else 1.0


def loss_of(model: nn.Module, batch) -> torch.Tensor:
    inputs, classes, weight = batch
    return F.cross_entropy(model(inputs), classes) * weight


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All that training has changed: weights, then the optimizer's tensors."""
    moments = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return [*model.state_dict().values(), *moments]


def assert_same_state(ours, theirs) -> None:
    for one, other in zip(state_of(*ours), state_of(*theirs), strict=True):
        assert_same_bits(one, other)


# --- the recipes -----------------------------------------------------------------


def test_the_table_of_recipes_is_true():
    """The rows in the docstring of recipes.py are read and compared with RECIPES."""
    words = {torch.float32: "float32", torch.float16: "float16"}
    words[torch.bfloat16] = "bfloat16"
    doc = [line.split() for line in recipes.__doc__.splitlines()]
    rows = {line[0]: " ".join(line[1:]) for line in doc if line and line[0] in RECIPES}
    assert rows == {
        name: " ".join(
            [words[recipe.compute], words[recipe.weights]]
            + ["and masters"] * (recipe.weights is not torch.float32)
            + [["no"], ["yes"]][recipe.scaled]
        ).replace(" and", ", and")
        for name, recipe in RECIPES.items()
    }


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_builds_what_its_row_says(name, device):
    recipe, model = RECIPES[name], make_model(device, 0)
    parts = recipe.parts(model, adamw(model))
    with parts.region:
        product = F.linear(torch.ones(1, 6, device=device), model[0].weight.float())
    assert product.dtype is recipe.compute
    assert model[0].weight.dtype is recipe.weights
    assert model[1].weight.dtype is torch.float32  # norm layers stay
    assert (parts.masters is None) is (recipe.weights is torch.float32)
    assert isinstance(parts.scaler, NoLossScaler) is not recipe.scaled
    for group in parts.optimizer.param_groups:
        assert all(weight.dtype is torch.float32 for weight in group["params"])


def test_float16_is_scaled_and_nothing_else_is():
    for recipe in RECIPES.values():
        assert recipe.scaled is (recipe.compute is torch.float16)


# --- against the loops of PyTorch ------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("max_norm", [None, 0.1])
@given(seed=seeds)
def test_fp32_is_plain_pytorch_to_the_bit(device, max_norm, accumulate, seed):
    plain = make_model(device, seed)
    model = copy.deepcopy(plain)
    optimizer, parts = adamw(plain), RECIPES["fp32"].parts(model, adamw(model))
    for step in range(3):
        batches = [make_batch(device, seed + i) for i in range(step, step + accumulate)]
        optimizer.zero_grad()
        for batch in batches:
            loss = loss_of(plain, batch) / accumulate
            loss.backward()
        if max_norm is not None:
            norm = nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
        optimizer.step()
        facts = train_step(parts, loss_of, *batches, max_norm=max_norm)
        if max_norm is not None:
            assert_same_bits(facts.grad_norm, norm)
        if accumulate == 1:
            assert_same_bits(facts.loss, loss.detach())
        assert facts.taken and facts.scale == 1.0
    assert_same_state((model, parts.optimizer), (plain, optimizer))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", HALF)
@given(seed=seeds, overflows=overflows)
def test_autocast_recipes_are_torch_amp_to_the_bit(
    device, name, accumulate, seed, overflows
):
    theirs, dtype = make_model(device, seed), HALF[name]
    model = copy.deepcopy(theirs)
    parts = RECIPES[name].parts(model, adamw(model), **SCALING)
    optimizer = adamw(theirs)
    scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16, **SCALING)
    for step, overflow in enumerate(overflows):
        overflow = overflow and dtype is torch.float16
        batches = [
            make_batch(device, seed + step + i, overflow) for i in range(accumulate)
        ]
        optimizer.zero_grad()
        for batch in batches:
            with torch.autocast(device, dtype):
                loss = loss_of(theirs, batch) / accumulate
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        facts = train_step(parts, loss_of, *batches)
        assert facts.scale == scaler.get_scale()
        assert facts.taken is not overflow
        if accumulate == 1:
            assert_same_bits(facts.loss, loss.detach())
    assert_same_state((model, parts.optimizer), (theirs, optimizer))


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
@given(seed=seeds)
def test_masters_are_autocast_to_the_bit_where_every_weight_is_cast(device, kind, seed):
    """A listed op gets the same half weight either way: cast now, or kept so.

    It holds for one use of a weight in a step. (A second gradient of it would be
    added in half by autocast, in float32 by the masters.)
    """
    model = make_model(device, seed)
    twin = copy.deepcopy(model)
    autocast = RECIPES[f"{kind}_autocast"].parts(model, adamw(model), **SCALING)
    masters = RECIPES[f"{kind}_masters"].parts(twin, adamw(twin), **SCALING)
    for step in range(3):
        batch = make_batch(device, seed + step)
        assert_same_bits(
            train_step(masters, loss_of, batch).loss,
            train_step(autocast, loss_of, batch).loss,
        )
    kept = masters.masters.state_dict()
    for name, weight_fp32 in model.state_dict().items():
        assert_same_bits(kept[name], weight_fp32, name)


# --- one step --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp16_autocast", "fp16_masters"])
def test_a_skipped_step_changes_the_scale_and_nothing_else(name, device):
    model = make_model(device, 0)
    parts = RECIPES[name].parts(model, adamw(model), **SCALING)
    assert train_step(parts, loss_of, make_batch(device, 0)).taken
    before = copy.deepcopy(state_of(model, parts.optimizer))
    facts = train_step(parts, loss_of, make_batch(device, 1, overflow=True))
    assert not facts.taken
    assert facts.scale == SCALING["init_scale"] / 2
    for now, then in zip(state_of(model, parts.optimizer), before, strict=True):
        assert_same_bits(now, then)


@pytest.mark.parametrize("name", RECIPES)
def test_several_batches_count_as_one_large_batch(name, device):
    """Small whole numbers: every product and sum is exact, so equal to the bit."""

    def mean_square(model, batch):
        return model(batch).float().square().mean()

    moved = []
    for parts_of_batch in (1, 2, 4):
        model = nn.Linear(4, 2).to(device)
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-6)
        parts = RECIPES[name].parts(model, optimizer, init_scale=2.0**4)
        rows = (torch.arange(32.0) % 3 - 1).reshape(8, 4).to(device)
        facts = train_step(parts, mean_square, *rows.chunk(parts_of_batch))
        moved.append((facts.loss, model.weight, model.bias))
    for others in moved[1:]:
        for one, other in zip(moved[0], others, strict=True):
            assert_same_bits(one, other)


@pytest.mark.parametrize("name", RECIPES)
def test_clipping_bounds_the_move_by_the_norm_of_the_true_gradient(name, device):
    """SGD with a rate of 1 moves by the clipped gradient itself: its norm shows."""
    model = make_model(device, 0)
    masters = RECIPES[name].parts(model, torch.optim.SGD(model.parameters(), lr=1.0))
    weights_fp32 = [w for g in masters.optimizer.param_groups for w in g["params"]]
    before = [weight.detach().clone() for weight in weights_fp32]
    facts = train_step(masters, loss_of, make_batch(device, 0), max_norm=0.125)
    moves = [now - then for now, then in zip(weights_fp32, before, strict=True)]
    moved = torch.linalg.vector_norm(torch.cat([move.flatten() for move in moves]))
    assert facts.grad_norm > 0.125
    # Each of the n elements of a move is off by half an ulp of its weight (below 1).
    n = sum(move.numel() for move in moves)
    assert abs(moved.item() - 0.125) <= math.sqrt(n) * 2.0**-24


@pytest.mark.parametrize("name", RECIPES)
def test_an_infinite_max_norm_measures_and_clips_nothing(name, device):
    states = []
    for max_norm in (None, math.inf):
        model = make_model(device, 3)
        parts = RECIPES[name].parts(model, adamw(model))
        facts = train_step(parts, loss_of, make_batch(device, 3), max_norm=max_norm)
        states.append((model, parts.optimizer))
    assert_same_state(*states)
    gradients = [
        weight.grad.flatten()
        for group in parts.optimizer.param_groups
        for weight in group["params"]
    ]
    expected = torch.linalg.vector_norm(torch.cat(gradients).double()).item()
    # A float32 norm of n terms is off by at most n/2 + 1 roundings of 2^-24 each.
    bound = (torch.cat(gradients).numel() / 2 + 1) * 2.0**-24
    assert abs(facts.grad_norm.item() / expected - 1) <= bound


class HostReads(TorchDispatchMode):
    """Counts the reads of a tensor by the host (`item`): each waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count += op is torch.ops.aten._local_scalar_dense.default
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["fp32", "bf16_autocast", "bf16_masters"])
def test_without_a_scaler_the_host_never_waits(name, device):
    model = make_model(device, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = RECIPES[name].parts(model, optimizer)
    batch = make_batch(device, 0)
    with HostReads() as reads:
        facts = train_step(parts, loss_of, batch, max_norm=1.0)
        assert facts.taken
        assert reads.count == 0
        facts.loss.item()
        assert reads.count == 1  # so the count can count


def test_a_failing_loss_leaves_the_region(device):
    model = make_model(device, 0)
    parts = RECIPES["bf16_autocast"].parts(model, adamw(model))

    def failing(model, batch):
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        train_step(parts, failing, make_batch(device, 0))
    assert model(make_batch(device, 0)[0]).dtype is torch.float32

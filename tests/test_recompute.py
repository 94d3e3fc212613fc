"""Checkpointing: the recomputation runs in the region of the forward pass."""

from __future__ import annotations

import contextlib
import importlib

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint as torch_checkpoint

from minamp.autocasting import dispatch_key, recompute
from minamp.autocasting.recompute import checkpoint
from minamp.autocasting.region import autocast
from minamp.policy.safe_lists import safe_lists
from op_calls import dtype_of_mm
from oracles import assert_same_bits

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CHECKPOINTS = {"minamp": checkpoint, "torch": torch_checkpoint.checkpoint}

by_checkpoint = pytest.mark.parametrize("how", CHECKPOINTS.values(), ids=CHECKPOINTS)
by_kind = pytest.mark.parametrize("use_reentrant", [True, False])


def region(dtype: torch.dtype = BF16, **kwargs) -> autocast:
    return autocast("cpu", dtype=dtype, **kwargs)


class Piece(torch.nn.Module):
    """A piece of a model that notes in which precision it runs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)
        self.seen: list[tuple] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append((dtype_of_mm("cpu"), torch.exp(x.to(BF16)).dtype))
        return torch.tanh(self.layer(x)).float()


REGIONS = {
    "bf16": {"dtype": BF16},
    "fp16": {"dtype": FP16},
    "safe": {"dtype": BF16, "op_lists": safe_lists()},
    "off": {"enabled": False},
    "no cache": {"dtype": BF16, "cache_enabled": False},
}


@by_checkpoint
@by_kind
@pytest.mark.parametrize("name", REGIONS)
def test_gradients_are_those_without_a_checkpoint(how, use_reentrant, name):
    x, results = torch.randn(2, 4, requires_grad=True), []
    for run in (lambda p, x: p(x), lambda p, x: how(p, x, use_reentrant=use_reentrant)):
        piece = Piece()
        with region(**REGIONS[name]):
            out = run(piece, x)
        leaves = [x, *piece.parameters()]
        x.grad = None
        out.pow(2).sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
    assert len(piece.seen) == 2 and piece.seen[0] == piece.seen[1]
    for ours, plain in zip(*results, strict=True):
        assert_same_bits(ours, plain)


@by_checkpoint
@by_kind
def test_backward_in_another_region_recomputes_in_the_first(how, use_reentrant):
    piece, x = Piece(), torch.randn(2, 4, requires_grad=True)
    with region(BF16):
        out = how(piece, x, use_reentrant=use_reentrant)
    with region(FP16):
        out.sum().backward()
        assert dtype_of_mm("cpu") is FP16
    assert [mm for mm, _ in piece.seen] == [BF16, BF16]


@by_checkpoint
@by_kind
def test_a_forward_pass_outside_is_recomputed_outside(how, use_reentrant):
    piece, x = Piece(), torch.randn(2, 4, requires_grad=True)
    with region():
        pass  # from the first region on, PyTorch's checkpoint knows of ours
    out = how(piece, x, use_reentrant=use_reentrant)
    with region():
        out.sum().backward()
    assert [mm for mm, _ in piece.seen] == [FP32, FP32]


@by_checkpoint
@by_kind
def test_backward_inside_the_region_leaves_the_region_in_force(how, use_reentrant):
    piece, x = Piece(), torch.randn(2, 4, requires_grad=True)
    with region():
        piece.layer(x)  # its weight is in the cache by now
        how(piece, x, use_reentrant=use_reentrant).sum().backward()
        assert dtype_of_mm("cpu") is BF16
    assert piece.layer.weight.grad is not None and piece.seen[0] == piece.seen[1]


@by_checkpoint
def test_the_users_own_context_fn_still_works(how):
    entered = []

    @contextlib.contextmanager
    def note(name: str):
        entered.append((name, dtype_of_mm("cpu")))
        yield

    piece, x = Piece(), torch.randn(2, 4, requires_grad=True)
    with region():
        out = how(
            piece,
            x,
            use_reentrant=False,
            context_fn=lambda: (note("forward"), note("recompute")),
        )
    out.sum().backward()
    assert [name for name, _ in entered] == ["forward", "recompute"]
    assert [mm for mm, _ in piece.seen] == [BF16, BF16]


@by_checkpoint
@by_kind
def test_an_exception_while_recomputing_leaves_nothing_entered(how, use_reentrant):
    calls = []

    def fails_the_second_time(x):
        calls.append(dtype_of_mm("cpu"))
        if len(calls) == 2:
            raise KeyError("stop")
        return x * x

    x = torch.ones(2, requires_grad=True)
    with region():
        out = how(fails_the_second_time, x, use_reentrant=use_reentrant)
    with pytest.raises(KeyError, match="stop"):
        out.sum().backward()
    assert dtype_of_mm("cpu") is FP32
    assert dispatch_key.thread.depth == 0


@by_kind
def test_nested_checkpoints_recompute_in_the_region(use_reentrant):
    piece, x = Piece(), torch.randn(2, 4, requires_grad=True)

    def outer(x):
        return checkpoint(piece, x, use_reentrant=use_reentrant)

    with region():
        out = checkpoint(outer, x, use_reentrant=use_reentrant)
    out.sum().backward()
    assert len(piece.seen) >= 2 and {mm for mm, _ in piece.seen} == {BF16}


@by_checkpoint
@pytest.mark.slow
def test_a_compiled_checkpoint_has_the_bits_of_the_eager_one(how):
    piece, x = torch.nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)

    def run(x):
        return how(piece, x, use_reentrant=False)

    torch.compiler.reset()
    results = []
    for function in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        with region():
            out = function(x)
        results.append([out, *torch.autograd.grad(out.float().sum(), x)])
    for eager, ours in zip(*results, strict=True):
        assert_same_bits(ours, eager)


def test_a_region_inside_the_checkpointed_piece_is_entered_again():
    seen = []

    def piece(x):
        with region(FP16):
            seen.append(dtype_of_mm("cpu"))
            return F.linear(x, x).float()

    x = torch.randn(2, 2, requires_grad=True)
    checkpoint(piece, x, use_reentrant=False).sum().backward()
    assert seen == [FP16, FP16]


@by_kind
def test_checkpoint_sequential_runs_in_the_region(use_reentrant):
    pieces, x = [Piece() for _ in range(4)], torch.randn(2, 4, requires_grad=True)
    with region():
        out = torch_checkpoint.checkpoint_sequential(
            pieces, 2, x, use_reentrant=use_reentrant
        )
    out.sum().backward()
    assert {mm for piece in pieces for mm, _ in piece.seen} == {BF16}
    assert sum(len(piece.seen) for piece in pieces) > len(pieces)


def test_the_places_where_torch_is_taught_exist():
    module = importlib.import_module("torch.utils.checkpoint")
    assert any(hasattr(module, name) for name in recompute.NON_REENTRANT)
    region()
    assert module._minamp_taught
    taught = [getattr(module, n) for n in recompute.NON_REENTRANT if hasattr(module, n)]
    assert hasattr(taught[0], "__wrapped__")
    assert hasattr(module.CheckpointFunction.forward, "__wrapped__")


def test_teaching_again_changes_nothing():
    module = importlib.import_module("torch.utils.checkpoint")
    forward = module.CheckpointFunction.forward
    recompute.teach_torch.cache_clear()
    recompute.teach_torch()
    assert module.CheckpointFunction.forward is forward

"""Activation checkpointing: the recomputation runs in the region of the forward pass.

``torch.utils.checkpoint`` saves memory by running a piece of the model again during the
backward pass.  By then the region has been left, so the piece would run in float32, and
its gradients would not be those of the half-precision forward.  PyTorch's checkpoint
saves and restores the state of *its* autocast; here it learns of ours.

``minamp.checkpoint`` is PyTorch's ``checkpoint`` with the state of autocast carried
along.  As models call PyTorch's own function deep inside, the first region teaches that
one as well (``teach_torch``).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from minamp.autocasting import dispatch_key
from minamp.autocasting.state import AutocastState


def in_present_state(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, to run in the autocast state of now, whenever it is called.

    Useful for worker threads too, which start without the regions of their maker.
    """
    if torch.compiler.is_dynamo_compiling():
        return function  # a graph holds the casts of its recomputation already
    return functools.partial(_run_in, dispatch_key.current(), function)


def _run_in(
    state: AutocastState, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    if state is dispatch_key.current():
        return function(*args, **kwargs)
    before = dispatch_key.enter(state)
    try:
        return function(*args, **kwargs)
    finally:
        dispatch_key.leave(before)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``torch.utils.checkpoint.checkpoint``, recomputing in the region of the call.

    Takes the same arguments, for both kinds (``use_reentrant`` True or False).
    """
    from torch.utils.checkpoint import checkpoint as torch_checkpoint

    return torch_checkpoint(in_present_state(function), *args, **kwargs)


@functools.cache
def teach_torch() -> None:
    """Let ``torch.utils.checkpoint`` carry our state along with that of its own.

    Both kinds of checkpoint hold a function to run again, and each gets hold of it in
    one place; there it is exchanged for ``in_present_state(function)``.  Outside every
    region too, as the backward pass may run inside one.
    """
    module: Any = importlib.import_module("torch.utils.checkpoint")
    # A second copy of minamp in the process must not wrap them again.
    if hasattr(module, "_minamp_taught"):
        return
    module._minamp_taught = True
    # Private, as PyTorch has no hook for state that a recomputation needs.
    plain_forward = module.CheckpointFunction.forward
    name = next(n for n in NON_REENTRANT if hasattr(module, n))
    plain_generator = getattr(module, name)

    @functools.wraps(plain_forward)
    def forward(ctx: Any, function: Callable[..., Any], *args: Any) -> Any:
        return plain_forward(ctx, in_present_state(function), *args)

    @functools.wraps(plain_generator)
    def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return plain_generator(in_present_state(function), *args, **kwargs)

    module.CheckpointFunction.forward = staticmethod(forward)
    setattr(module, name, generator)


# Where the non-reentrant kind gets hold of its function: in PyTorch 2.14, and before.
NON_REENTRANT = (
    "_checkpoint_without_reentrant_generator_impl",
    "_checkpoint_without_reentrant_generator",
)

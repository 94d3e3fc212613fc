"""A half weight and its float32 twin.

The model computes with the *weight*, in 16 bits.  The optimizer steps on the *twin*, a
float32 parameter of the same shape.  This file is the link between the two and the way
up: as soon as autograd has put a gradient on the weight, it is moved to the twin,

    twin.grad  <-  twin.grad + float32(weight.grad),        weight.grad  <-  None.

So gradients add up in float32, an infinity in half is an infinity in float32 (where the
loss scaler finds it), and no 16-bit gradient outlives its own backward.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from minamp.weights.gradient_memory import float32_copy

HALF_DTYPES = (torch.float16, torch.bfloat16)


def twin_of(weight: Tensor) -> nn.Parameter | None:
    """The float32 twin of ``weight``, or None where it has none.

    The twin is an attribute of its weight.  ``copy.deepcopy`` copies no attributes of
    parameters, so a deep copy of a model is a plain half model, linked to nothing.
    """
    return getattr(weight, "twin", None)


def give_twin(weight: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    """Make ``weight`` a parameter of ``dtype``; return its float32 twin, a new one.

    The weight stays the same object, wherever the model holds it.  If it was float32,
    its memory becomes the twin's, so no bit is lost.  If it had a twin, its bits and
    its role go to the new one.  The gradient moves along.
    """
    value_fp32 = best_known(weight.detach(), twin_of(weight))
    twin = nn.Parameter(value_fp32, requires_grad=weight.requires_grad)
    weight.data = weight.detach().to(dtype)
    weight.twin = twin  # type: ignore[attr-defined]
    weight.requires_grad_(True)  # the hook asks for it, and stays when it is taken back
    weight.register_post_accumulate_grad_hook(move_gradient)
    weight.requires_grad_(twin.requires_grad)
    move_gradient(weight)
    return twin


def best_known(weight: Tensor, master: Tensor | None) -> Tensor:
    """The float32 value behind ``weight``: ``master``, wherever that rounds to it.

    Elsewhere somebody has written to the weight since, and the weight is all we know.
    """
    if master is None:
        return weight.float()
    fits = master.detach().to(weight.dtype) == weight
    return torch.where(fits, master.detach(), weight.float())


def empty(twin: nn.Parameter) -> None:
    """Free the memory of ``twin``, but not its gradient; whoever reads it reads NaN."""
    nothing = torch.full((), torch.nan, device=twin.device)
    twin.data = nothing.expand(twin.shape)


def move_gradient(weight: Tensor) -> None:
    """Add the gradient of ``weight``, if there is one, to its twin's, and free it."""
    grad_half, twin = weight.grad, twin_of(weight)
    if grad_half is None or twin is None:
        return
    weight.grad = None
    if twin.grad is None:
        twin.grad = float32_copy(grad_half.detach(), twin)
    else:
        # Cast first: an addition of two dtypes takes twice as long on a CPU.
        twin.grad.add_(grad_half.detach().float())


def named_twins(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """``model.named_parameters()`` with every weight that has a twin replaced by it."""
    for name, weight in model.named_parameters():
        twin = twin_of(weight)
        yield name, weight if twin is None else twin


def zero_grad(model: nn.Module, set_to_none: bool = True) -> None:
    """``model.zero_grad()`` for a model whose gradients live on twins."""
    for _, parameter in named_twins(model):
        if set_to_none:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.detach_().zero_()

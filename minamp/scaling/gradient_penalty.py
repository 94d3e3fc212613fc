"""Gradients as part of the loss: WGAN-GP and other penalties, under loss scaling.

    grads = scaler.grad(critic(x).sum(), x, create_graph=True)      true gradients
    penalty = (grads[0].norm(dim=1) - 1).square().mean()
    scaler.scale(loss + penalty).backward()

The inner gradients are made from a scaled loss, for the same reason as the outer ones,
and must be divided by the scale *before* the penalty: it is not linear in them. The
division is part of the graph, so the second backward pass goes through it. If the inner
ones overflow, the penalty is NaN and so are the outer ones: the step is skipped and the
scale falls, as it should.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minamp.scaling.found_inf import reciprocal


def unscaled(grads: Sequence[Any], scale: Tensor) -> tuple[Any, ...]:
    """Each gradient divided by the scale, differentiably; None stays None.

    fp16 gradients come back as float32, where a small quotient does not underflow.
    """
    inv_scale = reciprocal(scale)

    def divide(grad: Tensor) -> Tensor:
        wide = grad.float() if grad.dtype is torch.float16 else grad
        return wide * inv_scale.to(grad.device, non_blocking=True)

    return tuple(None if grad is None else divide(grad) for grad in grads)

"""The whole step of mixed-precision training, in order, on one screen.

Each line of `train_step` is an idea with a file of its own; the tour in the README
leads through them. A part that a recipe leaves out does nothing, so with the parts of
`fp32` these lines are plain training, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from minamp.loop.recipes import Parts

Batch = TypeVar("Batch")


def train_step(
    parts: Parts,
    loss_of: Callable[[nn.Module, Batch], Tensor],
    batch: Batch,
    *more: Batch,
    max_norm: float | None = None,
) -> StepFacts:
    """Train `parts.model` by one step of its optimizer, and return what happened.

    Args:
        parts: as made by `Recipe.parts`.
        loss_of: the mean loss (0-dim) of a model on a batch. It runs in the region.
        batch, more: one batch; or several of one size, whose gradients are accumulated
            as if they were one large batch.
        max_norm: clip the gradient to this 2-norm. It is the norm of the true gradient,
            the loss scale is divided out first. With `inf` the norm is only measured.

    The host waits for the device at most once: where the scaler decides whether the
    optimizer steps.
    """
    model, optimizer, scaler = parts.model, parts.optimizer, parts.scaler
    optimizer.zero_grad()
    batches, losses = (batch, *more), []
    for batch in batches:
        with parts.region:  # cast: each listed op casts its inputs
            loss = loss_of(model, batch) / len(batches)  # forward
        scaler.scale(loss).backward()  # scale, backward
        losses.append(loss.detach())
    grad_norm = None
    if max_norm is not None:
        grad_norm = scaler.clip_grad_norm_(optimizer, max_norm)  # unscale, check, clip
    scaler.step(optimizer)  # step; unscale and check first, unless clipping did
    scaler.update()  # adjust the scale
    return StepFacts(torch.stack(losses).sum(), grad_norm, parts)


@dataclass(frozen=True)
class StepFacts:
    """What happened in a step. Tensors stay on the device until somebody reads them.

    `loss` is the mean over all batches, not scaled. `grad_norm` is the norm before
    clipping, None if nobody asked for it.
    """

    loss: Tensor
    grad_norm: Tensor | None
    parts: Parts

    @property
    def taken(self) -> bool:
        """Did the optimizer step, or was the step skipped? Ask before the next one."""
        return self.parts.scaler.outcome(self.parts.optimizer).stepped

    @property
    def scale(self) -> float:
        """The loss scale of the next step; 1.0 without a scaler."""
        return self.parts.scaler.get_scale()

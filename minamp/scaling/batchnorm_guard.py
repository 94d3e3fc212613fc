"""Batch-norm statistics of a step that was skipped: put them back.

A skipped step leaves weights and optimizer alone, but the forward pass has been, and it
has moved `running_mean` and `running_var` towards a batch that overflowed: they are
NaN, and evaluation is NaN for good, while training, which does not use them, looks
fine.

So keep the statistics of before the first forward pass of an iteration, and when
`scaler.update()` ends the iteration, take per number the old or the new:

    buffer <- where(step was skipped, old buffer, buffer)

on the device, so that nothing waits. Statistics are small; the copy costs no time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from minamp.scaling.bookkeeping import Bookkeeper

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def batchnorm_guard(model: nn.Module, scaler: Any) -> BatchNormGuard:
    """Guard every layer of `model` that has running statistics; call it once.

    With a scaler that never skips (NoLossScaler, `enabled=False`) it does nothing.
    """
    return BatchNormGuard(model, scaler)


class BatchNormGuard:
    """Keeps and restores running statistics; `remove()` ends it."""

    def __init__(self, model: nn.Module, scaler: Any) -> None:
        self._kept: dict[Tensor, Tensor] = {}
        self._handles = []
        if isinstance(scaler, Bookkeeper) and scaler.is_enabled():
            layers = [m for m in model.modules() if _has_statistics(m)]
            self._handles = [m.register_forward_pre_hook(self._keep) for m in layers]
            scaler.register_update_hook(self._restore_if_skipped)

    def remove(self) -> None:
        """Take the hooks off the layers."""
        for handle in self._handles:
            handle.remove()
        self._kept.clear()

    def _keep(self, layer: nn.Module, inputs: Any) -> None:
        if layer.training:
            for buffer in _statistics(layer):
                if buffer not in self._kept:  # else an earlier micro-batch was first
                    self._kept[buffer] = buffer.clone()

    @torch.no_grad()
    def _restore_if_skipped(self, found_inf: Tensor | None) -> None:
        """`found_inf` is None if the iteration was abandoned: no step, either."""
        for buffer, old in self._kept.items():
            if found_inf is None:
                buffer.copy_(old)
            else:
                skipped = found_inf.to(buffer.device, non_blocking=True)
                buffer.copy_(torch.where(skipped, old, buffer))
        self._kept.clear()


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(getattr(module, "running_mean", None), Tensor)


def _statistics(layer: nn.Module) -> list[Tensor]:
    found = [getattr(layer, name, None) for name in STATISTICS]
    return [buffer for buffer in found if isinstance(buffer, Tensor)]

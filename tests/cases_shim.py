"""minamp under the names by which reported cases ask any implementation for its parts.

Autocast uses the `safe` lists here: several of the reports are about what PyTorch's own
lists leave dangerous, and the default lists are exactly PyTorch's.
"""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

import minamp
from minamp import (
    FP16,
    GradScaler,
    batchnorm_guard,
    custom_bwd,
    custom_fwd,
    overflow_trace,
)
from minamp.tensors.histogram import share_lost_to_zero

__all__ = ["GradScaler", "batchnorm_guard", "custom_bwd", "custom_fwd"]
__all__ += ["overflow_trace"]


class autocast(minamp.autocast):  # noqa: N801
    def __init__(self, *args, op_lists=None, **kwargs):
        super().__init__(*args, op_lists=op_lists or minamp.safe_lists(), **kwargs)


def step_was_skipped(scaler, optimizer) -> bool:
    return not scaler.outcome(optimizer).stepped


def sharded_scaler(process_group=None, **kwargs):
    return GradScaler("cpu", process_group=process_group, **kwargs)


def synced_scaler(process_group=None, **kwargs):
    return GradScaler("cpu", process_group=process_group, **kwargs)


def master_optimizer(model: nn.Module, optimizer_class, **kwargs) -> Optimizer:
    optimizer = optimizer_class(model.parameters(), **kwargs)
    minamp.MasterWeights(model, optimizer)
    return optimizer


def underflow_fraction(model: nn.Module) -> dict[str, float]:
    return {
        name: share_lost_to_zero(parameter.grad, FP16)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }

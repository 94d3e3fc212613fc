"""minamp under the names that a collection of reported cases asks an implementation for.

Each name is looked up when it is used, so that a part that is missing misses only its
own cases.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "autocast": "minamp.autocasting.region",
    "custom_fwd": "minamp.autocasting.custom_function",
    "custom_bwd": "minamp.autocasting.custom_function",
    "overflow_trace": "minamp.scaling.overflow_trace",
    "GradScaler": "minamp.scaling.scaler:DynamicLossScaler",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(name)
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def step_was_skipped(scaler, optimizer) -> bool:
    return not scaler.outcome(optimizer).stepped


def sharded_scaler(process_group=None, **kwargs):
    return __getattr__("GradScaler")("cpu", process_group=process_group, **kwargs)


def synced_scaler(process_group=None, **kwargs):
    return __getattr__("GradScaler")("cpu", process_group=process_group, **kwargs)


def batchnorm_guard(model, scaler):
    from minamp.scaling.batchnorm_guard import batchnorm_guard

    return batchnorm_guard(model, scaler)


def master_optimizer(model, optimizer_class, **kwargs):
    from minamp.weights.master_weights import MasterWeights

    optimizer = optimizer_class(model.parameters(), **kwargs)
    MasterWeights(model, optimizer)
    return optimizer

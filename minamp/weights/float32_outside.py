"""A half model that is float32 from outside: for loops without an autocast region.

A plain loop feeds float32 and takes a loss of the output.  A half model refuses the one
and has few digits for the other.  Hooks make up for both:

    the model            casts what it is given to half, and what it returns to float32
    a float32 layer      (a norm) casts what it is given to float32, and returns half

An autocast region does this better, op by op, and an input that only float32 ops read
(a time step, a coordinate) keeps its digits there.  So this is for whoever has none.
(FSDP's ``cast_forward_inputs`` and apex O2 cast at the same places.)
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from minamp.tensors.casting import cast_nested


def make_float32_outside(
    model: nn.Module, half_dtype: torch.dtype, float32_layers: Iterable[nn.Module]
) -> None:
    """Put the hooks on ``model`` and on the layers in it that stayed float32."""
    _cast_around(model, inside=half_dtype, outside=torch.float32)
    for layer in float32_layers:
        _cast_around(layer, inside=torch.float32, outside=half_dtype)


def _cast_around(module: nn.Module, inside: torch.dtype, outside: torch.dtype) -> None:
    module.register_forward_pre_hook(partial(_cast_inputs, inside), with_kwargs=True)
    module.register_forward_hook(partial(_cast_outputs, outside))


# Functions of this module, not closures, so that a model with them can be pickled.


def _cast_inputs(dtype: torch.dtype, module: nn.Module, args: Any, kwargs: Any) -> Any:
    return _cast(module, args, dtype), _cast(module, kwargs, dtype)


def _cast_outputs(dtype: torch.dtype, module: nn.Module, args: Any, output: Any) -> Any:
    return _cast(module, output, dtype)


def _cast(module: nn.Module, value: Any, dtype: torch.dtype) -> Any:
    return cast_nested(value, next(module.parameters()).device.type, dtype)

"""Multiply a loss by the scale, or every tensor of a nest of losses.

The product is a tensor of the autograd graph: d(scale * loss) = scale * d(loss), so the
backward pass of it makes scaled gradients, and the loss itself, which one may want to
log, stays as it was.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import torch
from torch import Tensor


def scaled(output: Tensor, scale: Tensor) -> Tensor:
    """`output * scale`, on the device of `output`.

    A half vector is widened to float32 first, else a loss above 1 would overflow at the
    usual scale of 65536. (A half number, a 0-dim tensor, torch widens by itself.)
    """
    if output.dtype is torch.float16:
        output = output.float()
    return output * scale.to(output.device, non_blocking=True)


def map_tensors(outputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest with `change` applied to each tensor.

    Lists, tuples, namedtuples and dicts keep their type; any other iterable becomes a
    lazy `map`, as in torch.amp.

    Raises:
        ValueError: something in the nest is neither a tensor nor a container.
    """
    if isinstance(outputs, Tensor):
        return change(outputs)
    if isinstance(outputs, MutableMapping):
        changed = copy.copy(outputs)  # of whatever type it is, with its default factory
        for key, value in outputs.items():
            changed[key] = map_tensors(value, change)
        return changed
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*(map_tensors(value, change) for value in outputs))
    if isinstance(outputs, Iterable) and not isinstance(outputs, (str, bytes)):
        values = (map_tensors(value, change) for value in outputs)
        return type(outputs)(values) if isinstance(outputs, (list, tuple)) else values
    raise ValueError(
        "outputs must be a Tensor or an iterable of Tensors, but there is a "
        f"{type(outputs).__name__} in it. Scale the losses only: "
        "scaler.scale(loss), not scaler.scale((loss, 'name', 3))."
    )

"""Which values autocast may cast, and a cast over nested structures.

A value is *eligible* when it is a floating-point tensor on the region's device type and
not float64: integers and complex numbers have nothing to gain, and who asks for float64
wants its digits.  This is PyTorch's rule (``is_eligible`` in its autocast kernels).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

# `tensor.is_cuda` costs a fifth of `tensor.device.type == "cuda"`, and a kernel asks
# it for every argument of every listed op.
_FLAGS = {"cpu": "is_cpu", "cuda": "is_cuda", "mps": "is_mps", "xpu": "is_xpu"}


def lives_on(device_type: str) -> Callable[[torch.Tensor], bool]:
    """The predicate "this tensor is on ``device_type``", as fast as there is one."""
    if device_type in _FLAGS:
        return operator.attrgetter(_FLAGS[device_type])
    return lambda tensor: tensor.device.type == device_type


def conversion(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function ``tensor -> tensor.to(dtype)``, as fast as there is one."""
    named = {
        torch.float16: torch.Tensor.half,
        torch.bfloat16: torch.Tensor.bfloat16,
        torch.float32: torch.Tensor.float,
    }
    return named.get(dtype, lambda tensor: tensor.to(dtype))


def is_castable(dtype: torch.dtype) -> bool:
    """Floating point, and not float64."""
    return dtype.is_floating_point and dtype is not torch.float64


def is_eligible(value: object, device_type: str) -> bool:
    """Whether autocast on ``device_type`` may change the dtype of ``value``."""
    return (
        isinstance(value, torch.Tensor)
        and is_castable(value.dtype)
        and lives_on(device_type)(value)
    )


def cast_nested(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    """``value`` with every eligible tensor in it cast to ``dtype``.

    Goes into lists, tuples (named ones too) and mappings, which keep their type;
    anything else is returned as it is.  A cast of a tensor that requires grad has a
    gradient.
    """
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if is_eligible(value, device_type) else value
    if isinstance(value, Mapping):
        cast = {k: cast_nested(v, device_type, dtype) for k, v in value.items()}
        return cast if type(value) is dict else _rebuilt(value, cast)
    if isinstance(value, (list, tuple)):
        items = [cast_nested(item, device_type, dtype) for item in value]
        if hasattr(value, "_fields"):  # a namedtuple takes its fields one by one
            return type(value)(*items)
        return type(value)(items)
    return value


def _rebuilt(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """``items`` as the mapping type of ``value``, or a dict where it needs more."""
    try:
        return type(value)(items)  # type: ignore[call-arg]
    except TypeError:
        return items

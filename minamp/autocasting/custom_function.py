"""``custom_fwd`` and ``custom_bwd``: autocast and autograd functions of your own.

The ``forward`` of a ``torch.autograd.Function`` may run in a region, and its
``backward`` runs much later, when the region is gone.  ``custom_fwd`` writes down what
was in force, ``custom_bwd`` brings it back.  With ``cast_inputs`` the function asks for
one dtype instead: its floating-point inputs are cast, and autocast is off inside.

Signature and behaviour are those of ``torch.amp.custom_fwd`` and ``custom_bwd``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from minamp.autocasting import dispatch_key
from minamp.autocasting.region import (
    autocast,
    get_autocast_dtype,
    is_autocast_enabled,
)
from minamp.tensors.casting import cast_nested

Function = Callable[..., Any]


def custom_fwd(
    fwd: Function | None = None,
    *,
    device_type: str,
    cast_inputs: torch.dtype | None = None,
) -> Function:
    """Decorate ``forward(ctx, ...)`` so that ``backward`` can run as it ran.

    Args:
        device_type: the type of device that the function computes on.
        cast_inputs: in a region, cast floating-point tensors on ``device_type`` (but
            float64) to this dtype and run ``forward`` with autocast off.  Outside a
            region it changes nothing.

    Raises ValueError if ``device_type`` is not a string.
    """
    _check(device_type)
    if fwd is None:
        return functools.partial(
            custom_fwd, device_type=device_type, cast_inputs=cast_inputs
        )

    @functools.wraps(fwd)
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        enabled = is_autocast_enabled(device_type)
        ctx._dtype = get_autocast_dtype(device_type)
        ctx._fwd_used_autocast = enabled and cast_inputs is None
        ctx._op_lists = _op_lists(device_type)
        if cast_inputs is None or not enabled:
            return fwd(ctx, *args, **kwargs)
        with autocast(device_type, enabled=False):
            args = cast_nested(args, device_type, cast_inputs)
            kwargs = cast_nested(kwargs, device_type, cast_inputs)
            return fwd(ctx, *args, **kwargs)

    return forward


def custom_bwd(bwd: Function | None = None, *, device_type: str) -> Function:
    """Decorate ``backward(ctx, ...)`` to run in the region that ``forward`` ran in.

    Raises ValueError if ``device_type`` is not a string.
    """
    _check(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        with autocast(
            device_type,
            dtype=ctx._dtype,
            enabled=ctx._fwd_used_autocast,
            op_lists=ctx._op_lists,
        ):
            return bwd(ctx, *args, **kwargs)

    return backward


def _op_lists(device_type: str) -> Any:
    setting = dispatch_key.current().settings.get(device_type)
    return setting.op_lists if setting is not None else None


def _check(device_type: str) -> None:
    if not isinstance(device_type, str):
        raise ValueError(
            f"Expected `device_type` of type `str`, got: `{type(device_type)}`; write "
            "the type alone, for instance custom_fwd(device_type='cuda')"
        )

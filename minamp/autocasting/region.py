"""``autocast``: the region, as a context manager and as a decorator.

Inside ``with autocast("cpu", dtype=torch.bfloat16):`` each listed op runs in the
precision its list says.  A region is entered by making a new state out of the current
one, and left by putting the current one back; that is all, and it is why regions nest
in any way, why an exception restores, and why one instance can be entered twice.

The signature, defaults and queries are those of ``torch.autocast``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from minamp.autocasting import (
    dispatch_key,
    graph_guards,
    graph_regions,
    recompute,
    request,
    state,
    weight_cache,
)
from minamp.autocasting.decorating import run_inside
from minamp.autocasting.floor import weights
from minamp.autocasting.graph_regions import (
    enter_region,
    leave_eagerly,
    leave_region,
    prepare_trace,
    refuse_export,
)
from minamp.autocasting.never_compiled import never_compile_functions_of
from minamp.autocasting.recompute import teach_torch
from minamp.autocasting.request import resolve
from minamp.autocasting.state import Setting
from minamp.policy import policies
from minamp.policy.op_lists import OpLists
from minamp.policy.torch_lists import torch_lists

F = TypeVar("F", bound=Callable[..., Any])


class autocast:  # noqa: N801  (the name is torch's)
    """A region in which each op runs in the precision its list says.

    Args:
        device_type: the type of device whose tensors are cast, as in ``device.type``.
        dtype: ``torch.float16`` or ``torch.bfloat16``; None means the dtype of the
            surrounding region, else the default of the device type.
        enabled: False makes a region in which nothing is cast on ``device_type``.
        cache_enabled: whether each weight is cast once a region; None means as around.
        op_lists: which op runs in which precision (``minamp.OpLists``); None means as
            in the surrounding region, else those of the running PyTorch.

    Raises:
        ValueError: ``device_type`` is not a string.
        RuntimeError: autocast does not exist for it, or not with this dtype.
    """

    def __init__(
        self,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
        *,
        op_lists: OpLists | None = None,
    ) -> None:
        self.device = device_type
        self._asked = (dtype, enabled, cache_enabled, op_lists)
        self._entered_in_graph = 0
        self.setting: Setting | None = None
        if not torch.compiler.is_dynamo_compiling():
            self._resolve()

    def _resolve(self) -> Setting:
        dtype, enabled, cache_enabled, op_lists = self._asked
        teach_torch()
        around = dispatch_key.current()
        self.setting = resolve(around, self.device, dtype, enabled, op_lists)
        self.cache_enabled = (
            around.cache_enabled if cache_enabled is None else bool(cache_enabled)
        )
        # A stack, and one a thread: an instance may be entered again before it is left.
        self._entered = threading.local()
        return self.setting

    @property
    def fast_dtype(self) -> torch.dtype:
        """The dtype of the region, under the name that torch.autocast gives it."""
        return (self.setting or self._resolve()).dtype

    def __enter__(self) -> autocast:
        if torch.compiler.is_dynamo_compiling():
            dtype, enabled, cache_enabled, op_lists = self._asked
            lists = op_lists.fingerprint if op_lists is not None else ""
            prepare_trace()
            enter_region(self.device, dtype, enabled, cache_enabled, lists)
            self._entered_in_graph += 1
            return self
        # A region made while Dynamo traced, and entered after a graph break, is not
        # resolved yet.
        setting = self.setting or self._resolve()
        refuse_export(setting)
        inside = dispatch_key.current().entering(setting, self.cache_enabled)
        stack = self._entered.__dict__.setdefault("stack", [])
        stack.append(dispatch_key.enter(inside))
        return self

    def __exit__(self, *exception: object) -> None:
        if self._entered_in_graph:
            self._entered_in_graph -= 1
            leave_region()
        else:
            leave_eagerly(self._entered)

    def __call__(self, func: F) -> F:
        if not callable(func):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(func).__name__}: "
                "to run a block write `with autocast(...):`, to decorate a function "
                "write `@autocast(...)` above it"
            )
        return run_inside(self._again, func)

    def _again(self) -> autocast:
        """This region; a new one for Dynamo, which enters none it has not seen made."""
        if torch.compiler.is_dynamo_compiling():
            dtype, enabled, cache_enabled, op_lists = self._asked
            return autocast(
                self.device, dtype, enabled, cache_enabled, op_lists=op_lists
            )
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_entered"}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        self._entered = threading.local()


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Whether an op on ``device_type`` called now, in this thread, is autocast."""
    setting = dispatch_key.current().settings.get(device_type)
    return setting is not None and setting.enabled and dispatch_key.is_visible()


def get_autocast_dtype(device_type: str) -> torch.dtype:
    """The dtype of the innermost region of ``device_type`` in this thread.

    Outside every region, the default: float16 on CUDA, bfloat16 on the CPU, or what
    ``torch.set_autocast_dtype`` has made of it.
    """
    setting = dispatch_key.current().settings.get(device_type)
    if setting is not None:
        return setting.dtype
    return torch.get_autocast_dtype(device_type)


def is_autocast_cache_enabled() -> bool:
    """Whether weights are cached in a region entered now with the defaults."""
    return dispatch_key.current().cache_enabled


def is_autocast_available(device_type: str) -> bool:
    """Whether there is an op table for ``device_type`` in the default lists.

    Raises RuntimeError if PyTorch knows no such type of device.
    """
    torch.device(device_type)
    return device_type in torch_lists().tables


def clear_autocast_cache() -> None:
    """Forget the half copies of all weights now."""
    weights.clear()


never_compile_functions_of(
    sys.modules[__name__],
    dispatch_key,
    graph_guards,
    graph_regions,
    policies,
    recompute,
    request,
    state,
    weight_cache,
)

"""``autocast``: the region, as a context manager and as a decorator.

Inside ``with autocast("cpu", dtype=torch.bfloat16):`` each listed op runs in the
precision its list says.  A region is entered by making a new state out of the current
one, and left by putting the current one back; that is all, and it is why regions nest
in any way, why an exception restores, and why one instance can be entered twice.

The signature and defaults are those of ``torch.autocast``.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from minamp.autocasting import dispatch_key
from minamp.autocasting.decorating import run_inside
from minamp.autocasting.state import Setting
from minamp.policy.op_lists import OpLists
from minamp.policy.torch_lists import torch_lists

F = TypeVar("F", bound=Callable[..., Any])

SUPPORTED_DTYPES = (torch.float16, torch.bfloat16)


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
    """Whether weights are cached by a region entered now with the defaults."""
    return dispatch_key.current().cache_enabled


def is_autocast_available(device_type: str) -> bool:
    """Whether there is an op table for ``device_type`` in the default lists."""
    return device_type in torch_lists().tables


def clear_autocast_cache() -> None:
    """Forget the half copies of all weights now."""
    dispatch_key.weights.clear()


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
        _check_device_type(device_type, op_lists)
        around = dispatch_key.current()
        outer = around.settings.get(device_type)
        if dtype is None:
            dtype = outer.dtype if outer else torch.get_autocast_dtype(device_type)
        if op_lists is None:
            op_lists = outer.op_lists if outer else torch_lists()
        enabled = bool(enabled) and _can_work(device_type, dtype)
        self.setting = Setting(device_type, dtype, enabled, op_lists)
        self.cache_enabled = (
            around.cache_enabled if cache_enabled is None else bool(cache_enabled)
        )
        self._entered = threading.local()

    @property
    def device(self) -> str:
        """The device type, under the name that torch.autocast gives it."""
        return self.setting.device_type

    @property
    def fast_dtype(self) -> torch.dtype:
        """The dtype of the region, under the name that torch.autocast gives it."""
        return self.setting.dtype

    def __enter__(self) -> autocast:
        state = dispatch_key.current().entering(self.setting, self.cache_enabled)
        before = dispatch_key.enter(state)
        # A stack, and one a thread: an instance may be entered again before it is left.
        stack = self._entered.__dict__.setdefault("stack", [])
        stack.append(before)
        return self

    def __exit__(self, *exception: object) -> None:
        dispatch_key.leave(self._entered.stack.pop())

    def __call__(self, func: F) -> F:
        if not callable(func):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(func).__name__}: "
                "to run a block write `with autocast(...):`, to decorate a function "
                "write `@autocast(...)` above it"
            )
        return run_inside(self, func)

    def __getstate__(self) -> tuple[Setting, bool]:
        return self.setting, self.cache_enabled

    def __setstate__(self, state: tuple[Setting, bool]) -> None:
        self.setting, self.cache_enabled = state
        self._entered = threading.local()


def _check_device_type(device_type: str, op_lists: OpLists | None) -> None:
    if not isinstance(device_type, str):
        raise ValueError(
            f"Expected `device_type` of type `str`, got: `{type(device_type)}`; write "
            "the type alone, for instance autocast(tensor.device.type)"
        )
    lists = op_lists or torch_lists()
    if device_type not in lists.tables:
        torch.device(device_type)  # says so if there is no such device at all
        raise RuntimeError(
            f"User specified an unsupported autocast device_type '{device_type}': the "
            f"op lists have tables for {', '.join(sorted(lists.tables))}; pass "
            "op_lists= with a table for it, made by OpLists.add()"
        )


def _can_work(device_type: str, dtype: torch.dtype) -> bool:
    """False, with a warning, where there is no such device; raises for a bad dtype."""
    if device_type == "cuda" and not torch.cuda.is_available():
        warnings.warn(
            "CUDA is not available: this region of autocast('cuda') casts nothing. For "
            "tensors on the CPU write autocast('cpu').",
            stacklevel=3,
        )
        return False
    if dtype not in SUPPORTED_DTYPES:
        raise RuntimeError(
            f"{device_type.upper()} Autocast only supports dtypes of torch.bfloat16, "
            f"torch.float16, and was given {dtype}: choose one of the two, or write "
            "enabled=False for a region in full precision"
        )
    if device_type == "cuda" and dtype is torch.bfloat16:
        if not torch.cuda.is_bf16_supported():
            raise RuntimeError(
                "Current CUDA Device does not support bfloat16. Please switch dtype to "
                "float16."
            )
    return True

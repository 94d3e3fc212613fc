"""What a user asks of a region, checked and completed: from arguments to a setting."""

from __future__ import annotations

import warnings

import torch

from minamp.autocasting.state import AutocastState, Setting
from minamp.policy.op_lists import OpLists
from minamp.policy.torch_lists import torch_lists

SUPPORTED_DTYPES = (torch.float16, torch.bfloat16)


def resolve(
    around: AutocastState,
    device_type: str,
    dtype: torch.dtype | None,
    enabled: bool,
    op_lists: OpLists | None,
) -> Setting:
    """The setting of a region that is made while ``around`` is in force.

    What is None is taken from the surrounding region of the same device type, else from
    PyTorch's defaults.  Raises ValueError or RuntimeError for what cannot work.
    """
    check_device_type(device_type, op_lists or torch_lists())
    outer = around.settings.get(device_type)
    if dtype is None:
        dtype = outer.dtype if outer else torch.get_autocast_dtype(device_type)
    if op_lists is None:
        op_lists = outer.op_lists if outer else torch_lists()
    enabled = bool(enabled) and can_work(device_type, dtype)
    return Setting(device_type, dtype, enabled, op_lists)


def check_device_type(device_type: str, lists: OpLists) -> None:
    """Raises ValueError or RuntimeError unless ``lists`` have a table for it."""
    if not isinstance(device_type, str):
        raise ValueError(
            f"Expected `device_type` of type `str`, got: `{type(device_type)}`; write "
            "the type alone, for instance autocast(tensor.device.type)"
        )
    if device_type not in lists.tables:
        torch.device(device_type)  # raises if there is no such device at all
        raise RuntimeError(
            f"User specified an unsupported autocast device_type '{device_type}': the "
            f"op lists have tables for {', '.join(sorted(lists.tables))}; pass "
            "op_lists= with a table for it, made by OpLists.add()"
        )


def can_work(device_type: str, dtype: torch.dtype) -> bool:
    """False, with a warning, where there is no such device; raises for a bad dtype."""
    if device_type == "cuda" and not torch.cuda.is_available():
        warnings.warn(
            "CUDA is not available: this region of autocast('cuda') casts nothing. For "
            "tensors on the CPU write autocast('cpu').",
            stacklevel=5,
        )
        return False
    if dtype not in SUPPORTED_DTYPES:
        raise RuntimeError(
            f"{device_type.upper()} Autocast only supports dtypes of torch.bfloat16, "
            f"torch.float16, and was given {dtype}: choose one of the two, or write "
            "enabled=False for a region in full precision"
        )
    asks_for_bf16 = device_type == "cuda" and dtype is torch.bfloat16
    if asks_for_bf16 and not torch.cuda.is_bf16_supported():
        raise RuntimeError(
            "Current CUDA Device does not support bfloat16. Please switch dtype to "
            "float16."
        )
    return True

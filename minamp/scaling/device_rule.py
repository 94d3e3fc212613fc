"""The rule of `scale_rule.py` on tensors: scale and count stay on their device.

Whether a step overflowed is known on the accelerator first. If the host had to ask, it
would wait for all the work it has queued. So both outcomes are computed there, and
`torch.where` takes one: no question, no wait, and the update can be captured in a CUDA
graph or compiled. A test folds drawn histories through both functions and compares.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minamp.scaling.scale_rule import ScaleState


def update_scale_(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    back_off: Tensor,
    settings: ScaleState,
) -> None:
    """`next_state` in place, on 0-dim tensors of one device.

    Args:
        scale: float32.
        growth_tracker: int32.
        found_inf: bool, whether a step of this iteration overflowed.
        back_off: bool, whether the scale is to blame for it.
        settings: factors, interval and bounds; its `scale` and `growth_tracker` are
            not looked at.
    """
    clean_steps = growth_tracker + 1
    grows = ~found_inf & (clean_steps >= settings.growth_interval)
    lower, higher = _lowered(scale, settings), _raised(scale, settings)
    # Both read the old values; only now may these be overwritten.
    unchanged_or_higher = torch.where(grows, higher, scale)
    scale.copy_(torch.where(found_inf & back_off, lower, unchanged_or_higher))
    growth_tracker.copy_(clean_steps.masked_fill(found_inf | grows, 0))


def _lowered(scale: Tensor, settings: ScaleState) -> Tensor:
    lower = _times(scale, settings.backoff_factor)
    return torch.maximum(lower, scale.clamp(max=settings.min_scale))


def _raised(scale: Tensor, settings: ScaleState) -> Tensor:
    higher = _times(scale, settings.growth_factor)
    return torch.where(higher <= settings.max_scale, higher, scale)


def _times(scale: Tensor, factor: float) -> Tensor:
    """The product rounded once: the factor is a Python float, so it has 53 bits."""
    if scale.device.type == "mps":  # no float64 there; exact for powers of two
        return scale * factor
    return (scale.double() * factor).float()

"""Clip the gradients of an optimizer in one reading pass and one multiply.

The usual way reads and writes them three times: `unscale_` (check and divide), the
norm, the multiply. But the norm answers the check as well (it is finite if every
gradient is), and the two multiplications can be one:

    norm   = |scaled gradients| / scale
    factor = (1 / scale) * min(1, max_norm / norm)

so read once, multiply once. The formula of the second factor, with its 1e-6 against a
norm of 0, is that of `torch.nn.utils.clip_grad_norm_`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from minamp.scaling.found_inf import FoundInf, by_device, combined
from minamp.tensors import gradients


@torch.no_grad()
def clip_and_unscale(
    groups: gradients.Groups, inv_scale: Tensor, max_norm: float
) -> tuple[Tensor, FoundInf]:
    """Unscale the gradients in place, clip their common 2-norm, and check them.

    Returns the norm of the unscaled gradients before clipping (0-dim, float32 or wider)
    and found_inf. Gradients that are not finite are unscaled but not clipped, so that
    one can still see which elements were inf.
    """
    norms = {place: gradients.norm(group) for place, group in groups.items()}
    if not norms:
        return torch.zeros_like(inv_scale), {}
    norm_scaled = _norm_of_all(norms.values(), inv_scale.device)
    norm = norm_scaled * inv_scale
    shrink = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    found_inf = by_device(norms, _is_nonfinite)
    overflow = combined(found_inf, inv_scale.device).bool()
    factor = inv_scale * shrink.masked_fill(overflow, 1.0)
    for (device, _), group in groups.items():
        gradients.multiply_(group, factor.to(device, torch.float32))
    return norm, found_inf


def _norm_of_all(norms: Iterable[Tensor], device: torch.device) -> Tensor:
    """The norm of all gradients, on `device`, from those of their parts."""
    parts = [norm.to(device, non_blocking=True) for norm in norms]
    if len(parts) == 1:
        return parts[0]
    whole: Tensor = torch.linalg.vector_norm(torch.stack(parts))
    return whole


def _is_nonfinite(norm: Tensor) -> Tensor:
    """1.0 or 0.0: of inf and NaN, what is left of subtracting them is NaN, not 0."""
    return (norm - norm).ne(0).to(torch.float32)

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

import torch
from torch import Tensor

from minamp.scaling.found_inf import FoundInf
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
    device = inv_scale.device
    norms = {place: gradients.norm(group) for place, group in groups.items()}
    if not norms:
        return torch.zeros((), device=device), {}
    everywhere = [norm.to(device, non_blocking=True) for norm in norms.values()]
    norm_scaled = torch.linalg.vector_norm(torch.stack(everywhere))
    norm = norm_scaled * inv_scale
    shrink = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    factor = inv_scale * torch.where(norm_scaled.isfinite(), shrink, 1.0)
    for place, group in groups.items():
        gradients.multiply_(group, factor.to(place[0], torch.float32))
    return norm, _found_inf(norms)


def _found_inf(norms: dict[tuple[torch.device, torch.dtype], Tensor]) -> FoundInf:
    found_inf: FoundInf = {}
    for (device, _), norm in norms.items():
        flag = (~norm.isfinite()).to(torch.float32)
        found_inf[device] = torch.maximum(found_inf.get(device, flag), flag)
    return found_inf

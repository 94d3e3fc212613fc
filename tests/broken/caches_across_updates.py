"""Wrong: keeps the half copies of the weights when the region is left."""

from __future__ import annotations

import torch
from plain_scaler import GradScaler, custom_bwd, custom_fwd

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.autocast):  # noqa: N801 (the name is torch's)
    def __enter__(self):
        # PyTorch clears the cache at nesting level 0: it is never reached any more.
        torch.autocast_increment_nesting()
        return super().__enter__()

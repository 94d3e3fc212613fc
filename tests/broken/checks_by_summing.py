"""Wrong: takes a sum of finite numbers that overflows for an overflow (apex)."""

from __future__ import annotations

import plain_scaler
import torch
from plain_scaler import autocast, custom_bwd, custom_fwd

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class GradScaler(plain_scaler.GradScaler):
    def is_bad(self, gradient: torch.Tensor) -> bool:
        return not gradient.sum().isfinite()

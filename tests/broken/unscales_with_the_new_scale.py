"""Wrong: adapts the scale first, then divides the gradients by the new one (mpx)."""

from __future__ import annotations

import plain_scaler
from plain_scaler import autocast, custom_bwd, custom_fwd

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class GradScaler(plain_scaler.GradScaler):
    def scale_to_divide_by(self, optimizer) -> float:
        new_scale, _ = self.next_scale(self.overflowed[id(optimizer)])
        return new_scale

"""Wrong: compares before it counts, so an interval is a step longer (flax)."""

from __future__ import annotations

import plain_scaler
from plain_scaler import autocast, custom_bwd, custom_fwd

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class GradScaler(plain_scaler.GradScaler):
    def grows_after(self, clean_steps: int, growth_interval: int) -> bool:
        return clean_steps - 1 >= growth_interval

"""StaticLossScaler: a scale that never changes; overflow still skips the step.

For training whose range is known, and for comparing runs with one thing less that
moves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minamp.scaling.scaler import DynamicLossScaler


class StaticLossScaler(DynamicLossScaler):
    """A DynamicLossScaler without the dynamics.

    Args:
        scale: the loss scale, for good (`update(new_scale)` and a loaded state set
            another).
        device: as DynamicLossScaler.
    """

    def __init__(
        self, scale: float = 2.0**16, device: str | torch.device | None = None
    ) -> None:
        super().__init__(device, init_scale=scale)

    def _adapt_scale(self, found_inf: Tensor) -> None:
        """Leave it."""

"""A loss scaler in sixty lines, the plain way: right, but it waits at every step.

What a student might write. The broken ones beside it override one method each.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.amp import autocast, custom_bwd, custom_fwd

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class GradScaler:
    def __init__(
        self,
        device: str,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self.rule = growth_factor, backoff_factor, growth_interval
        self.scale_now, self.clean_steps, self.enabled = init_scale, 0, enabled
        self.overflowed: dict[int, bool] = {}  # by optimizer, once it is unscaled

    def scale(self, outputs):
        if not self.enabled:
            return outputs
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(map(self.scale, outputs))
        return outputs * self.scale_now

    def unscale_(self, optimizer) -> None:
        if not self.enabled:
            return
        if id(optimizer) in self.overflowed:
            raise RuntimeError("unscale_() has already been called on this optimizer.")
        gradients = _gradients(optimizer)
        self.overflowed[id(optimizer)] = any(map(self.is_bad, gradients))
        for gradient in gradients:
            gradient.mul_(1 / self.scale_to_divide_by(optimizer))

    def is_bad(self, gradient: torch.Tensor) -> bool:
        return not gradient.isfinite().all()

    def scale_to_divide_by(self, optimizer) -> float:
        return self.scale_now

    def step(self, optimizer) -> None:
        if self.enabled and id(optimizer) not in self.overflowed:
            self.unscale_(optimizer)
        if not self.overflowed.get(id(optimizer), False):
            optimizer.step()

    def update(self, new_scale: float | None = None) -> None:
        if not self.enabled:
            return
        overflowed = any(self.overflowed.values())
        self.overflowed = {}
        if new_scale is None:
            self.scale_now, self.clean_steps = self.next_scale(overflowed)
        else:
            self.scale_now = new_scale

    def next_scale(self, overflowed: bool) -> tuple[float, int]:
        growth_factor, backoff_factor, growth_interval = self.rule
        if overflowed:
            return _float32(self.scale_now * backoff_factor), 0
        if not self.grows_after(self.clean_steps + 1, growth_interval):
            return self.scale_now, self.clean_steps + 1
        grown = _float32(self.scale_now * growth_factor)
        return (grown if math.isfinite(grown) else self.scale_now), 0

    def grows_after(self, clean_steps: int, growth_interval: int) -> bool:
        return clean_steps >= growth_interval

    def get_scale(self) -> float:
        return self.scale_now if self.enabled else 1.0

    def is_enabled(self) -> bool:
        return self.enabled

    def state_dict(self) -> dict:
        if not self.enabled:
            return {}
        names = ("growth_factor", "backoff_factor", "growth_interval")
        counts = {"scale": self.scale_now, "_growth_tracker": self.clean_steps}
        return counts | dict(zip(names, self.rule, strict=True))

    def load_state_dict(self, state: dict) -> None:
        self.scale_now, self.clean_steps = state["scale"], state["_growth_tracker"]
        self.rule = (
            state["growth_factor"],
            state["backoff_factor"],
            state["growth_interval"],
        )


def _gradients(optimizer) -> list[torch.Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.grad for p in parameters if p.grad is not None]


def _float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))

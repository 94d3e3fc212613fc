"""The smallest training loop, for any scaler with the interface of GradScaler."""

from __future__ import annotations

import torch

from oracles import assert_same_bits
from strategies import ScalerSettings

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, 0.1),
    "sgd with momentum": lambda params: torch.optim.SGD(params, 0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, 0.1),
    "adamw": lambda params: torch.optim.AdamW(params, 0.1, amsgrad=True),
    "fused adam": lambda params: torch.optim.Adam(params, 0.1, fused=True),
}


class Loop:
    """A parameter, an optimizer and a scaler; the gradient of each step is chosen."""

    def __init__(self, scaler_class, device, settings, optimizer_name="adam") -> None:
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], device=device))
        self.optimizer = OPTIMIZERS[optimizer_name]([self.weight])
        self.scaler = make_scaler(scaler_class, device, settings)

    def step(self, poison: float = 0.0, gradient: float = 0.75) -> None:
        self.optimizer.zero_grad()
        loss = (self.weight * gradient).sum()
        self.scaler.scale(loss).backward()
        self.weight.grad[-1] += poison
        self.scaler.step(self.optimizer)
        self.scaler.update()

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The weight, and everything its optimizer remembers of it."""
        remembered = self.optimizer.state[self.weight].values()
        kept = [value for value in remembered if isinstance(value, torch.Tensor)]
        return [self.weight, *kept]


def make_scaler(scaler_class, device: str, settings: ScalerSettings):
    return scaler_class(
        device,
        init_scale=settings.init_scale,
        growth_factor=settings.growth_factor,
        backoff_factor=settings.backoff_factor,
        growth_interval=settings.growth_interval,
    )


USUAL = ScalerSettings(1024.0, 2.0, 0.5, 3)


def assert_same_tensors(ours: Loop, theirs: Loop, what: str) -> None:
    for left, right in zip(ours.tensors, theirs.tensors, strict=True):
        assert_same_bits(left.detach(), right.detach(), what)

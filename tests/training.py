"""The smallest training there is: what the tests of the scaler step through."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minamp.scaling.scaler import DynamicLossScaler

LR = 0.125  # a power of two, so that expected weights are exact


class Training:
    """One parameter of ones, SGD and a scaler; the gradient of each step is chosen."""

    def __init__(
        self,
        device: str = "cpu",
        *,
        make_optimizer: Callable[..., Any] = torch.optim.SGD,
        optimizer_kwargs: dict[str, Any] | None = None,
        scaler: Any = None,
        **scaler_kwargs: Any,
    ) -> None:
        self.weight = torch.nn.Parameter(torch.ones(2, device=device))
        kwargs = {"lr": LR, **(optimizer_kwargs or {})}
        self.optimizer = make_optimizer([self.weight], **kwargs)
        self.scaler = scaler or DynamicLossScaler(
            device, **{"init_scale": 1024.0, **scaler_kwargs}
        )

    def loss(self) -> Tensor:
        """Its gradient is 1 in each element."""
        return self.weight.sum()

    def backward(self, poison: float = 0.0) -> None:
        """Zero the gradients and make new ones; `poison` is added to the first."""
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss()).backward()
        if poison:
            self.weight.grad[0] += poison

    def step(self, poison: float = 0.0) -> None:
        """A whole iteration."""
        self.backward(poison)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def steps(self, history: str) -> None:
        """One iteration for each letter: "." a clean one, "x" one that overflows."""
        for letter in history:
            self.step(math.inf if letter == "x" else 0.0)

    @property
    def steps_taken(self) -> float:
        """How many steps of size LR the weight has come from 1."""
        return ((1 - self.weight.detach()) / LR).mean().item()

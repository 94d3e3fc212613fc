"""NoLossScaler: the methods of a scaler, and no scaling. Absence is a value.

bfloat16 and float32 need no loss scaling, and a script should not need an `if` for
that. `DynamicLossScaler(enabled=False)` behaves as this class, method by method: see
`otherwise`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from minamp.scaling.outcome import Outcome

Method = TypeVar("Method", bound=Callable[..., Any])


def otherwise(absent: Callable[..., Any]) -> Callable[[Method], Method]:
    """Decorate a method: on a scaler that is not enabled, `absent` runs instead."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def choose(self: Any, *args: Any, **kwargs: Any) -> Any:
            chosen = method if self._enabled else absent
            return chosen(self, *args, **kwargs)

        return choose  # type: ignore[return-value]

    return decorate


class NoLossScaler:
    """A scale of 1 that never changes, and steps that are never skipped."""

    def scale(self, outputs: Any) -> Any:
        """Return `outputs` as they are."""
        return outputs

    def unscale_(self, optimizer: Optimizer) -> None:
        """Do nothing."""

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Return `optimizer.step(*args, **kwargs)`."""
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Do nothing."""

    def clip_grad_norm_(
        self, optimizer: Optimizer, max_norm: float, norm_type: float = 2.0
    ) -> Tensor:
        """Clip the gradients of the optimizer to `max_norm`; return their norm."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def grad(self, outputs: Any, inputs: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """Return `torch.autograd.grad(outputs, inputs, **kwargs)`."""
        grads: tuple[Tensor, ...] = torch.autograd.grad(outputs, inputs, **kwargs)
        return grads

    def outcome(self, optimizer: Optimizer) -> Outcome:
        """Every step is taken; they are not counted."""
        return Outcome(stepped=True)

    def step_scheduler(self, scheduler: Any, *args: Any) -> None:
        """Return `scheduler.step(*args)`."""
        scheduler.step(*args)

    def is_enabled(self) -> bool:
        return False

    def get_scale(self) -> float:
        return 1.0

    def _get_growth_tracker(self) -> int:
        return 0

    def state_dict(self) -> dict[str, Any]:
        """An empty dictionary: there is nothing to remember."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing."""

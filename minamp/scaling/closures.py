"""Optimizers that evaluate the loss themselves: LBFGS, SAM, any `step(closure)`.

Such an optimizer calls the closure in the middle of its step and reads the gradients it
leaves. They are scaled, so the closure is wrapped: after each evaluation the gradients
are unscaled and checked, and the optimizer sees only true ones.

An overflow in the middle cannot be skipped, for the optimizer may have moved already
(a line search does). So parameters and optimizer state are kept aside before the step,
and put back. That costs a copy of both; only steps with a closure pay for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from minamp.scaling.found_inf import parameters_of

Closure = Callable[[], Any]


class OverflowInClosure(Exception):
    """Leaves the optimizer's step from within; never seen outside."""


def take_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Closure | None, tuple[Any, ...], dict[str, Any]]:
    """The closure, wherever it was given, and the remaining arguments of a step.

    torch.amp refuses `closure=f` but hands a positional one through, to be run on
    gradients that are still scaled.
    """
    others = dict(kwargs)
    closure = others.pop("closure", None)
    if closure is not None:
        return closure, args, others
    if args and callable(args[0]):
        return args[0], args[1:], kwargs
    return None, args, kwargs


def step_or_restore(
    optimizer: Optimizer, closure: Closure, *args: Any, **kwargs: Any
) -> Any:
    """`optimizer.step(closure)`, or nothing at all if an evaluation overflowed."""
    before = Snapshot(optimizer)
    try:
        return optimizer.step(closure, *args, **kwargs)
    except OverflowInClosure:
        before.restore()
        return None


class Snapshot:
    """The bits of an optimizer's parameters and of its state."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [(p, p.detach().clone()) for p in parameters_of(optimizer)]
        self._state = {
            parameter: copy.deepcopy(state)
            for parameter, state in optimizer.state.items()
        }

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, value in self._parameters:
            parameter.copy_(value)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)

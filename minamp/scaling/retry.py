"""Do not lose the batch: play it again at the lower scale. And find a first scale.

A skipped step throws a batch away. With a loss scale that is only a little too high,
the same batch at half the scale would have been fine. So, if the step can be run again,
run it again: with the random state of before, so that dropout and augmentation are the
same, and the batch is the same.

The usual first scale of 65536 is a guess; a model that needs less loses its first
batches finding out, and one that bears more grows towards it 2,000 steps at a time.
`find_initial_scale` asks the model instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from minamp.scaling.found_inf import any_of, check, gradients_of
from minamp.scaling.outcome import OVERFLOW, Outcome
from minamp.scaling.scaler import DynamicLossScaler

Loss = Callable[[], Tensor]


def step_with_retry(
    scaler: DynamicLossScaler, optimizer: Optimizer, loss: Loss, retries: int = 3
) -> Outcome:
    """One training step, repeated at lower scales while it overflows.

    Runs zero_grad, `scaler.scale(loss()).backward()`, step and update, and again after
    an overflow, `retries` times at most; never when the scale is not at fault, since
    then the same batch fails at any scale.

    Args:
        loss: the forward pass; called once an attempt, with the same random state.

    Returns the outcome of the last attempt.
    """
    before = RandomState()
    for _ in range(retries + 1):
        before.restore()
        optimizer.zero_grad()
        scaler.scale(loss()).backward()
        scaler.step(optimizer)
        scaler.update()
        outcome = scaler.outcome(optimizer)
        if outcome.reason != OVERFLOW:
            break
    return outcome


def find_initial_scale(
    optimizer: Optimizer,
    losses: Iterable[Loss],
    *,
    smallest: int = 0,
    largest: int = 24,
    headroom: int = 1,
) -> float:
    """The largest power of two at which none of some batches overflows.

    Only backward passes: no step, and no gradient is left behind. Bisection over the
    exponent, about five passes a batch.

    Args:
        losses: forward passes of some batches; gradients differ, so several are better.
        smallest, largest: the exponents to look between.
        headroom: how many powers of two to stay below what was found.

    Returns `2**exponent`; `2**smallest` if even that overflows.
    """
    exponent = largest
    for loss in losses:
        exponent = _largest_clean_exponent(optimizer, loss, smallest, exponent)
    return 2.0 ** max(smallest, exponent - headroom)


def _largest_clean_exponent(
    optimizer: Optimizer, loss: Loss, low: int, high: int
) -> int:
    """Bisection; overflowing is monotonic in the scale."""
    before = RandomState()
    while low < high:
        middle = (low + high + 1) // 2
        before.restore()
        if _overflows(optimizer, loss, 2.0**middle):
            high = middle - 1
        else:
            low = middle
    return low


def _overflows(optimizer: Optimizer, loss: Loss, scale: float) -> bool:
    optimizer.zero_grad()
    (loss().float() * scale).backward()
    overflowed = any_of(check(gradients_of(optimizer)))
    optimizer.zero_grad()
    return overflowed


class RandomState:
    """The random generators a forward pass may draw from, as they are now."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._cpu = torch.get_rng_state()
        self._cuda: Any = torch.cuda.get_rng_state_all() if _has_cuda() else None

    def restore(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)


def _has_cuda() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()

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

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.optim import Optimizer

from minamp.scaling.found_inf import any_of, check, gradients_of
from minamp.scaling.outcome import OVERFLOW, Outcome
from minamp.scaling.scaler import DynamicLossScaler
from minamp.tensors.random_state import RandomState

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
    generators = RandomState()
    before = generators.state_dict()
    for _ in range(retries + 1):
        generators.load_state_dict(before)
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
    generators = RandomState()
    before = generators.state_dict()
    while low < high:
        middle = (low + high + 1) // 2
        generators.load_state_dict(before)
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

"""When the loss scale grows and when it backs off: a pure function.

The largest scale that does not overflow is the best, and it changes as training goes
on. So look for it all the time:

    overflow               scale <- scale * backoff_factor, and count anew
    growth_interval clean steps in a row
                           scale <- scale * growth_factor, and count anew

(Micikevicius et al. 2018, "Mixed precision training", section 3.2; the numbers and the
counting are torch.amp.GradScaler's.) Frozen state in, frozen state out: a history of
overflows is a fold over this function, and can be drawn, replayed and tested without a
tensor. `device_rule.py` does the same to tensors.

The scale is a float32 number, and so is its reciprocal, which unscales. Hence two
bounds that hold whatever the settings: it never becomes 0 or subnormal, nor infinite.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

# The smallest normal float32 number and the largest: the reciprocal of either is finite
# and not zero.
SMALLEST_SCALE = 2.0**-126
LARGEST_SCALE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ScaleState:
    """The loss scale, how long it has been good, and the settings of the rule.

    `growth_tracker` counts the clean steps since the scale last changed or a step last
    overflowed (the name is torch.amp's).
    """

    scale: float = 2.0**16
    growth_tracker: int = 0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = SMALLEST_SCALE
    max_scale: float = LARGEST_SCALE


def next_state(state: ScaleState, found_inf: bool, back_off: bool = True) -> ScaleState:
    """The state after one step: `found_inf` says whether its gradients overflowed.

    With `back_off=False` an overflow keeps the scale, as when the scale is known not to
    be the cause; the count of clean steps starts anew all the same.
    """
    if found_inf:
        scale = lowered(state) if back_off else state.scale
        return replace(state, scale=scale, growth_tracker=0)
    if state.growth_tracker + 1 < state.growth_interval:
        return replace(state, growth_tracker=state.growth_tracker + 1)
    return replace(state, scale=raised(state), growth_tracker=0)


def lowered(state: ScaleState) -> float:
    """scale * backoff_factor, but no lower than `min_scale`.

    A scale that is already below (the user set it so) stays where it is.
    """
    lower = _float32(state.scale * state.backoff_factor)
    return max(lower, min(state.min_scale, state.scale))


def raised(state: ScaleState) -> float:
    """scale * growth_factor, or the old scale if that is above `max_scale`."""
    higher = _float32(state.scale * state.growth_factor)
    return higher if higher <= state.max_scale else state.scale


def _float32(value: float) -> float:
    """The nearest float32 number: what a tensor would hold. Too large becomes inf."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))

"""When backing off cannot help: the scale is at its floor, and still a step overflows.

Peers hard-code one answer each (raise, clamp, fall to 0), and users of each want
another. So it is a choice, made with `min_scale` and `at_floor`:

    "hold"    keep `min_scale` and skip, in silence
    "warn"    keep it, and warn once
    "raise"   keep it, and raise FloatingPointError with the parameters to blame
    "below"   warn once, and go on below it

The default is to hold 2**-126, which is no floor in practice: as torch.amp, but the
scale never becomes 0.
"""

from __future__ import annotations

import warnings
from typing import Literal, get_args

from minamp.scaling.scale_rule import SMALLEST_SCALE
from minamp.scaling.settings import ScalerSettingError

AtFloor = Literal["hold", "warn", "raise", "below"]


def check_policy(at_floor: str) -> None:
    """Raise ScalerSettingError if there is no such policy."""
    if at_floor not in get_args(AtFloor):
        raise ScalerSettingError(
            f"at_floor is {at_floor!r}. Write one of {', '.join(get_args(AtFloor))}."
        )


def floor_of(min_scale: float, at_floor: AtFloor) -> float:
    """The scale that is never gone below."""
    return SMALLEST_SCALE if at_floor == "below" else min_scale


def speak(at_floor: AtFloor, scale: float, blamed: str) -> None:
    """Say that a step overflowed at the floor, as loudly as the policy wants.

    Raises:
        FloatingPointError: the policy is "raise".
    """
    message = (
        f"A step overflowed although the loss scale is at its floor of {scale:g}: "
        "scaling is not the cause, or these gradients do not fit half precision. "
        f"The gradients that are not finite:\n{blamed}\n"
        "Look at the data of this batch and at the learning rate; run the module of "
        "these parameters in float32 (autocast with enabled=False); or allow smaller "
        "scales with min_scale."
    )
    if at_floor == "raise":
        raise FloatingPointError(message)
    warnings.warn(message, RuntimeWarning, stacklevel=4)

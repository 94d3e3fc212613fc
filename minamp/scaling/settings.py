"""Which settings of a scaler make sense, and why the others do not.

torch.amp checks two of them, each with an AssertionError; the rest it accepts and
trains on with a scale of 0, infinity or NaN.
"""

from __future__ import annotations

import math

import torch

from minamp.scaling.scale_rule import LARGEST_SCALE, SMALLEST_SCALE, ScaleState


class ScalerSettingError(ValueError, AssertionError):
    """A setting of a scaler that makes no sense.

    A ValueError by nature; an AssertionError too because torch.amp raises that.
    """


def default_device_type() -> str:
    """The type of the accelerator of this machine, or "cpu" if there is none."""
    if not torch.accelerator.is_available():
        return "cpu"
    accelerator = torch.accelerator.current_accelerator()
    return accelerator.type if accelerator is not None else "cpu"


def check_new_scaler(settings: ScaleState) -> None:
    """What `check_state` asks, and factors that do change the scale, as torch does."""
    if settings.growth_factor <= 1.0:
        raise ScalerSettingError(
            f"The growth factor must be > 1.0. It is {settings.growth_factor}, so the "
            "scale could never grow again. 2.0 is usual."
        )
    if settings.backoff_factor >= 1.0:
        raise ScalerSettingError(
            f"The backoff factor must be < 1.0. It is {settings.backoff_factor}, so an "
            "overflow would not lower the scale. 0.5 is usual."
        )
    check_state(settings)


def check_state(settings: ScaleState) -> None:
    """Raise ScalerSettingError for a state that the rule could not go on from.

    Factors of exactly 1 are let through: `set_growth_factor(1.0)` freezes the scale.
    """
    check_scale(settings.scale)
    if not 1.0 <= settings.growth_factor < math.inf:
        raise ScalerSettingError(
            f"growth_factor is {settings.growth_factor}: below 1 the scale would "
            "shrink after clean steps. Write a finite factor above 1, such as 2.0."
        )
    if not 0.0 < settings.backoff_factor <= 1.0:
        raise ScalerSettingError(
            f"backoff_factor is {settings.backoff_factor}: the next overflow would "
            "make the scale 0 or negative, or larger. Write a factor between 0 and 1, "
            "such as 0.5."
        )
    if settings.growth_interval < 1:
        raise ScalerSettingError(
            f"growth_interval is {settings.growth_interval}: it counts clean steps, so "
            "it is at least 1. Write 2000, or 2**31 - 1 for a scale that never grows."
        )


def check_scale(scale: float) -> None:
    """A scale multiplies the loss and its reciprocal the gradients: both finite."""
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        raise ScalerSettingError(
            f"The scale is {scale}. Loss times scale, then gradient divided by scale, "
            "must give the gradient back, so both the scale and its reciprocal have to "
            "be positive finite float32 numbers. 65536.0 is the usual start."
        )


def check_bounds(min_scale: float, max_scale: float) -> None:
    """The bounds of a scale are scales themselves, in this order."""
    if not SMALLEST_SCALE <= min_scale <= max_scale <= LARGEST_SCALE:
        raise ScalerSettingError(
            f"min_scale is {min_scale} and max_scale is {max_scale}: write bounds with "
            "2**-126 <= min_scale <= max_scale <= 3.4e38: between them every float32 "
            "number has a reciprocal that is finite and not zero."
        )

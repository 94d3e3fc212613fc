"""One overflow may be chance: back off only when overflows are frequent.

A tolerance is asked after each overflow whether the scale shall be lowered; the step is
skipped either way. It counts on the device of the scale, so nothing waits for it.

`InARow(n)`: after n overflows in a row, and at each further one until a clean step.
Megatron's `hysteresis` sounds the same and is not: it counts overflows since the scale
last *grew*, however far apart. With n=2 and overflows at steps 10 and 900, Megatron
backs off at 900; and having run out, it backs off at every single overflow from then
on, until the scale grows. `InARow(2)` does neither.

`Share(bound)`: when overflows make up at least that share of the steps since the last
back-off, as fairseq's `fp16-scale-tolerance` (which counts the steps, but not the
overflows, anew when the scale grows). Share(0.05) bears one overflow in more than
twenty steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from minamp.scaling.settings import ScalerSettingError


class Tolerance(Protocol):
    """What a scaler asks of a tolerance. The counters are int32, of shape (2,)."""

    def backs_off(self, counters: Tensor, found_inf: Tensor) -> Tensor:
        """Count this step in place; then, bool and 0-dim: lower the scale if it was
        an overflow?"""


def new_counters(device: torch.device) -> Tensor:
    return torch.zeros(2, dtype=torch.int32, device=device)


@dataclass(frozen=True)
class InARow:
    """Back off only when this is at least the n-th overflow in a row."""

    overflows: int

    def __post_init__(self) -> None:
        if self.overflows < 1:
            raise ScalerSettingError(
                f"InARow({self.overflows}): the first overflow in a row is number 1. "
                "InARow(1) backs off at every overflow, InARow(2) bears single ones."
            )

    def backs_off(self, counters: Tensor, found_inf: Tensor) -> Tensor:
        counters[0] = (counters[0] + 1) * found_inf
        return counters[0] >= self.overflows


@dataclass(frozen=True)
class Share:
    """Back off when overflows reach this share of the steps since the last back-off."""

    bound: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.bound <= 1.0:
            raise ScalerSettingError(
                f"Share({self.bound}): it is overflowed steps divided by steps, so "
                "between 0 and 1. Share(0.05) bears five in a hundred."
            )

    def backs_off(self, counters: Tensor, found_inf: Tensor) -> Tensor:
        counters[0] += 1
        counters[1] += found_inf
        too_many = counters[1] >= self.bound * counters[0].double()
        counters.masked_fill_(found_inf & too_many, 0)  # the scale falls: count anew
        return too_many

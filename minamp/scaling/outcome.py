"""Was the step taken? What a scaler knows of each optimizer's steps, read lazily.

`step()` returns what the optimizer returns, so everyone compares scales to find out
whether it stepped: wrong when the scale cannot fall any further, and a wait for the
device each time. Here each step leaves its `found_inf` tensor in a log, and only
reading the log looks into the tensors. So asking about fused optimizers, which skip on
the device, is right too, and who does not ask does not wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

OVERFLOW = "a gradient was inf or NaN"
NOT_THE_SCALE = "a gradient was inf or NaN, but not because of the scale"
# Unread answers are packed so many at a time: an unread log stays small.
PACK = 1024


@dataclass(frozen=True)
class Outcome:
    """What became of the last step of an optimizer, and of all its steps.

    `reason` is empty when the step was taken.
    """

    stepped: bool = False
    reason: str = ""
    taken: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0

    def after(self, found_inf: bool, scale_at_fault: bool) -> Outcome:
        """The outcome after one more step."""
        if not found_inf:
            return Outcome(True, "", self.taken + 1, self.skipped, 0)
        reason = OVERFLOW if scale_at_fault else NOT_THE_SCALE
        in_a_row = self.skipped_in_a_row + 1
        return Outcome(False, reason, self.taken, self.skipped + 1, in_a_row)


class OutcomeLog:
    """The outcomes of one optimizer: those already read, and tensors not yet read."""

    def __init__(self, outcome: Outcome | None = None) -> None:
        self._read = outcome or Outcome()
        self._unread: list[Tensor] = []
        self._packed: list[Tensor] = []

    def record(self, found_inf: Tensor, scale_at_fault: Tensor) -> None:
        """Note one step, unread; both are 0-dim tensors of one device."""
        pair = torch.stack([found_inf.bool(), scale_at_fault.bool()])
        self._unread.append(pair)
        if len(self._unread) == PACK:
            self._packed.append(torch.stack(self._unread))
            self._unread = []

    def record_known(self, found_inf: bool, scale_at_fault: bool = True) -> None:
        """Note one step whose answer the host has already waited for."""
        self._read = self.outcome().after(found_inf, scale_at_fault)

    def outcome(self) -> Outcome:
        """Read everything that is new. This is where the host waits for the device."""
        for found_inf, scale_at_fault in self._new_pairs():
            self._read = self._read.after(found_inf, scale_at_fault)
        return self._read

    def _new_pairs(self) -> Iterator[list[bool]]:
        chunks = self._packed + ([torch.stack(self._unread)] if self._unread else [])
        self._packed, self._unread = [], []
        for chunk in chunks:
            yield from chunk.tolist()

"""Was the step taken? What a scaler knows of each optimizer's steps, read lazily.

`step()` returns what the optimizer returns, so everyone compares scales to find out
whether it stepped: wrong when the scale cannot fall any further, and a wait for the
device each time. Here the steps of an optimizer are counted where their outcome is
known. For a fused optimizer, which skips on the device, that is the device: in-place
counters, so that steps replayed in a CUDA graph are counted too. Only who asks waits.
"""

from __future__ import annotations

import weakref
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

OVERFLOW = "a gradient was inf or NaN"
NOT_THE_SCALE = "a gradient was inf or NaN, but not because of the scale"


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
    """The outcome of one optimizer, on the host or in counters on a device.

    The counters are int64: taken, skipped, skipped in a row, was the last step skipped,
    was it the scale's fault.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        is_traced = torch.compiler.is_compiling()  # which cannot make weak references
        self._owner = None if is_traced else weakref.ref(optimizer)
        self._on_host = Outcome()
        self._counters: Tensor | None = None

    def belongs_to(self, optimizer: Optimizer) -> bool:
        """An id may be used again, by another optimizer than was meant."""
        return self._owner is None or self._owner() is optimizer

    def note(self, found_inf: bool, scale_at_fault: bool = True) -> None:
        """One step more, whose outcome the host knows."""
        if self._counters is None:
            self._on_host = self._on_host.after(found_inf, scale_at_fault)
        else:
            device = self._counters.device
            flags = torch.tensor([found_inf, scale_at_fault], device=device)
            self.note_on_device(flags[0], flags[1])

    def note_on_device(self, found_inf: Tensor, scale_at_fault: Tensor) -> None:
        """One step more, whose outcome is in 0-dim tensors of one device, unread."""
        if self._counters is None:
            self._counters = self._new_counters(found_inf.device)
        skipped, one = found_inf.bool().long(), torch.ones_like(self._counters[0])
        none = one - 1
        keep = torch.stack([one, one, skipped, none, none])
        fault = scale_at_fault.long()
        more = torch.stack([one - skipped, skipped, skipped, skipped, fault])
        self._counters.mul_(keep).add_(more)

    def _new_counters(self, device: torch.device) -> Tensor:
        before = self._on_host
        counts = [before.taken, before.skipped, before.skipped_in_a_row, 0, 0]
        return torch.tensor(counts, device=device)

    def outcome(self) -> Outcome:
        """Everything up to now. With counters on a device, this waits for it."""
        if self._counters is None:
            return self._on_host
        taken, skipped, in_a_row, was_skipped, at_fault = self._counters.tolist()
        reason = OVERFLOW if at_fault else NOT_THE_SCALE
        reason = reason if was_skipped else ""
        return Outcome(not was_skipped, reason, taken, skipped, in_a_row)

    def state_dict(self) -> dict[str, Any]:
        """The outcome as a dictionary: the counters go on after a resume."""
        return asdict(self.outcome())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._on_host, self._counters = Outcome(**state_dict), None

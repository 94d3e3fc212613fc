"""What a scaler remembers between two calls of `update()`: one iteration.

The public steps of an iteration may come in any order a script likes; what is allowed
next depends on what has been. The dictionary of an optimizer's state has torch.amp's
two entries, `stage` and `found_inf_per_device`, since trainers read them, and ours.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

OptimizerState = dict[str, Any]


class OptState(Enum):
    """Where an optimizer is in its iteration."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


def fresh_optimizer_state() -> OptimizerState:
    return {"stage": OptState.READY, "found_inf_per_device": {}}


def fresh_states() -> defaultdict[int, OptimizerState]:
    """The states of a new iteration, by the id of the optimizer."""
    return defaultdict(fresh_optimizer_state)


class Iteration:
    """Notes that concern all optimizers of one iteration."""

    def __init__(self, last: Iteration | None = None) -> None:
        self.was_scaled = False  # scale() has been called
        self.backwards = 0  # backward passes of scaled losses that have begun
        self.losses: list[Tensor] = []  # before scaling, detached
        self.stale = False  # the gradients of a skipped step were not zeroed
        self.at_fault: Tensor | None = None  # is the scale? None: not asked yet
        self.found_inf: bool | None = False  # None: only the device knows
        self.stepped: dict[int, weakref.ref[Optimizer]] = {}
        self.skipped: dict[int, weakref.ref[Optimizer]] = {}
        self.stepped_before = last.stepped if last else {}
        # Optimizers whose last step was skipped, and whose gradients nobody has seen
        # finite again since.
        self.unzeroed: dict[int, weakref.ref[Optimizer]] = {}
        if last is not None:
            self.unzeroed = {**last.unzeroed, **last.skipped}

    def close(self) -> Iteration:
        """The iteration that follows."""
        after = Iteration(self)
        self.stepped_before = {}
        return after


def alive(references: list[weakref.ref[Optimizer]]) -> Iterator[Optimizer]:
    """Those that the script still holds; a scaler keeps none of them alive."""
    for reference in references:
        optimizer = reference()
        if optimizer is not None:
            yield optimizer

"""What a scaler notes on the way, so that it can answer for each step.

Which optimizer is at which stage; which steps were taken and which skipped, and why;
what has to be told when the iteration ends. Nothing here decides anything about the
training, and (but for `outcome`, `blame` and a warning that was asked for) nothing
waits for the device.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from minamp.scaling import mistakes, not_the_scale
from minamp.scaling.diagnosis import Blame, Names, blame, report
from minamp.scaling.distributed import agree_on_fault
from minamp.scaling.found_inf import FoundInf, combined
from minamp.scaling.iteration import (
    OptimizerState,
    OptState,
    fresh_optimizer_state,
    fresh_states,
)
from minamp.scaling.no_scaler import NoLossScaler, otherwise
from minamp.scaling.outcome import Outcome, OutcomeLog
from minamp.scaling.persistence import PersistentScaler

UpdateHook = Callable[[Tensor | None], None]


class Bookkeeper(PersistentScaler):
    """A scaler's memory of what was done; DynamicLossScaler adds the doing."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._outcomes: dict[int, OutcomeLog] = {}
        self._update_hooks: list[UpdateHook] = []

    @otherwise(NoLossScaler.outcome)
    def outcome(self, optimizer: Optimizer) -> Outcome:
        """Was the optimizer's last step taken, and how many were? See `outcome.py`.

        Ask after `step`, before or after `update`. Waits for the device only if the
        answer is not known yet.
        """
        return self.outcome_log(optimizer).outcome()

    @otherwise(NoLossScaler.step_scheduler)
    def step_scheduler(self, scheduler: Any, *args: Any) -> None:
        """`scheduler.step(*args)`, but not if its optimizer's last step was skipped.

        A schedule counts steps of the optimizer; and torch warns, wrongly, of the order
        of calls when a scheduler steps and the optimizer's first step was skipped.
        """
        if self.outcome(scheduler.optimizer).stepped:
            scheduler.step(*args)

    def blame(self, optimizer: Optimizer, named: Names | None = None) -> list[Blame]:
        """The parameters whose gradients are inf or NaN now; see `diagnosis.py`."""
        return blame(optimizer, named)

    def register_update_hook(self, hook: UpdateHook) -> None:
        """Call `hook(found_inf)` in each `update()`, before the scale changes.

        `found_inf` is a bool 0-dim tensor, or None if no step was made.
        """
        self._update_hooks.append(hook)

    def outcome_log(self, optimizer: Optimizer) -> OutcomeLog:
        """Where the optimizer's outcomes are counted; has a state_dict of its own.

        (The scaler's state_dict is torch.amp's, which knows no counters.)
        """
        log = self._outcomes.get(id(optimizer))
        if log is None or not log.belongs_to(optimizer):
            log = self._outcomes[id(optimizer)] = OutcomeLog(optimizer)
        return log

    def _notice(self, output: Tensor, scaled: Tensor) -> None:
        """Remember the loss, and be told when the backward pass of it begins."""
        if torch.compiler.is_compiling() or not_the_scale.is_inside_transform(output):
            return
        not_the_scale.note_loss(self._iteration, output)
        if scaled.requires_grad:
            scaled.register_hook(self._backward_begins)

    def _backward_begins(self, grad: Tensor) -> None:
        not_the_scale.look_for_zeroed_gradients(self._iteration)
        mistakes.backward_begins(self._iteration, self._per_optimizer_states)

    def _state_of(self, optimizer: Optimizer) -> OptimizerState:
        # A traced defaultdict may have lost its default (torch 2.6), so not by [].
        states = self._per_optimizer_states
        state = states.setdefault(id(optimizer), fresh_optimizer_state())
        if "optimizer" not in state and not torch.compiler.is_compiling():
            state["optimizer"] = weakref.ref(optimizer)
        return state

    def _ready_to_unscale(self, optimizer: Optimizer) -> OptimizerState:
        """The state of an optimizer whose gradients may be unscaled now, else raise."""
        state = self._state_of(optimizer)
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last "
                "update(). Once an iteration is enough: a second division by the scale "
                "would make the gradients far too small."
            )
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError(
                "unscale_() is being called after step(). Call it before, and update() "
                "at the end of the iteration."
            )
        mistakes.check_no_update_since_backward(self._iteration, optimizer)
        mistakes.check_not_unscaled_by_another(
            self._iteration, self._per_optimizer_states, optimizer
        )
        return state

    def _mark_unscaled(self, state: OptimizerState, found_inf: FoundInf) -> None:
        state["found_inf_per_device"] = found_inf
        state["stage"] = OptState.UNSCALED
        state["backwards"] = self._iteration.backwards

    def _note_on_host(self, optimizer: Optimizer, found_inf: bool) -> None:
        """The host has waited for the answer of this step: it costs nothing to use."""
        log, iteration = self.outcome_log(optimizer), self._iteration
        iteration.stepped[id(optimizer)] = weakref.ref(optimizer)
        if not found_inf:
            iteration.unzeroed.pop(id(optimizer), None)
            log.note(False)
            return
        not_the_scale.note_stale_gradients(iteration, optimizer)
        iteration.skipped[id(optimizer)] = weakref.ref(optimizer)
        if iteration.found_inf is not None:
            iteration.found_inf = True
        at_fault = bool(self._scale_is_at_fault().item())
        log.note(True, at_fault)
        self._speak_of_skip(optimizer, at_fault)

    def _speak_of_skip(self, optimizer: Optimizer, scale_at_fault: bool) -> None:
        if not (scale_at_fault or self._iteration.stale or self._has_warned_of_loss):
            self._has_warned_of_loss = True
            warnings.warn(not_the_scale.NOT_FINITE_BEFORE, RuntimeWarning, stacklevel=5)
        if self.outcome(optimizer).skipped_in_a_row == self._blame_after:
            self._warn_of_blame(optimizer)

    def _warn_of_blame(self, optimizer: Optimizer) -> None:
        warnings.warn(
            f"{self._blame_after} steps in a row were skipped. Gradients that are not "
            f"finite:\n{report(blame(optimizer))}",
            RuntimeWarning,
            stacklevel=5,
        )

    def _note_on_device(self, optimizer: Optimizer, state: OptimizerState) -> Tensor:
        """Only the device knows the answer of this step; returns it, unread."""
        scale, _ = self._check_scale_growth_tracker("step")
        found_inf = combined(state["found_inf_per_device"], scale.device)
        if torch.compiler.is_compiling():
            self.outcome_log(optimizer).note_on_device(found_inf, found_inf)
        elif found_inf.is_cpu:  # where nobody waits
            self._note_on_host(optimizer, bool(found_inf.item()))
        else:
            iteration = self._iteration
            iteration.stepped[id(optimizer)] = weakref.ref(optimizer)
            iteration.found_inf = None
            at_fault = self._scale_is_at_fault()
            self.outcome_log(optimizer).note_on_device(found_inf, at_fault)
        return found_inf

    def _scale_is_at_fault(self) -> Tensor:
        """Could a smaller scale have avoided this overflow? bool, 0-dim, unread."""
        iteration = self._iteration
        if iteration.at_fault is None:
            device = torch.device("cpu") if self._scale is None else self._scale.device
            at_fault = not_the_scale.scale_is_at_fault(iteration, device)
            iteration.at_fault = agree_on_fault(at_fault, self._process_group)
        return iteration.at_fault

    def _end_iteration(self) -> None:
        """Forget the optimizers' states; torch.amp makes a new dictionary, too."""
        for state in self._per_optimizer_states.values():
            mistakes.stop_watching(state)
        self._per_optimizer_states = fresh_states()
        self._iteration = self._iteration.close()

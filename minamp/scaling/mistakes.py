"""Mistakes that elsewhere are silent: they train on gradients of the wrong size.

- A backward pass between `unscale_` and `step` adds scaled to unscaled gradients.
- A parameter in two optimizers is divided by the scale twice.
- `update()` between two optimizers' steps divides the second one's gradients by a scale
  that they were not made with.

The first is found by hooks. They cost nothing in the usual order of calls, where no
backward pass follows `unscale_`: only when one does begin are the parameters watched.

One more cannot be found: clipping scaled gradients to an unscaled norm changes them
just as clipping to `max_norm * scale` does, which is right. `scaler.clip_grad_norm_` is
the clipping that cannot be got wrong.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from minamp.scaling.found_inf import parameters_of
from minamp.scaling.iteration import (
    Iteration,
    OptimizerState,
    OptState,
)

BACKWARD_AFTER_UNSCALE = (
    "A backward pass of a scaled loss added to gradients that unscale_() has already "
    "divided by the scale: their sum has no meaning. Run every backward pass of the "
    "iteration first, then scaler.unscale_(optimizer), then scaler.step(optimizer)."
)
SHARED_PARAMETER = (
    "Two optimizers own the same parameter, and unscale_() has divided its gradient by "
    "the scale already, for the first of them; a second division would make it far too "
    "small. Give each parameter to one optimizer, or run zero_grad() and a backward "
    "pass of its own before the second optimizer's step."
)
UPDATE_BETWEEN_STEPS = (
    "scaler.update() was called between the steps of two optimizers, so the gradients "
    "of this one were made with the scale before it. Step every optimizer first, then "
    "call update() once, at the end of the iteration."
)


def check_is_optimizer(optimizer: object) -> None:
    """Raise TypeError for parameters, which other libraries' clipping takes."""
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"scaler.clip_grad_norm_ got a {type(optimizer).__name__}. It unscales the "
            "gradients too, and that is noted for each optimizer: write "
            "scaler.clip_grad_norm_(optimizer, max_norm), not model.parameters()."
        )


def check_no_update_since_backward(iteration: Iteration, optimizer: Optimizer) -> None:
    """Raise RuntimeError if the gradients are from before the last `update()`.

    That is known when nothing was scaled since, and that iteration stepped other
    optimizers but not this one.
    """
    before = iteration.stepped_before
    if iteration.was_scaled or not before or id(optimizer) in before:
        return
    if any(parameter.grad is not None for parameter in parameters_of(optimizer)):
        raise RuntimeError(UPDATE_BETWEEN_STEPS)


def check_not_unscaled_by_another(
    iteration: Iteration, states: dict[int, OptimizerState], optimizer: Optimizer
) -> None:
    """Raise RuntimeError if another optimizer's `unscale_` was here before.

    If a backward pass has begun since then, the gradients are new ones.
    """
    for state in states.values():
        other = state["optimizer"]() if "optimizer" in state else None
        is_fresh = state.get("backwards") != iteration.backwards
        if other is None or other is optimizer or is_fresh:
            continue
        theirs = {id(p) for p in parameters_of(other) if p.grad is not None}
        if any(id(p) in theirs for p in parameters_of(optimizer)):
            raise RuntimeError(SHARED_PARAMETER)


def backward_begins(iteration: Iteration, states: dict[int, OptimizerState]) -> None:
    """Watch the gradients that are already unscaled; called as a backward pass begins.

    An optimizer without gradients was zeroed: the script abandoned the iteration after
    `unscale_`, and its state is forgotten.
    """
    iteration.backwards += 1
    for key, state in list(states.items()):
        if state["stage"] is OptState.UNSCALED and "optimizer" in state:
            _watch_or_forget(key, state, states)


def _watch_or_forget(
    key: int, state: OptimizerState, states: dict[int, OptimizerState]
) -> None:
    stop_watching(state)
    optimizer = state["optimizer"]()
    parameters = parameters_of(optimizer) if optimizer is not None else []
    if all(parameter.grad is None for parameter in parameters):
        del states[key]
        return
    state["watching"] = [
        parameter.register_post_accumulate_grad_hook(_refuse_accumulation)
        for parameter in parameters
        if parameter.requires_grad
    ]


def _refuse_accumulation(parameter: Tensor) -> None:
    raise RuntimeError(BACKWARD_AFTER_UNSCALE)


def stop_watching(state: dict[str, Any]) -> None:
    """Remove the hooks, once the step is made or the iteration is over."""
    for handle in state.pop("watching", ()):
        handle.remove()

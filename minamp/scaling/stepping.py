"""Two kinds of optimizer that a scaler cannot just run or skip.

*Fused* ones (`_step_supports_amp_scaling`) take the scale and `found_inf` as tensors,
divide by the one while they read the gradients, and do nothing if the other is set: the
host never waits. Those that take a *closure* make their own gradients (`closures.py`).
"""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from minamp.scaling.closures import Closure, OverflowInClosure, step_or_restore
from minamp.scaling.found_inf import any_of
from minamp.scaling.iteration import OptimizerState, OptState

if TYPE_CHECKING:
    from minamp.scaling.scaler import DynamicLossScaler

GRAD_SCALER_ARGUMENT = (
    "GradScaler is going to stop passing itself as a keyword argument to the passed "
    "optimizer. Let the optimizer read the tensors self.grad_scale and self.found_inf, "
    "which the scaler sets before it calls step()."
)


def step_on_device(
    scaler: DynamicLossScaler,
    optimizer: Any,
    state: OptimizerState,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Hand a fused optimizer `grad_scale` and `found_inf`, and run it.

    If the user has set a `grad_scale` of their own, the gradients are divided by both.
    """
    if _wants_the_scaler(type(optimizer)):
        warnings.warn(GRAD_SCALER_ARGUMENT, FutureWarning, stacklevel=4)
        return optimizer.step(*args, **kwargs, grad_scaler=scaler)
    grad_scale = getattr(optimizer, "grad_scale", None)
    if state["stage"] is OptState.READY:
        scaler._check_inf_per_device(optimizer)
        scale, _ = scaler._check_scale_growth_tracker("step")
        grad_scale = scale if grad_scale is None else scale * grad_scale
    found_inf = scaler._note_on_device(optimizer, state)
    # Not `optimizer.grad_scale = ...`, which torch.compile of torch 2.11 cannot trace.
    object.__setattr__(optimizer, "grad_scale", grad_scale)
    object.__setattr__(optimizer, "found_inf", found_inf)
    try:
        return optimizer.step(*args, **kwargs)
    finally:
        del optimizer.grad_scale, optimizer.found_inf


_known_to_want_it: dict[Any, bool] = {}  # `signature` takes as long as a small step


def _wants_the_scaler(kind: Any) -> bool:
    """An older contract: the optimizer's step takes the scaler itself."""
    if kind not in _known_to_want_it:
        parameters = inspect.signature(kind.step).parameters
        _known_to_want_it[kind] = "grad_scaler" in parameters
    return _known_to_want_it[kind]


def step_with_closure(
    scaler: DynamicLossScaler,
    optimizer: Optimizer,
    state: OptimizerState,
    closure: Closure,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run an optimizer whose closure calls `scaler.scale(loss).backward()`.

    A closure that scales nothing is left alone. It should return the loss itself, not
    the scaled one, as a line search compares losses with gradients.
    """

    def unscaled_closure() -> Any:
        state["stage"], scaler._iteration.was_scaled = OptState.READY, False
        loss = closure()
        if scaler._iteration.was_scaled:
            scaler.unscale_(optimizer)
            if any_of(state["found_inf_per_device"]):
                raise OverflowInClosure
        return loss

    if state["stage"] is OptState.READY and scaler._iteration.backwards:
        scaler.unscale_(optimizer)  # SAM begins with the gradients it finds
    found_already = any_of(state["found_inf_per_device"])
    if not found_already:
        result = step_or_restore(optimizer, unscaled_closure, *args, **kwargs)
    skipped = any_of(state["found_inf_per_device"])
    scaler._note_on_host(optimizer, skipped)
    return None if skipped else result

"""DynamicLossScaler: scale the loss, unscale the gradients, skip what overflowed.

    scaler.scale(loss).backward()     gradients come out multiplied by the scale
    scaler.step(optimizer)            unscales, checks, and steps if all are finite
    scaler.update()                   adapts the scale (updating.py)

A drop-in for `torch.amp.GradScaler`: same arguments in the same order, same methods,
same state_dict, same errors. Scale, growth tracker and `found_inf` are tensors on the
device. The host waits once a step, to decide whether the optimizer runs; not even then
with an optimizer that takes `found_inf` and skips on the device ("fused").
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from minamp.scaling import found_inf as grads
from minamp.scaling import mistakes
from minamp.scaling.clipping import clip_and_unscale
from minamp.scaling.closures import take_closure
from minamp.scaling.distributed import agree_on_found_inf, has_shards
from minamp.scaling.found_inf import FoundInf
from minamp.scaling.gradient_penalty import unscaled
from minamp.scaling.iteration import OptimizerState, OptState
from minamp.scaling.no_scaler import NoLossScaler, otherwise
from minamp.scaling.outputs import map_tensors, scaled
from minamp.scaling.stepping import step_on_device, step_with_closure
from minamp.scaling.updating import UpdatingScaler


class DynamicLossScaler(UpdatingScaler):
    """A loss scale that grows while gradients are finite, and backs off when not.

    Args:
        device: type of the device the scale lives on; default: the accelerator if
            there is one, else "cpu". (torch.amp assumes "cuda", and without CUDA it
            switches itself off.)
        init_scale: the first scale.
        growth_factor: what the scale is multiplied by after `growth_interval` clean
            steps in a row; above 1.
        backoff_factor: what it is multiplied by after an overflow; between 0 and 1.
        growth_interval: in steps.
        enabled: with False, every method does what NoLossScaler's does.
        min_scale, at_floor: see `floor.py`.
        max_scale: growth beyond it is not taken.
        tolerance: see `tolerance.py`; default: back off at every overflow.
        blame_after: warn with the parameters to blame at that many skipped steps in a
            row (`diagnosis.py`); default: never.
        process_group: ranks that skip together (`distributed.py`).

    Raises:
        ScalerSettingError: a setting makes no sense.
    """

    @otherwise(NoLossScaler.scale)
    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, or each tensor of a nest of them, by the scale.

        Returns the same nest; a new tensor for each, on its device and in its graph.
        """
        self._iteration.was_scaled = True
        return map_tensors(outputs, self._scale_tensor)

    def _scale_tensor(self, output: Tensor) -> Tensor:
        if self._scale is None:
            self._lazy_init_scale_growth_tracker(output.device)
        scale, _ = self._check_scale_growth_tracker("scale")
        result = scaled(output, scale)
        self._notice(output, result)
        return result

    @otherwise(NoLossScaler.unscale_)
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of the optimizer by the scale, and check them.

        Optional: to inspect or clip true gradients before `step`, which else does it.
        Does not wait for the device.

        Raises:
            RuntimeError: called twice in an iteration, or after `step`.
            ValueError: a gradient is float16.
        """
        scale, _ = self._check_scale_growth_tracker("unscale_")
        state = self._ready_to_unscale(optimizer)
        inv_scale = grads.reciprocal(scale)
        found_by_device = self._unscale_grads_(optimizer, inv_scale, None, False)
        self._mark_unscaled(state, found_by_device)

    def _unscale_grads_(
        self,
        optimizer: Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor | None,
        allow_fp16: bool,
    ) -> FoundInf:
        """Multiply the gradients by `inv_scale`; found_inf of each device with any.

        Trainers override it, for instance to allow fp16 gradients, so it has
        torch.amp's arguments; `found_inf` is not needed here.
        """
        groups = grads.gradients_of(optimizer)
        if not allow_fp16:
            grads.refuse_half_gradients(groups)
        return self._agreed(grads.unscale_and_check(groups, inv_scale), optimizer)

    def _check_inf_per_device(self, optimizer: Optimizer) -> FoundInf:
        """Only look: for optimizers that unscale by themselves."""
        self._check_scale_growth_tracker("_check_inf_per_device")
        found = grads.check(grads.gradients_of(optimizer))
        found = self._agreed(found, optimizer)
        self._state_of(optimizer)["found_inf_per_device"] = found
        return found

    def _found_inf_per_device(self, optimizer: Optimizer) -> FoundInf:
        found_inf: FoundInf = self._state_of(optimizer)["found_inf_per_device"]
        return found_inf

    def _agreed(self, found_inf: FoundInf, optimizer: Optimizer) -> FoundInf:
        device = self._device if self._scale is None else self._scale.device
        return agree_on_found_inf(
            found_inf, optimizer, torch.device(device), self._process_group
        )

    @otherwise(NoLossScaler.clip_grad_norm_)
    def clip_grad_norm_(
        self, optimizer: Optimizer, max_norm: float, norm_type: float = 2.0
    ) -> Tensor:
        """Unscale, check and clip in one reading pass; in place of `unscale_`.

        Returns the norm of the unscaled gradients before clipping, 0-dim. Norms other
        than the 2-norm, gradients already unscaled and DTensors take the usual passes.

        Raises:
            RuntimeError, ValueError: as `unscale_`.
            TypeError: not an optimizer.
        """
        mistakes.check_is_optimizer(optimizer)
        scale, _ = self._check_scale_growth_tracker("clip_grad_norm_")
        is_unscaled = self._state_of(optimizer)["stage"] is OptState.UNSCALED
        if norm_type != 2.0 or is_unscaled or has_shards(optimizer):
            if not is_unscaled:
                self.unscale_(optimizer)
            parameters = grads.parameters_of(optimizer)
            return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
        state = self._ready_to_unscale(optimizer)
        groups = grads.gradients_of(optimizer)
        grads.refuse_half_gradients(groups)
        inv_scale = grads.reciprocal(scale)
        norm, found_by_device = clip_and_unscale(groups, inv_scale, max_norm)
        self._mark_unscaled(state, self._agreed(found_by_device, optimizer))
        return norm

    @otherwise(NoLossScaler.grad)
    def grad(self, outputs: Any, inputs: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """`torch.autograd.grad` under scaling; see `gradient_penalty.py`."""
        scaled_grads = torch.autograd.grad(self.scale(outputs), inputs, **kwargs)
        scale, _ = self._check_scale_growth_tracker("grad")
        return unscaled(scaled_grads, scale)

    @otherwise(NoLossScaler.step)
    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale unless that was done, and run the optimizer if all is finite.

        Returns what `optimizer.step(*args, **kwargs)` returns, None if skipped. A
        closure is welcome, by keyword or not (`closures.py`).

        Raises:
            RuntimeError: called twice in an iteration; or a mistake of `mistakes.py`.
            ValueError: a gradient is float16.
        """
        state = self._state_of(optimizer)
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError(
                "step() has already been called since the last update(). Call "
                "scaler.update() at the end of each iteration."
            )
        mistakes.check_no_update_since_backward(self._iteration, optimizer)
        mistakes.stop_watching(state)
        closure, args, kwargs = take_closure(args, kwargs)
        if closure is not None:
            result = step_with_closure(self, optimizer, state, closure, *args, **kwargs)
            state["stage"] = OptState.STEPPED
            return result
        self._check_scale_growth_tracker("step")
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            result = step_on_device(self, optimizer, state, *args, **kwargs)
        else:
            if state["stage"] is OptState.READY:
                self.unscale_(optimizer)
            result = self._maybe_opt_step(optimizer, state, *args, **kwargs)
        state["stage"] = OptState.STEPPED
        return result

    def _maybe_opt_step(
        self, optimizer: Optimizer, state: OptimizerState, *args: Any, **kwargs: Any
    ) -> Any:
        # The one place where the host waits.
        found_inf = grads.any_of(state["found_inf_per_device"])
        self._note_on_host(optimizer, found_inf)
        return None if found_inf else optimizer.step(*args, **kwargs)

"""The end of an iteration: adapt the scale to what was found, and begin the next one.

The rule is `scale_rule.py`, done on the device by `device_rule.py`. Around it stand the
cases in which the rule is not asked: the scale is not to blame (`not_the_scale.py`),
one overflow is borne (`tolerance.py`), the script abandoned the iteration, or it sets
the scale by hand; and what is said when the scale cannot fall any further (`floor.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from minamp.scaling import floor
from minamp.scaling.bookkeeping import Bookkeeper
from minamp.scaling.device_rule import update_scale_
from minamp.scaling.diagnosis import blame, report
from minamp.scaling.distributed import agree_on_scale
from minamp.scaling.iteration import alive
from minamp.scaling.no_scaler import NoLossScaler, otherwise
from minamp.scaling.scale_rule import next_state
from minamp.scaling.settings import check_scale

NEW_SCALE = (
    "new_scale should be a float or a 1-element torch.cuda.FloatTensor or "
    "torch.FloatTensor with requires_grad=False, on the type of device that the scaler "
    "was made for."
)


class UpdatingScaler(Bookkeeper):
    """A scaler's `update()`."""

    @otherwise(NoLossScaler.update)
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """End the iteration: back off if a step overflowed, grow if it is time.

        Without a step since the last update nothing changes: the script has abandoned
        the iteration.

        Args:
            new_scale: set the scale to this instead; a number, or a tensor of one
                element, which is copied.

        Raises:
            AssertionError, ScalerSettingError: a `new_scale` that makes no sense.
            FloatingPointError: an overflow at the floor, if `at_floor="raise"`.
        """
        found_inf = self._found_inf_of_all()
        for hook in self._update_hooks:
            hook(found_inf)
        blamed = self._blame_at_floor(found_inf)
        if new_scale is not None:
            self._set_scale(new_scale)
        elif found_inf is not None:
            self._adapt_scale(found_inf)
        self._end_iteration()
        if blamed is not None:
            floor.speak(self._at_floor, self._min_scale, blamed)

    def _found_inf_of_all(self) -> Tensor | None:
        """Did a step of any optimizer overflow? bool, 0-dim; None if none was made."""
        flags = [
            flag
            for state in self._per_optimizer_states.values()
            for flag in state["found_inf_per_device"].values()
        ]
        if self._scale is None or not flags:
            return None
        device = self._scale.device
        flags = [flag.to(device, non_blocking=True) for flag in flags]
        return (flags[0] if len(flags) == 1 else torch.stack(flags).amax(0)).bool()

    def _adapt_scale(self, found_inf: Tensor) -> None:
        scale, growth_tracker = self._check_scale_growth_tracker("update")
        back_off = self._backs_off(found_inf)
        if scale.is_cpu and not torch.compiler.is_compiling():
            # Nobody waits for the CPU: the rule itself can be asked.
            state = self._rule(scale.item(), int(growth_tracker.item()))
            state = next_state(state, bool(found_inf), bool(back_off))
            scale.fill_(state.scale)
            growth_tracker.fill_(state.growth_tracker)
        else:
            update_scale_(scale, growth_tracker, found_inf, back_off, self._settings())

    def _backs_off(self, found_inf: Tensor) -> Tensor:
        """Shall the scale be lowered if this was an overflow? bool, 0-dim."""
        back_off = found_inf
        if self._iteration.found_inf is not False:  # else known to be no overflow
            back_off = self._scale_is_at_fault()
        if self._tolerance is not None and self._tolerance_counters is not None:
            counters = self._tolerance_counters
            back_off = back_off & self._tolerance.backs_off(counters, found_inf)
        return back_off

    def _set_scale(self, new_scale: float | Tensor) -> None:
        if isinstance(new_scale, Tensor):
            is_number = new_scale.numel() == 1 and not new_scale.requires_grad
            if new_scale.device.type != self._device or not is_number:
                raise AssertionError(NEW_SCALE)
        if not isinstance(new_scale, Tensor) or new_scale.is_cpu:
            check_scale(float(new_scale))
        if self._scale is None:
            self._init_scale = float(new_scale)
        elif isinstance(new_scale, Tensor):
            self._scale.copy_(new_scale.reshape(()))
        else:
            self._scale.fill_(new_scale)

    def _blame_at_floor(self, found_inf: Tensor | None) -> str | None:
        """Who is to blame, if this is an overflow at the floor and that shall be said.

        Asking waits for the device; the policy "hold" does not ask.
        """
        if self._at_floor == "hold" or found_inf is None:
            return None
        if self._at_floor != "raise" and self._has_warned_at_floor:
            return None
        if not found_inf.item() or self.get_scale() > self._min_scale:
            return None
        self._has_warned_at_floor = True
        optimizers = alive(list(self._iteration.stepped.values()))
        return "\n".join(report(blame(optimizer)) for optimizer in optimizers)

    def agree_on_scale(self) -> None:
        """Give every rank of the process group the smallest of their scales.

        Without a `process_group`, the default group's ranks. See `distributed.py`.
        """
        scale, growth_tracker = self._check_scale_growth_tracker("agree_on_scale")
        agree_on_scale(scale, growth_tracker, self._process_group)

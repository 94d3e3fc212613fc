"""What a scaler keeps from step to step: scale, growth tracker, settings.

The two numbers that change are 0-dim tensors, made on the device of the first loss, and
None until then. `get_scale()` and `state_dict()` read them, which waits for the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minamp.scaling import settings
from minamp.scaling.floor import AtFloor, check_policy, floor_of
from minamp.scaling.iteration import Iteration, OptimizerState, fresh_states
from minamp.scaling.no_scaler import NoLossScaler, otherwise
from minamp.scaling.scale_rule import LARGEST_SCALE, SMALLEST_SCALE, ScaleState
from minamp.scaling.tolerance import Tolerance, new_counters


class ScaleKeeper:
    """The state of a DynamicLossScaler; its arguments are explained there."""

    def __init__(
        self,
        device: str | torch.device | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        min_scale: float = SMALLEST_SCALE,
        max_scale: float = LARGEST_SCALE,
        at_floor: AtFloor = "hold",
        tolerance: Tolerance | None = None,
        blame_after: int | None = None,
        process_group: Any = None,
    ) -> None:
        kind = device if device is not None else settings.default_device_type()
        self._device = torch.device(kind).type
        self._enabled = enabled
        self._init_scale = init_scale
        self._init_growth_tracker = 0
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._at_floor = at_floor
        self._min_scale, self._max_scale = min_scale, max_scale
        self._has_warned_at_floor = False
        self._has_warned_of_loss = False
        self._tolerance = tolerance
        self._blame_after = blame_after
        self._process_group = process_group
        self._begin_anew()
        self._was_loaded = False
        if enabled:
            check_policy(at_floor)
            settings.check_bounds(min_scale, max_scale)
            settings.check_new_scaler(self._settings())

    def _begin_anew(self) -> None:
        """Everything that is not saved: tensors, and notes about this iteration."""
        self._scale: Tensor | None = None
        self._growth_tracker: Tensor | None = None
        self._tolerance_counters: Tensor | None = None
        self._per_optimizer_states: dict[int, OptimizerState] = fresh_states()
        self._iteration = Iteration()

    def _settings(self) -> ScaleState:
        """The settings, with the scale that a scaler not yet used starts from."""
        return self._rule(self._init_scale, self._init_growth_tracker)

    def _rule(self, scale: float, growth_tracker: int) -> ScaleState:
        return ScaleState(
            scale,
            growth_tracker,
            self._growth_factor,
            self._backoff_factor,
            self._growth_interval,
            floor_of(self._min_scale, self._at_floor),
            self._max_scale,
        )

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        scale, tracker = self._init_scale, self._init_growth_tracker
        self._scale = torch.full((), scale, dtype=torch.float32, device=dev)
        self._growth_tracker = torch.full((), tracker, dtype=torch.int32, device=dev)
        if self._tolerance is not None:
            counters = self._tolerance_counters  # there is one if it was loaded
            counters = new_counters(dev) if counters is None else counters.to(dev)
            self._tolerance_counters = counters

    def _check_scale_growth_tracker(self, funcname: str) -> tuple[Tensor, Tensor]:
        """Scale and growth tracker, made now if the state came from a checkpoint.

        Raises:
            AssertionError: nothing was ever scaled, so the gradients cannot be scaled.
        """
        if self._scale is None and self._was_loaded:
            self._lazy_init_scale_growth_tracker(torch.device(self._device))
        if self._scale is None or self._growth_tracker is None:
            raise AssertionError(
                f"Attempted {funcname} but _scale is None.  This may indicate your "
                "script did not use scaler.scale(loss or outputs) earlier in the "
                "iteration: write scaler.scale(loss).backward(), not loss.backward()."
            )
        return self._scale, self._growth_tracker

    def _get_scale_async(self) -> Tensor | None:
        return self._scale

    @otherwise(NoLossScaler.get_scale)
    def get_scale(self) -> float:
        """The current scale; 1.0 if scaling is disabled. Waits for the device."""
        return self._init_scale if self._scale is None else float(self._scale.item())

    @otherwise(NoLossScaler._get_growth_tracker)
    def _get_growth_tracker(self) -> int:
        if self._growth_tracker is None:
            return self._init_growth_tracker
        return int(self._growth_tracker.item())

    def get_growth_factor(self) -> float:
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """At least 1.0; exactly 1.0 freezes growth."""
        self._change_setting("_growth_factor", new_factor)

    def get_backoff_factor(self) -> float:
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Above 0.0 and at most 1.0; exactly 1.0 freezes back-off."""
        self._change_setting("_backoff_factor", new_factor)

    def get_growth_interval(self) -> int:
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """In steps, at least 1."""
        self._change_setting("_growth_interval", new_interval)

    def _change_setting(self, name: str, value: Any) -> None:
        before = getattr(self, name)
        setattr(self, name, value)
        try:
            settings.check_state(self._settings())
        except settings.ScalerSettingError:
            setattr(self, name, before)
            raise

    def is_enabled(self) -> bool:
        return self._enabled

"""Save and load a scaler: its state_dict, which is torch.amp.GradScaler's.

The same five entries, so a checkpoint of either loads into the other. A tolerance that
counts adds a sixth, which torch ignores.
"""

from __future__ import annotations

from typing import Any

import torch

from minamp.scaling.no_scaler import NoLossScaler, otherwise
from minamp.scaling.scale_keeper import ScaleKeeper
from minamp.scaling.scale_rule import ScaleState
from minamp.scaling.settings import check_state

ENTRIES = (
    "scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "_growth_tracker",
)

# What belongs to this process or to an iteration; `_begin_anew` makes it again.
NOT_SAVED = (
    "_scale",
    "_growth_tracker",
    "_tolerance_counters",
    "_per_optimizer_states",
    "_iteration",
    "_outcomes",
    "_update_hooks",
)


class PersistentScaler(ScaleKeeper):
    """A ScaleKeeper that can be saved, loaded, pickled and copied."""

    @otherwise(NoLossScaler.state_dict)
    def state_dict(self) -> dict[str, Any]:
        """Scale, settings and growth tracker as Python numbers; {} if disabled.

        Call it after `update()`. Waits for the device.
        """
        state: dict[str, Any] = {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }
        if self._tolerance_counters is not None:
            state["tolerance_counters"] = self._tolerance_counters.tolist()
        return state

    @otherwise(NoLossScaler.load_state_dict)
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state of this class or of torch.amp.GradScaler.

        Raises:
            RuntimeError: the dictionary is empty.
            KeyError: an entry is missing.
            ScalerSettingError: a number in it makes no sense. Nothing is changed then.
        """
        _check_entries(state_dict)
        self._init_scale = state_dict["scale"]
        self._init_growth_tracker = state_dict["_growth_tracker"]
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._was_loaded = True
        if self._scale is not None and self._growth_tracker is not None:
            self._scale.fill_(self._init_scale)
            self._growth_tracker.fill_(self._init_growth_tracker)
        if "tolerance_counters" in state_dict:
            counters = torch.tensor(state_dict["tolerance_counters"], dtype=torch.int32)
            where = "cpu" if self._scale is None else self._scale.device
            self._tolerance_counters = counters.to(where)

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and deepcopy take: no tensors, so it loads on any machine.

        Raises:
            AssertionError: in the middle of an iteration.
        """
        if self._per_optimizer_states:
            raise AssertionError(
                "A GradScaler instance may only be pickled at the beginning of an "
                "iteration, or at the end after scaler.update(): in between it refers "
                "to gradients and optimizers, which it cannot take along."
            )
        state = {k: v for k, v in self.__dict__.items() if k not in NOT_SAVED}
        counters = self._tolerance_counters
        state["_saved_counters"] = None if counters is None else counters.tolist()
        state["_was_loaded"] = self._was_loaded or self._scale is not None
        if self._enabled:
            state["_init_scale"] = self.get_scale()
            state["_init_growth_tracker"] = self._get_growth_tracker()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        counters = state.pop("_saved_counters", None)
        self.__dict__.update(state)
        self._begin_anew()
        if counters is not None:
            self._tolerance_counters = torch.tensor(counters, dtype=torch.int32)


def _check_entries(state_dict: dict[str, Any]) -> None:
    if not state_dict:
        raise RuntimeError(
            "The source state dict is empty, possibly because it was saved from a "
            "disabled instance of GradScaler. Load it only if scaling was enabled then."
        )
    missing = [entry for entry in ENTRIES if entry not in state_dict]
    if missing:
        raise KeyError(
            f"This is not the state of a loss scaler: it has no {', '.join(missing)}. "
            f"It has {', '.join(map(str, state_dict))}. Did you pass the checkpoint "
            "instead of its entry for the scaler?"
        )
    check_state(
        ScaleState(
            scale=state_dict["scale"],
            growth_factor=state_dict["growth_factor"],
            backoff_factor=state_dict["backoff_factor"],
            growth_interval=state_dict["growth_interval"],
        )
    )

"""What autocast is asked to do in a thread, as one immutable value.

``AutocastState`` holds a setting for each device type that a region has named, and the
cache switch.  Entering a region makes a new state from the old one, leaving puts the
old one back: nothing is undone piece by piece, so nothing can be left half undone.
This file knows nothing of the dispatcher; ``dispatch_key.py`` makes a state act.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from minamp.autocasting.weight_cache import WeightCache
from minamp.policy.op_lists import OpLists
from minamp.policy.policies import POLICIES, Policy
from minamp.tensors.casting import is_castable, lives_on

# Where tensors of two device types meet in one call, the device asks first that stands
# further left: the order of PyTorch's own autocast keys in the dispatcher.
PRIORITY = ("cuda", "mps", "xpu", "mtia", "cpu")


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the innermost region says about one device type."""

    device_type: str
    dtype: torch.dtype
    enabled: bool
    op_lists: OpLists


class Rules:
    """An enabled setting, ready to be applied to a call: the policies' ``Target``."""

    def __init__(self, setting: Setting, cache: WeightCache | None) -> None:
        self.device_type = setting.device_type
        self.dtype = setting.dtype
        self.lives_here = lives_on(setting.device_type)
        self.policies: dict[str, Policy] = {
            row.op: POLICIES[row.category]
            for row in setting.op_lists.for_device(setting.device_type).values()
        }
        self._cache = cache

    def is_eligible(self, value: object) -> bool:
        """Whether ``value`` is a tensor that this region may cast."""
        return (
            isinstance(value, torch.Tensor)
            and is_castable(value.dtype)
            and self.lives_here(value)
        )

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``tensor`` in ``dtype`` if it is eligible; a weight comes from the cache."""
        has = tensor.dtype
        if has is dtype or not self.lives_here(tensor) or not is_castable(has):
            return tensor
        if self._cache is not None and has is torch.float32 and tensor.requires_grad:
            return self._cache.cast(tensor, dtype)
        return tensor.to(dtype)

    def concerns(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether any tensor of the call lives on this region's device type."""
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, torch.Tensor) and self.lives_here(item):
                    return True
        return False


def _rank(device_type: str) -> int:
    return PRIORITY.index(device_type) if device_type in PRIORITY else len(PRIORITY)


@dataclasses.dataclass(frozen=True)
class AutocastState:
    """The settings in force, by device type, and whether weights are cached."""

    settings: Mapping[str, Setting] = dataclasses.field(default_factory=dict)
    cache_enabled: bool = True

    def entering(self, setting: Setting, cache_enabled: bool) -> AutocastState:
        """The state inside a region with ``setting``, entered from this state."""
        settings = {**self.settings, setting.device_type: setting}
        return AutocastState(MappingProxyType(settings), cache_enabled)

    def without(self, device_type: str) -> AutocastState:
        """This state with the region of ``device_type`` switched off."""
        settings = {d: s for d, s in self.settings.items() if d != device_type}
        return AutocastState(MappingProxyType(settings), self.cache_enabled)

    @functools.cached_property
    def enabled(self) -> tuple[Setting, ...]:
        """The enabled settings, in the order in which they are asked."""
        on = [s for s in self.settings.values() if s.enabled]
        return tuple(sorted(on, key=lambda s: _rank(s.device_type)))

    @functools.cached_property
    def signature(self) -> str:
        """All that decides a dtype, as text: what a compiled graph depends on."""
        parts = [
            f"{s.device_type}:{str(s.dtype).removeprefix('torch.')}"
            f":{s.op_lists.fingerprint}"
            for s in self.enabled
        ]
        return " ".join(parts)

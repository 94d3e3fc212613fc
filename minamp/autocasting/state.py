"""What autocast is asked to do in a thread, as one immutable value.

``AutocastState`` holds a setting for each device type that a region has named, and the
cache switch.  Entering a region makes a new state from the old one, leaving puts the
old one back: nothing is undone piece by piece, so nothing can be left half undone.
This file knows nothing of the dispatcher; ``dispatch_key.py`` makes a state act.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from minamp.autocasting.weight_cache import WeightCache
from minamp.policy.op_lists import OpLists
from minamp.policy.policies import POLICIES, Cast, Policy
from minamp.tensors.casting import conversion, is_castable, lives_on

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
        self.to_lower = self.caster(setting.dtype)
        self.to_fp32 = self.caster(torch.float32)

    def is_eligible(self, value: object) -> bool:
        """Whether ``value`` is a tensor that this region may cast."""
        return (
            isinstance(value, torch.Tensor)
            and is_castable(value.dtype)
            and self.lives_here(value)
        )

    def caster(self, dtype: torch.dtype) -> Cast:
        """A function that casts eligible tensors to ``dtype``, alone or in a list."""
        return make_caster(dtype, self.lives_here, self._cache)

    def concerns(self, values: Iterable[Any]) -> bool:
        """Whether any tensor among ``values`` lives on this region's device type."""
        for value in values:
            if isinstance(value, torch.Tensor):
                if self.lives_here(value):
                    return True
            elif isinstance(value, (list, tuple)) and self.concerns(value):
                return True
        return False


def make_caster(
    dtype: torch.dtype,
    lives_here: Callable[[torch.Tensor], bool],
    cache: WeightCache | None,
) -> Cast:
    """A function that casts eligible tensors to ``dtype``, alone or in a list.

    A closure and no method, since it runs for every argument of every listed op.
    """
    convert = conversion(dtype)
    weight_cast = cache.cast if cache is not None else None
    float32, Tensor = torch.float32, torch.Tensor

    def cast(value: Any) -> Any:
        if not isinstance(value, Tensor):
            if isinstance(value, (list, tuple)):
                return [cast(item) for item in value]
            return value
        has = value.dtype
        if has is dtype or not lives_here(value):
            return value
        if has is float32:
            if weight_cast is not None and value.requires_grad:
                return weight_cast(value, dtype)
            return convert(value)
        return convert(value) if is_castable(has) else value

    return cast


def _rank(device_type: str) -> int:
    return PRIORITY.index(device_type) if device_type in PRIORITY else len(PRIORITY)


@dataclasses.dataclass(frozen=True, eq=False)
class AutocastState:
    """The settings in force, by device type, and whether weights are cached.

    A training loop enters the same region in every step, so states are remembered by
    the state and the region that they came from.
    """

    settings: Mapping[str, Setting] = dataclasses.field(default_factory=dict)
    cache_enabled: bool = True

    @functools.lru_cache(maxsize=256)  # noqa: B019  (bounded, and states are small)
    def entering(self, setting: Setting, cache_enabled: bool) -> AutocastState:
        """The state inside a region with ``setting``, entered from this state."""
        settings = {**self.settings, setting.device_type: setting}
        return AutocastState(MappingProxyType(settings), cache_enabled)

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

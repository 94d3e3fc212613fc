"""Recipes: the usual combinations of precisions, by name.

Mixed precision is put together from three parts, and a recipe says of each whether it
is there. That is all it says, so it fits in a row:

    recipe           listed ops run in   the model's weights are   the loss is scaled
    fp32             float32             float32                   no
    fp16_autocast    float16             float32                   yes
    bf16_autocast    bfloat16            float32                   no
    fp16_masters     float16             float16, and masters      yes
    bf16_masters     bfloat16            bfloat16, and masters     no

Two rules stand behind the rows. Small gradients are in danger in float16 only, since
bfloat16 reaches as far down as float32: so float16 scales the loss and bfloat16 does
not. Small *updates* are in danger in both, since both have few digits: so the optimizer
always steps on float32, be it the weights themselves or the masters of half weights.

A part that is not there is a value too (a disabled region, a scaler that does nothing),
so `train_step` has no `if` for it.

The three parts are those of Micikevicius et al., "Mixed Precision Training" (2018);
that bfloat16 needs no scaling is shown in Kalamkar et al., "A Study of BFLOAT16 for
Deep Learning Training" (2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from minamp.autocasting.region import autocast
from minamp.scaling.no_scaler import NoLossScaler
from minamp.scaling.scaler import DynamicLossScaler
from minamp.weights.master_weights import MasterWeights


@dataclass(frozen=True)
class Parts:
    """What a recipe is made of, for one model and one optimizer."""

    model: nn.Module
    optimizer: Optimizer
    region: autocast
    scaler: DynamicLossScaler | NoLossScaler
    masters: MasterWeights | None


@dataclass(frozen=True)
class Recipe:
    """A combination of precisions; `parts` turns it into the parts themselves."""

    name: str
    compute: torch.dtype
    weights: torch.dtype
    scaled: bool

    def parts(self, model: nn.Module, optimizer: Optimizer, **scaling: Any) -> Parts:
        """The region, the scaler and the masters for `model` and `optimizer`.

        A recipe with masters turns the weights of `model` into half ones here, and puts
        float32 masters into `optimizer` in their place. `scaling` goes to the loss
        scaler (`init_scale`, `growth_interval` ...); a recipe without one ignores it.
        """
        device_type = next(model.parameters()).device.type
        region = autocast(device_type, enabled=False)
        scaler: DynamicLossScaler | NoLossScaler = NoLossScaler()
        masters = None
        if self.compute is not torch.float32:
            region = autocast(device_type, self.compute)
        if self.scaled:
            scaler = DynamicLossScaler(device_type, **scaling)
        if self.weights is not torch.float32:
            masters = MasterWeights(model, optimizer, self.weights)
        return Parts(model, optimizer, region, scaler, masters)


_fp32, _fp16, _bf16 = torch.float32, torch.float16, torch.bfloat16

RECIPES = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe("fp32", compute=_fp32, weights=_fp32, scaled=False),
            Recipe("fp16_autocast", compute=_fp16, weights=_fp32, scaled=True),
            Recipe("bf16_autocast", compute=_bf16, weights=_fp32, scaled=False),
            Recipe("fp16_masters", compute=_fp16, weights=_fp16, scaled=True),
            Recipe("bf16_masters", compute=_bf16, weights=_bf16, scaled=False),
        )
    }
)

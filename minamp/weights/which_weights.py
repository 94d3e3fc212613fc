"""Which float32 weights of a model become half: all, but for those of norm layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

# Norm weights start at 1 and move by little, norm statistics are sums over many
# elements, and both are a thousandth of a model: rounding them saves nothing.
NORM_LAYERS: tuple[type[nn.Module], ...] = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


def weights_to_halve(
    model: nn.Module, kept: tuple[type[nn.Module], ...]
) -> set[nn.Parameter]:
    """The float32 weights of ``model`` that no module of the ``kept`` kinds uses."""
    layers = float32_layers(model, kept)
    return set(_float32_weights([model])) - set(_float32_weights(layers))


def float32_layers(
    module: nn.Module, kinds: tuple[type[nn.Module], ...]
) -> list[nn.Module]:
    """The outermost modules of these kinds in ``module`` that have float32 weights."""
    if isinstance(module, kinds):
        return [module] if [*_float32_weights([module])] else []
    return [
        layer for child in module.children() for layer in float32_layers(child, kinds)
    ]


def _float32_weights(modules: Iterable[nn.Module]) -> Iterator[nn.Parameter]:
    for module in modules:
        for weight in module.parameters():
            if weight.dtype == torch.float32:
                yield weight

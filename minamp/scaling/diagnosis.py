"""Who was to blame? The parameters whose gradients were not finite, and how badly.

The check of a step gives one bit for all gradients, because one bit is cheap. When it
says no, the gradients are still there: only then is each of them looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from minamp.tensors.gradients import values_of


@dataclass(frozen=True)
class Blame:
    """One parameter with a gradient that is not finite.

    `largest_finite` is the largest magnitude among its finite elements, 0.0 if it has
    none: near the format's largest number it speaks of overflow, far below it of NaN
    that came from elsewhere.
    """

    name: str
    infs: int
    nans: int
    elements: int
    largest_finite: float

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.infs} inf and {self.nans} NaN of {self.elements} "
            f"elements, largest finite magnitude {self.largest_finite:.3g}"
        )


def blame(optimizer: Optimizer, named: Names | None = None) -> list[Blame]:
    """Every parameter of the optimizer whose gradient has an inf or NaN.

    Call it after the step that was skipped and before `zero_grad()`. Gradients that
    were unscaled show unscaled magnitudes.

    Args:
        named: `model.named_parameters()`, to call the parameters by their names.
        Without
            it they are "group 0, parameter 3", in the optimizer's order (or the names
            the optimizer was itself given, torch 2.6 and later).
    """
    names = {id(parameter): name for name, parameter in named or ()}
    found = []
    for default_name, parameter in _with_default_names(optimizer):
        if parameter.grad is not None:
            name = names.get(id(parameter), default_name)
            found.append(_examine(name, values_of(parameter.grad.detach())))
    return [entry for entry in found if entry.infs or entry.nans]


Names = Iterable[tuple[str, Tensor]]


def report(entries: list[Blame], most: int = 8) -> str:
    """The entries as lines of text, the first `most` of them."""
    if not entries:
        return "every gradient is finite"
    lines = [str(entry) for entry in entries[:most]]
    if len(entries) > most:
        lines.append(f"and {len(entries) - most} more parameters")
    return "\n".join(lines)


def _with_default_names(optimizer: Optimizer) -> Iterable[tuple[str, Tensor]]:
    for number, group in enumerate(optimizer.param_groups):
        given = group.get("param_names")
        for place, parameter in enumerate(group["params"]):
            default = f"group {number}, parameter {place}"
            yield (given[place] if given else default), parameter


def _examine(name: str, values: Tensor) -> Blame:
    magnitudes = values.abs()
    finite = magnitudes.isfinite()
    largest = torch.where(finite, magnitudes, 0).max() if values.numel() else 0.0
    return Blame(
        name=name,
        infs=int(values.isinf().sum()),
        nans=int(values.isnan().sum()),
        elements=values.numel(),
        largest_finite=float(largest),
    )

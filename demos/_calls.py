"""What one call costs in a region: a small `linear` (listed), and `relu` (on no list).

A region sends each listed op through a kernel of autocast, which looks at its arguments
and calls the op again.  torch's kernel is C++, ours is Python; here is the price of it.
An op on no list falls through, and should cost what it costs outside.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn

import _common as common
import minamp

CALLS = 200  # timed at once, since a single call is too short for the clock

Call = Callable[[], Tensor]
Region = AbstractContextManager[Any]


@dataclass(frozen=True)
class Cost:
    """Microseconds a call in each place: medians over the batches of calls."""

    name: str
    plain: float
    torch_amp: float
    minamp: float
    to_plain: float  # minamp's time by that of the plain call: median over the batches
    to_torch: float  # minamp's time by torch.amp's, likewise


def call_costs(device: torch.device, dtype: torch.dtype, batches: int) -> list[Cost]:
    """The inputs are in `dtype`, as they are between two layers of a model."""
    layer = nn.Linear(64, 64).to(device)
    # Outside a region the weights must be in half already.
    half = nn.Linear(64, 64).to(device, dtype)
    x = torch.randn(8, 64, device=device, dtype=dtype)

    def linear() -> Tensor:
        return F.linear(x, layer.weight, layer.bias)

    def plain_linear() -> Tensor:
        return F.linear(x, half.weight, half.bias)

    def relu() -> Tensor:
        return torch.relu(x)

    return [
        _cost("linear, 8x64 by 64x64", plain_linear, linear, device, dtype, batches),
        _cost("relu, 8x64", relu, relu, device, dtype, batches),
    ]


def _cost(
    name: str,
    plain: Call,
    call: Call,
    device: torch.device,
    dtype: torch.dtype,
    batches: int,
) -> Cost:
    places: list[tuple[Region, Call]] = [
        (nullcontext(), plain),
        (torch.autocast(device.type, dtype=dtype), call),
        (minamp.autocast(device.type, dtype=dtype), call),
    ]
    times = [[_seconds(*place, device) for place in places] for _ in range(batches)]
    medians = [1e6 * median(column) / CALLS for column in zip(*times, strict=True)]
    to_plain = median(ours / plain for plain, _, ours in times)
    to_torch = median(ours / theirs for _, theirs, ours in times)
    return Cost(name, *medians, to_plain, to_torch)


def _seconds(region: Region, call: Call, device: torch.device) -> float:
    """`CALLS` calls in one region; the first, which fills caches, is not timed."""
    with region:
        call()
        started = common.now(device)
        for _ in range(CALLS):
            call()
        return common.now(device) - started


def as_table(costs: list[Cost]) -> Table:
    made = common.table(
        "one call, microseconds",
        *("", "plain half", "torch.amp", "minamp", "to plain", "to torch.amp"),
    )
    for cost in costs:
        made.add_row(
            cost.name,
            *(f"{us:.2f}" for us in (cost.plain, cost.torch_amp, cost.minamp)),
            *(f"{ratio:.2f}" for ratio in (cost.to_plain, cost.to_torch)),
        )
    return made

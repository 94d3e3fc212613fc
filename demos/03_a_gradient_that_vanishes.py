"""How many gradients does fp16 lose, and how does multiplying the loss save them?

fp16 ends at 6e-8: what is below half of that becomes 0.  Backward is linear, so a loss
that is multiplied by S gives every gradient multiplied by S; divide in float32, and
they are there again.  First one gradient, then all of a small conv net's on real
digits, by power of two: figure 3 of "Mixed Precision Training" (Micikevicius 2018).

    python demos/03_a_gradient_that_vanishes.py            after 300 steps of training
    python demos/03_a_gradient_that_vanishes.py --quick    after 60
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn

import _common as common
import _lesson
import minamp
from _data import Digits, seeded
from _lesson import SCALE
from _models import conv_net
from minamp.tensors.histogram import (
    ExponentHistogram,
    exponent_histogram,
    share_lost_to_zero,
)

POWER = 16  # SCALE is 2^16


def one_gradient(device: torch.device, by: str, scaled: bool) -> float:
    """d(1e-8 * w)/dw, with w and the product in fp16: by hand, minamp or torch.amp."""
    weight = torch.ones(1, 1, device=device, requires_grad=True)
    x = torch.ones(1, 1, device=device)
    if by == "by hand":
        product = (x.half() @ weight.half()).float()
        loss = 1e-8 * product.sum()
        (loss * SCALE if scaled else loss).backward()
        return (weight.grad / SCALE if scaled else weight.grad).item()
    amp = torch.amp if by == "torch.amp" else minamp
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = amp.GradScaler(device.type, init_scale=SCALE, enabled=scaled)
    with amp.autocast(device.type, torch.float16):
        loss = 1e-8 * (x @ weight).float().sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    return weight.grad.item()


def train(model: nn.Module, data: Digits, steps: int) -> None:
    optimizer, batches = torch.optim.AdamW(model.parameters(), lr=3e-3), seeded(0)
    for _ in range(steps):
        images, labels = data.batch(batches)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


def gradients(model: nn.Module, data: Digits, scale: float = 1.0) -> Tensor:
    """In float32, of the output of each layer and of each weight, over 500 images."""
    x, outputs = data.images[:500], []
    for layer in model:
        x = layer(x)
        x.retain_grad()
        outputs.append(x)
    model.zero_grad()
    (scale * F.cross_entropy(x, data.labels[:500])).backward()
    tensors = *outputs, *model.parameters()
    return torch.cat([tensor.grad.flatten() for tensor in tensors])


def draw(before: ExponentHistogram, after: ExponentHistogram) -> Any:
    drawn, axes = common.figure(2, 1, sharex=True, sharey=True)
    drawn.set_size_inches(7.5, 5)
    for ax, found in zip(axes[:, 0], (before, after), strict=True):
        total = sum(found.counts.values())
        shares = [100 * count / total for count in found.counts.values()]
        # The bar of e stands from e to e + 1, as its gradients do.
        colour = common.COLOURS["fp16"]
        ax.bar(found.counts.keys(), shares, width=0.85, align="edge", color=colour)
        ax.axvspan(-70, -25, color="#e0e0e0", zorder=0)
        ax.axvspan(-25, -14, color="#f4f4f4", zorder=0)
        ax.axvline(16, color="#888888")
    axes[0][0].set(
        title="gradients as they are: % at each power of two", xlim=(-45, 20)
    )
    axes[1][0].set(title=f"with the loss times 2^{POWER}", xlabel="2 to the ...")
    top = 1.2 * axes[0][0].get_ylim()[1]  # with room for the words
    axes[0][0].set_ylim(top=top)
    for place, text in ((-44, "0 in fp16"), (-24.5, "subnormal"), (-8, "normal")):
        axes[0][0].text(place, 0.9 * top, text, color="#555555")
    axes[0][0].text(15.5, 0.9 * top, "inf", color="#555555", ha="right")
    return drawn


@dataclass(frozen=True)
class Cast:
    """What a cast to fp16 makes of some gradients."""

    name: str
    histogram: ExponentHistogram
    share_of_zeros: float
    infinities: int


def cast(name: str, grads: Tensor) -> Cast:
    zeros = share_lost_to_zero(grads, minamp.FP16)
    return Cast(name, exponent_histogram(grads), zeros, int(grads.half().isinf().sum()))


def as_table(*casts: Cast) -> Table:
    count = casts[0].histogram.total
    made = common.table(
        f"{count:,} gradients of a conv net, cast to fp16",
        *("", "become 0", "subnormal", "become inf"),
    )
    for one in casts:
        subnormal = one.histogram.share_subnormal(minamp.FP16)
        shares = f"{one.share_of_zeros:.1%}", f"{subnormal:.1%}"
        made.add_row(one.name, *shares, f"{one.infinities}")
    return made


def main() -> int:
    args = _lesson.begin(__doc__, __file__)
    ways = ("by hand", "minamp", "torch.amp")
    lost = [one_gradient(args.device, by, scaled=False) for by in ways]
    saved = [one_gradient(args.device, by, scaled=True) for by in ways]
    made = common.table("One gradient, truly 1e-08", "", *ways)
    made.add_row("as it is", *(f"{x:.6g}" for x in lost))
    made.add_row(f"scaled by 2^{POWER}, unscaled", *(f"{x:.6g}" for x in saved))
    common.console.print(made)

    data, model = Digits.load(args.device), conv_net().to(args.device)
    train(model, data, steps=60 if args.quick else 300)
    bare = cast("as they are", gradients(model, data))
    scaled = cast(f"scaled by 2^{POWER}", gradients(model, data, SCALE))
    common.console.print(as_table(bare, scaled))
    drawn = draw(bare.histogram, scaled.histogram)
    common.save_figure(drawn, args.out / "a_gradient_that_vanishes.svg")
    return common.conclude(
        f"fp16 turns {bare.share_of_zeros:.0%} of these gradients into 0, and "
        f"{scaled.share_of_zeros:.1%} after scaling by 2^{POWER}, with none "
        "overflowing; by hand, minamp and torch.amp lose the one gradient alike, and "
        "save it alike.",
        bare.share_of_zeros > 0.02
        and scaled.share_of_zeros < bare.share_of_zeros / 5
        and bare.infinities == scaled.infinities == 0
        and set(lost) == {0.0}
        and len(set(saved)) == 1
        and abs(saved[0] / 1e-8 - 1) < 2**-11,  # one rounding to fp16: half a step
    )


if __name__ == "__main__":
    sys.exit(main())

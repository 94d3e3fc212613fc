"""Does mixed precision train as full precision does?  How to ask before you switch.

Train from several seeds in both, and compare the difference of the means with the
spread between seeds: what is smaller than that is chance.  Once with a loss that is
safe, and once with one that takes large exponentials of half values, outside the
region: exp(12) overflows in fp16.  Both are the same number in exact arithmetic.

    python demos/09_verify_before_you_switch.py            5 seeds, 120 steps each
    python demos/09_verify_before_you_switch.py --quick    3 seeds, 50 steps each
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

import _common as common
import _lesson
import minamp
from _data import Digits, seeded

TEMPERATURE = 0.05


def safe(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float() / TEMPERATURE, labels)


def exponentials(logits: Tensor, labels: Tensor) -> Tensor:
    z = logits / TEMPERATURE
    right = z.gather(1, labels[:, None]).squeeze(1)
    return (z.exp().sum(1).log() - right).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "F.cross_entropy of float32 logits": safe,
    "log(sum(exp(logits))) of half logits": exponentials,
}
WAYS: dict[str, tuple[str, Any]] = {
    "fp32": ("fp32", torch.amp),
    "fp16 torch.amp": ("fp16", torch.amp),
    "fp16 minamp": ("fp16", minamp),
    "bf16 torch.amp": ("bf16", torch.amp),
    "bf16 minamp": ("bf16", minamp),
}


@dataclass
class Runs:
    """What became of the runs of all seeds."""

    held_out: list[float] = field(default_factory=list)  # loss, in float32, of each
    lost_steps: int = 0
    scale: float = 1.0

    def is_aligned(self, full: Runs) -> bool:
        off = fmean(self.held_out) - fmean(full.held_out)
        return abs(off) < stdev(full.held_out)


def train(way: str, loss_name: str, data: Digits, seed: int, steps: int, into: Runs):
    torch.manual_seed(seed)
    (dtype, amp), loss_of, kind = WAYS[way], LOSSES[loss_name], data.device.type
    model, draws = _lesson.perceptron().to(data.device), seeded(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    half = common.DTYPES[dtype] if dtype != "fp32" else None
    region = amp.autocast(kind, half, enabled=half is not None)
    scaler = amp.GradScaler(kind, init_scale=2.0**10, enabled=dtype == "fp16")
    for _ in range(steps):
        images, labels = data.batch(draws)
        optimizer.zero_grad()
        with region:
            logits = model(images)
        loss = loss_of(logits, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        into.lost_steps += int(not loss.isfinite())
    images, labels = data.held_out()
    into.held_out.append(safe(model(images), labels).item())
    into.scale = scaler.get_scale()


def as_table(loss_name: str, runs: dict[str, Runs]) -> Table:
    columns = "held-out loss", "spread of seeds", "steps lost", "last scale", "verdict"
    made = common.table(loss_name, "", *columns)
    for way, found in runs.items():
        verdict = "aligned" if found.is_aligned(runs["fp32"]) else "NOT aligned"
        made.add_row(
            way,
            f"{fmean(found.held_out):.4f}",
            f"{stdev(found.held_out):.4f}",
            f"{found.lost_steps}",
            f"{found.scale:.3g}",
            verdict if way != "fp32" else "",
        )
    return made


def draw(everything: dict[str, dict[str, Runs]]) -> Any:
    """A dot for each seed, a dash for their mean; grey: full precision's spread."""
    drawn, axes = common.figure(1, 2, sharey=True)
    for ax, (loss_name, runs) in zip(axes[0], everything.items(), strict=True):
        mean, spread = fmean(runs["fp32"].held_out), stdev(runs["fp32"].held_out)
        ax.axhspan(mean - spread, mean + spread, color="#ececec", zorder=0)
        for place, (way, found) in enumerate(runs.items()):
            look = {"color": common.COLOURS[WAYS[way][0]], "alpha": 0.6, "ms": 6}
            ax.plot([place] * len(found.held_out), found.held_out, "o", **look)
            ax.plot(place, fmean(found.held_out), "k_", ms=22, mew=2)
        ax.set_xticks(range(len(runs)), [way.replace(" ", "\n") for way in runs])
        ax.grid(axis="x", visible=False)
        ax.set_title(loss_name)
    axes[0][0].set_ylabel("held-out loss")
    return drawn


def main() -> int:
    args = _lesson.begin(__doc__, __file__)
    data = Digits.load(args.device)
    seeds, steps = (3, 50) if args.quick else (5, 120)
    everything: dict[str, dict[str, Runs]] = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.filterwarnings("always", "A step was skipped")  # quoted below
        for loss_name in LOSSES:
            everything[loss_name] = {way: Runs() for way in WAYS}
            for way, runs in everything[loss_name].items():
                for seed in range(seeds):
                    train(way, loss_name, data, seed, steps, into=runs)
    for loss_name, by_way in everything.items():
        common.console.print(as_table(loss_name, by_way))
    for text in {str(warning.message) for warning in said}:
        common.console.print(f"minamp says: {text}", highlight=False)
    common.save_figure(draw(everything), args.out / "verify_before_you_switch.svg")

    good, bad = everything.values()
    lost = bad["fp16 minamp"].lost_steps
    return common.conclude(
        f"With the safe loss all {len(WAYS) - 1} mixed runs align with full precision; "
        f"with exponentials of halves fp16 does not: {lost} of {seeds * steps} losses "
        "were infinite, and their steps skipped. minamp says so and keeps its scale.",
        all(runs.is_aligned(good["fp32"]) for runs in good.values())
        and not bad["fp16 minamp"].is_aligned(bad["fp32"])
        and not bad["fp16 torch.amp"].is_aligned(bad["fp32"])
        and lost > 0
        and bad["fp16 minamp"].scale == good["fp16 minamp"].scale
        and len(said) > 0,
    )


if __name__ == "__main__":
    sys.exit(main())

"""When does the loss scale grow, when does it back off, and what is skipped?

A network trains on real digits in fp16 from a scale that is far too high.  On some
steps an infinite gradient is put in.  The scaler is written out by hand, as short as it
goes, and runs beside minamp's and torch.amp's.

    python demos/07_the_scale_over_time.py            200 steps
    python demos/07_the_scale_over_time.py --quick    60
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import _common as common
import _lesson
import minamp
from _data import Digits, seeded

SETTINGS = {"init_scale": 2.0**26, "growth_interval": 10}
POISONED = {30, 31, 32, 33, 50, 120}  # the steps with an infinite gradient put in


class ByHand:
    """Loss scaling with nothing left out but checks of what the user does."""

    def __init__(self, init_scale: float, growth_interval: int) -> None:
        self.now, self.growth_interval, self.clean_steps = (
            init_scale,
            growth_interval,
            0,
        )

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.now

    def step(self, optimizer: Optimizer) -> None:
        grads = [w.grad for group in optimizer.param_groups for w in group["params"]]
        self.overflow = not all(grad.isfinite().all() for grad in grads)
        if not self.overflow:
            for grad in grads:
                grad /= self.now
            optimizer.step()

    def update(self) -> None:
        self.clean_steps = 0 if self.overflow else self.clean_steps + 1
        if self.overflow:
            self.now /= 2
        elif self.clean_steps == self.growth_interval:
            self.now, self.clean_steps = self.now * 2, 0

    def get_scale(self) -> float:
        return self.now


@dataclass
class Story:
    """What each step did: the scale it used, its loss, and whether weights moved."""

    scales: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)


def train(scaler: Any, data: Digits, steps: int) -> Story:
    torch.manual_seed(0)
    model, draws, story = _lesson.perceptron().to(data.device), seeded(0), Story()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        images, labels = data.batch(draws)
        before = [weight.detach().clone() for weight in model.parameters()]
        story.scales.append(scaler.get_scale())
        optimizer.zero_grad()
        with minamp.autocast(data.device.type, torch.float16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        if step in POISONED:
            poison(model)
        scaler.step(optimizer)
        scaler.update()
        story.losses.append(loss.item())
        story.weights = [weight.detach() for weight in model.parameters()]
        if all(map(torch.equal, before, story.weights)):
            story.skipped.append(step)
    return story


def poison(model: nn.Module) -> None:
    first = next(model.parameters())
    first.grad[0, 0] = float("inf")


def same(one: Story, other: Story) -> bool:
    numbers = (one.scales, one.losses, one.skipped)
    return numbers == (other.scales, other.losses, other.skipped) and all(
        map(torch.equal, one.weights, other.weights)
    )


def draw(stories: dict[str, Story]) -> Any:
    drawn, axes = common.figure(2, 1, sharex=True)
    drawn.set_size_inches(8, 5)
    scale, loss = axes[:, 0]
    looks = {
        "by hand": {"color": "#bbbbbb", "lw": 7},
        "torch.amp": {"color": common.COLOURS["bf16"], "lw": 3.5},
        "minamp": {"color": common.COLOURS["fp16"], "lw": 1.4},
    }
    for name, look in looks.items():
        story = stories[name]
        steps = range(len(story.scales))
        scale.step(steps, story.scales, where="post", label=name, **look)
        loss.plot(story.losses, **look)
    for ax, values in ((scale, story.scales), (loss, story.losses)):
        crosses = [values[step] for step in story.skipped]
        ax.plot(story.skipped, crosses, "kx", ms=6, label="skipped step")
    scale.set_yscale("log", base=2)
    scale.set_title("loss scale")
    loss.set(title="training loss", xlabel="step")
    scale.legend(ncols=2)
    return drawn


def main() -> int:
    args = _lesson.begin(__doc__, __file__)
    data, kind = Digits.load(args.device), args.device.type
    scalers = {
        "by hand": ByHand(**SETTINGS),
        "minamp": minamp.GradScaler(kind, **SETTINGS),
        "torch.amp": torch.amp.GradScaler(kind, **SETTINGS),
    }
    steps = 60 if args.quick else 200
    stories = {name: train(scaler, data, steps) for name, scaler in scalers.items()}
    made = common.table(
        f"{steps} steps", "", "first scale", "lowest", "last", "skipped", "last loss"
    )
    for name, story in stories.items():
        scales = story.scales[0], min(story.scales), story.scales[-1]
        cells = *(f"{scale:,.0f}" for scale in scales), str(len(story.skipped))
        made.add_row(name, *cells, f"{story.losses[-1]:.4f}")
    common.console.print(made)
    common.save_figure(draw(stories), args.out / "the_scale_over_time.svg")
    hand, ours, torchs = stories.values()
    poisoned = {step for step in POISONED if step < steps}
    own = len(set(ours.skipped) - poisoned)
    return common.conclude(
        f"By hand, minamp and torch.amp agree on every scale, skip and weight: "
        f"{own} steps were skipped because the scale was too high, and all "
        f"{len(poisoned)} with an infinite gradient.",
        same(ours, torchs)
        and same(ours, hand)
        and own > 0
        and poisoned <= set(ours.skipped)
        and max(ours.scales[40:]) > min(ours.scales),
    )


if __name__ == "__main__":
    sys.exit(main())

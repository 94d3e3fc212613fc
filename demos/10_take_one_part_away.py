"""What does each part of mixed precision do?  Take it away, and see what breaks.

One network with something for each part: pixels as a 10-bit sensor counts them (0 to
1023), a normalisation that squares them, a loss with a small weight, and small steps.
The complete recipe (half weights with masters, autocast, loss scale) trains it as full
precision does.  Without any one of its parts:

    python demos/10_take_one_part_away.py            400 steps each
    python demos/10_take_one_part_away.py --quick    100
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import _common as common
import _lesson
import minamp
from _data import Digits, seeded
from _lesson import SCALE
from minamp.policy.op_lists import Category, OpLists, op_lists

LOSS_WEIGHT = 1e-4


class Net(nn.Module):
    """Images (N, 1, 8, 8) to logits (N, 10), with a root-mean-square norm by hand."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(1023 * images.flatten(1)).relu()
        x = x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
        return self.last(x)


@dataclass(frozen=True)
class Recipe:
    """Which parts are there."""

    half: bool = True
    lists: bool = True
    float32_ops: bool = True
    scaling: bool = True
    masters: bool = True


COMPLETE = Recipe()
RECIPES = {
    "full precision": replace(COMPLETE, half=False, scaling=False),
    "the complete recipe": COMPLETE,
    "no float32 reductions": replace(COMPLETE, float32_ops=False),
    "no loss scale": replace(COMPLETE, scaling=False),
    "no masters": replace(COMPLETE, masters=False),
    "no cast lists": replace(COMPLETE, lists=False),
}


def lists_of(recipe: Recipe, kind: str) -> OpLists:
    """minamp's safe lists; or of those only what runs in half: the matrix products."""
    safe = minamp.safe_lists()
    if recipe.float32_ops:
        return safe
    rows = safe.for_device(kind).values()
    products = [row for row in rows if row.category is Category.LOWER_PRECISION_FP]
    return op_lists("products only", {kind: products})


@dataclass(frozen=True)
class Outcome:
    """The losses of the training, how it does on digits it never saw, its last step."""

    losses: list[float]
    loss: float
    accuracy: float
    zero_gradients: float
    unmoved_weights: float


def train(recipe: Recipe, data: Digits, steps: int) -> Outcome:
    torch.manual_seed(0)
    model, draws, kind = Net().to(data.device), seeded(0), data.device.type
    losses = []
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-5, eps=1e-12)
    if recipe.half:
        minamp.MasterWeights(model, optimizer, torch.float16)
    masters = optimizer.param_groups[0]["params"]
    region: Any = nullcontext()
    if recipe.half and recipe.lists:
        lists = lists_of(recipe, kind)
        region = minamp.autocast(kind, torch.float16, op_lists=lists)
    scaler = minamp.GradScaler(kind, init_scale=SCALE, enabled=recipe.scaling)
    for _ in range(steps):
        images, labels = data.batch(draws)
        before = [weight.detach().clone() for weight in masters]
        optimizer.zero_grad()
        with region:
            loss = LOSS_WEIGHT * F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item() / LOSS_WEIGHT)
        if not recipe.masters:
            forget_what_halves_cannot_hold(masters)
    images, labels = data.held_out()
    with torch.no_grad(), region:
        logits = model(images).float()
    return Outcome(
        losses,
        F.cross_entropy(logits, labels).item(),
        (logits.argmax(-1) == labels).float().mean().item(),
        share([master.grad == 0 for master in masters]),
        share([a == b for a, b in zip(before, masters, strict=True)]),
    )


@torch.no_grad()
def forget_what_halves_cannot_hold(masters: list[Tensor]) -> None:
    for master in masters:
        master.copy_(master.half())


def share(flags: list[Tensor]) -> float:
    return torch.cat([flag.flatten() for flag in flags]).float().mean().item()


def draw(found: dict[str, Outcome]) -> Any:
    drawn, ((ax,),) = common.figure(1, 1)
    drawn.set_size_inches(7.5, 3.6)
    for name, look in LOOKS.items():
        ax.plot(_lesson.smooth(found[name].losses), label=name, **look)
    ax.set(title="training loss on the digits", xlabel="step")
    ax.legend(fontsize=9)
    return drawn


LOOKS: dict[str, dict[str, Any]] = {
    "full precision": {"color": common.COLOURS["fp32"], "lw": 5, "alpha": 0.35},
    "the complete recipe": {"color": common.COLOURS["fp16"], "lw": 1.6},
    "no float32 reductions": {"color": common.COLOURS["bf16"], "ls": "-."},
    "no loss scale": {"color": common.COLOURS["bf16"], "ls": "--"},
    "no masters": {"color": common.COLOURS["bf16"], "ls": ":", "lw": 2},
}


def main() -> int:
    args = _lesson.begin(__doc__, __file__)
    data, steps = Digits.load(args.device), 100 if args.quick else 400
    made = common.table(
        f"{steps} steps", "", "loss", "accuracy", "gradients 0", "weights unmoved"
    )
    found, errors = {}, {}
    for name, recipe in RECIPES.items():
        try:
            one = found[name] = train(recipe, data, steps)
        except RuntimeError as error:
            errors[name] = str(error)
            made.add_row(name, "does not run")
            continue
        shares = one.accuracy, one.zero_gradients, one.unmoved_weights
        made.add_row(name, f"{one.loss:.3f}", *(f"{part:.1%}" for part in shares))
    common.console.print(made)
    for name, error in errors.items():
        common.console.print(f"{name}: {error}", highlight=False)

    common.save_figure(draw(found), args.out / "take_one_part_away.svg")

    full, complete, *broken = (one.loss for one in found.values())
    return common.conclude(
        f"The complete recipe ends {abs(complete - full):.3f} from full precision's "
        f"loss; without a part it ends at least {min(broken) - full:.3f} above, and "
        "without cast lists it does not run.",
        abs(complete - full) < 0.02
        and min(broken) - full > 0.03
        and list(errors) == ["no cast lists"]
        and "dtype" in errors["no cast lists"],
    )


if __name__ == "__main__":
    sys.exit(main())

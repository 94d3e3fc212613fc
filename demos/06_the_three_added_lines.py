"""What does mixed precision add to a training script, and can it be switched off?

One script for full precision, one for torch.amp *and* minamp: only the import differs.
With `enabled=False` the added lines do nothing, to the last bit, so one script serves a
laptop and a GPU.

    python demos/06_the_three_added_lines.py            200 steps each
    python demos/06_the_three_added_lines.py --quick    20
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import _common as common
import _lesson
import minamp
from _data import Batch, Digits, seeded


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
) -> float:
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


def train_mixed(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    amp: Any,  # the module: torch.amp, or minamp
    device: str,
    enabled: bool,
) -> float:
    scaler = amp.GradScaler(device, enabled=enabled)
    for inputs, labels in batches:
        optimizer.zero_grad()
        with amp.autocast(device, torch.float16, enabled=enabled):
            loss = F.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


@dataclass(frozen=True)
class Run:
    """What a script made of the same first weights and the same batches."""

    loss: float
    accuracy: float
    weights: list[torch.Tensor]

    def same_bits(self, other: Run) -> bool:
        pairs = zip(self.weights, other.weights, strict=True)
        return self.loss == other.loss and all(torch.equal(a, b) for a, b in pairs)


def run(script: Callable[..., float], data: Digits, steps: int) -> Run:
    torch.manual_seed(0)
    model, draws = _lesson.perceptron().to(data.device), seeded(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = script(model, optimizer, (data.batch(draws) for _ in range(steps)))
    inputs, labels = data.held_out()
    right = (model(inputs).argmax(-1) == labels).float().mean().item()
    return Run(loss, right, [weight.detach() for weight in model.parameters()])


def show_added_lines() -> None:
    """The bodies of the two functions, compared as `diff` does."""
    bodies = [
        inspect.getsource(script).split(") -> float:\n")[1].splitlines()
        for script in (train, train_mixed)
    ]
    common.console.print("\n[bold]The lines that mixed precision adds (+)[/]\n")
    for line in difflib.ndiff(*bodies):
        if not line.startswith("?"):
            style = {"+": "green", "-": "red"}.get(line[0])
            common.console.print(line, style=style, highlight=False, markup=False)


def main() -> int:
    args = _lesson.begin(__doc__, __file__)
    data, steps = Digits.load(args.device), 20 if args.quick else 200
    show_added_lines()
    on_this_device = partial(train_mixed, device=args.device.type)
    scripts: dict[str, Callable[..., float]] = {"full precision": train}
    for enabled in (False, True):
        for name, amp in (("torch.amp", torch.amp), ("minamp", minamp)):
            key = f"{name}, enabled={enabled}"
            scripts[key] = partial(on_this_device, amp=amp, enabled=enabled)
    runs = {name: run(script, data, steps) for name, script in scripts.items()}

    made = common.table(f"{steps} steps", "", "loss", "accuracy", "same weights as")
    for name, one in runs.items():
        twin = next(other for other, that in runs.items() if one.same_bits(that))
        made.add_row(
            name, f"{one.loss:.6f}", f"{one.accuracy:.1%}", "" if twin == name else twin
        )
    common.console.print(made)
    plain, torch_off, minamp_off, torch_on, minamp_on = runs.values()
    return common.conclude(
        "Switched off, the added lines change no bit, with torch.amp and with minamp; "
        "switched on, the two give the same bits.",
        plain.same_bits(torch_off)
        and plain.same_bits(minamp_off)
        and minamp_on.same_bits(torch_on)
        and not minamp_on.same_bits(plain),
    )


if __name__ == "__main__":
    sys.exit(main())

"""What becomes of an update that is smaller than the gap between two half weights?

w + dw = w if |dw| is below half a step at w, each time anew: the weight never learns.
Master weights add up in float32, where there is room, and round the total.  First one
weight and one small update, many times; then a network on real digits.

    python demos/04_an_update_that_vanishes.py            1000 steps of training
    python demos/04_an_update_that_vanishes.py --quick    150
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import _common as common
import _lesson
import minamp
from _contestants import Contestant, Run, TorchRun
from _data import Digits, seeded

UPDATE, TIMES = 1e-4, 500
BF16 = torch.bfloat16
Way = Callable[[nn.Module, torch.optim.Optimizer], object]
HELPED: dict[str, Way] = {
    "minamp masters": lambda m, o: minamp.MasterWeights(m, o, BF16),
    "minamp Kahan": lambda m, o: minamp.KahanSummation(m, o, BF16),
    "minamp stochastic": lambda m, o: minamp.StochasticRounding(m, o, BF16),
}


def one_weight(device: torch.device, help_it: Way | None) -> float:
    """1 plus TIMES updates of an SGD step each, as a bf16 weight ends up."""
    model = nn.Linear(1, 1, bias=False, device=device)
    nn.init.ones_(model.weight)
    if help_it is None:
        model.to(BF16)
    optimizer = torch.optim.SGD(model.parameters(), lr=UPDATE)
    kept = help_it(model, optimizer) if help_it else None
    for _ in range(TIMES):
        optimizer.zero_grad()
        (-model.weight).sum().backward()  # the gradient is -1
        optimizer.step()
    del kept
    return model.weight.item()


def one_weight_by_hand() -> float:
    master = torch.ones(())
    for _ in range(TIMES):
        master += UPDATE
        weight = master.bfloat16()
    return weight.item()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-4)


def start(name: str, device: torch.device) -> Run:
    torch.manual_seed(0)
    model = _lesson.perceptron().to(device)
    if name == "half weights":
        return TorchRun(model.bfloat16(), adam(model), BF16)
    recipe = {"torch.amp": None, "minamp masters": "bf16_masters"}[name]
    return Contestant("bf16", name, recipe).start(model, adam)


def train(run: Run, data: Digits, steps: int) -> tuple[list[float], float]:
    """The loss of each step, and the share of weights that the last one left alone."""
    batches, losses = seeded(0), []
    for _ in range(steps):
        before = [weight.clone() for weight in run.weights_fp32().values()]
        losses.append(run.step(data.batch(batches)).item())
    after = run.weights_fp32().values()
    same = [(a == b).float().flatten() for a, b in zip(after, before, strict=True)]
    return losses, torch.cat(same).mean().item()


def draw(curves: dict[str, list[float]]) -> Any:
    drawn, ((ax,),) = common.figure(1, 1)
    drawn.set_size_inches(7, 3.4)
    looks = {
        "half weights": {"color": common.COLOURS["bf16"], "lw": 2},
        "torch.amp": {"color": "#999999", "lw": 5, "alpha": 0.5},
        "minamp masters": {"color": "#222222", "lw": 1.2},
    }
    for name, losses in curves.items():
        ax.plot(_lesson.smooth(losses), label=name, **looks[name])
    ax.set(title="training loss on the digits, bf16, Adam at 1e-4", xlabel="step")
    ax.set_ylim(bottom=0)
    ax.legend()
    return drawn


def main() -> int:
    args = _lesson.begin(__doc__, __file__)
    ends = {
        "half weight": one_weight(args.device, None),
        "by hand": one_weight_by_hand(),
    }
    ends |= {name: one_weight(args.device, way) for name, way in HELPED.items()}
    made = common.table(f"1 + {TIMES} * {UPDATE}, in bf16", *ends)
    made.add_row(*(f"{end:.6g}" for end in ends.values()))
    common.console.print(made)

    data, steps = Digits.load(args.device), 150 if args.quick else 1000
    curves, unmoved = {}, {}
    for name in ("half weights", "torch.amp", "minamp masters"):
        curves[name], unmoved[name] = train(start(name, args.device), data, steps)
    made = common.table(
        f"{steps} steps", "", "loss", "weights the last step left alone"
    )
    for name, losses in curves.items():
        loss = _lesson.smooth(losses)[-1].item()
        made.add_row(name, f"{loss:.4f}", f"{unmoved[name]:.1%}")
    common.console.print(made)
    common.save_figure(draw(curves), args.out / "an_update_that_vanishes.svg")

    half, torchs, masters = (
        _lesson.smooth(losses)[-1].item() for losses in curves.values()
    )
    return common.conclude(
        f"{TIMES} updates of {UPDATE} leave a bf16 weight at {ends['half weight']:g}, "
        f"with masters it gets to {ends['minamp masters']:g}; a network without them "
        f"loses {unmoved['half weights']:.0%} of its last updates and ends at a loss "
        f"of {half:.2f}, with masters at {masters:.2f}, torch.amp at {torchs:.2f}.",
        ends["half weight"] == 1
        and ends["minamp masters"] == ends["by hand"]
        and unmoved["half weights"] > 0.3 > unmoved["minamp masters"]
        and abs(masters - torchs) < (half - torchs) / 10,
    )


if __name__ == "__main__":
    sys.exit(main())

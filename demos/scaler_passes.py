"""How long does the end of an iteration take, next to torch.amp's scaler?

The gradients are there already; timed is what scaler and optimizer do with them. Three
ways to end an iteration, four sets of parameters; minamp and torch.amp take turns, and
the ratio is the median of all rounds.

    python demos/scaler_passes.py              31 rounds: a minute on 2 CPU cores
    python demos/scaler_passes.py --quick      5 rounds, and no verdict
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

import _common as common
from minamp.scaling.scaler import DynamicLossScaler

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "200 x 64x64": [(64, 64)] * 200,
    "20 x 1M": [(1000, 1000)] * 20,
    "the MLP, 10.5M": [(2048, 4096), (2048,), (1024, 2048), (1024,)],
    "10,000 x 32": [(32,)] * 10_000,
}
# What we hold minamp to: how many times torch.amp's time each way may take.
BOUNDS = {"clip, step": 0.75, "step, fused": 1.0, "step": 1.3}
BOUND_OF_MANY_SMALL = {("step", "10,000 x 32"): 1.5}

Run = Callable[[], None]


@dataclass
class Measured:
    """One way with one set of gradients: milliseconds of each round."""

    way: str
    gradients: str
    minamp: list[float] = field(default_factory=list)
    torch_amp: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        rounds = zip(self.minamp, self.torch_amp, strict=True)
        return median(ours / theirs for ours, theirs in rounds)

    @property
    def bound(self) -> float:
        return BOUND_OF_MANY_SMALL.get((self.way, self.gradients), BOUNDS[self.way])


def parameters_with_gradients(
    shapes: list[tuple[int, ...]], device: torch.device
) -> list[Any]:
    parameters = [torch.nn.Parameter(torch.randn(s, device=device)) for s in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


def iteration(way: str, scaler: Any, optimizer: Any, loss: Tensor) -> Run:
    """What is timed: the end of an iteration, in one of the three ways."""
    parameters = optimizer.param_groups[0]["params"]

    def clip(max_norm: float) -> None:
        if isinstance(scaler, DynamicLossScaler):
            scaler.clip_grad_norm_(optimizer, max_norm)
        else:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def run() -> None:
        scaler.scale(loss)
        if way == "clip, step":
            clip(1e30)  # never reached, so that the gradients stay as they are
        scaler.step(optimizer)
        scaler.update()

    return run


def milliseconds(run: Run, device: torch.device) -> float:
    started = common.now(device)
    run()
    return 1e3 * (common.now(device) - started)


def measure(
    measured: Measured, rounds: int, device: torch.device, tick: Callable[[], object]
) -> None:
    parameters = parameters_with_gradients(SHAPES[measured.gradients], device)
    # A scale of 1 and a learning rate of 0 change no number but skip no work.
    fused = measured.way == "step, fused"
    optimizer = torch.optim.SGD(parameters, lr=0.0, fused=fused)
    loss = torch.ones((), device=device, requires_grad=True)
    ours, theirs = (
        iteration(measured.way, kind(device.type, init_scale=1.0), optimizer, loss)
        for kind in (DynamicLossScaler, torch.amp.GradScaler)
    )
    for this_round in range(-1, rounds):
        taken = milliseconds(ours, device), milliseconds(theirs, device)
        if this_round >= 0:  # the one before the first is the warm-up
            measured.minamp.append(taken[0])
            measured.torch_amp.append(taken[1])
        tick()


def as_table(everything: list[Measured]) -> Table:
    columns = ("", "way", "minamp ms", "torch.amp ms", "ratio", "at most")
    made = common.table("the end of an iteration", *columns)
    for one in everything:
        if one.way == next(iter(BOUNDS)):
            made.add_section()
        numbers = (median(one.minamp), median(one.torch_amp), one.ratio, one.bound)
        made.add_row(one.gradients, one.way, *(f"{n:.2f}" for n in numbers))
    return made


def draw(everything: list[Measured]) -> Any:
    """A bar for each ratio, a tick where it has to end."""
    drawn, axes = common.figure(1, 1)
    drawn.set_size_inches(7.0, 3.6)
    ax = axes[0][0]
    names = [f"{one.gradients}: {one.way}" for one in everything]
    ratios = [one.ratio for one in everything]
    ax.barh(names, ratios, color=common.COLOURS["fp16"], height=0.6)
    bounds = [one.bound for one in everything]
    ax.plot(bounds, names, "|", color="black", markersize=14, label="at most")
    ax.axvline(1.0, color=common.COLOURS["fp32"], linewidth=0.8)
    ax.set_title("time as a share of torch.amp's")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    return drawn


def finding(everything: list[Measured]) -> tuple[str, bool]:
    over = [one for one in everything if one.ratio > one.bound]
    sentence = f"all {len(everything)} ratios to torch.amp's time are within bounds"
    said = (f"{o.gradients}, {o.way}: {o.ratio:.2f} (at most {o.bound})" for o in over)
    return "; but not ".join([sentence, *said]) + ".", not over


def main() -> int:
    args = common.options(__doc__, "scaler_passes").parse_args()
    device = common.pick_device(args.device)
    rounds = 5 if args.quick else 31
    everything = [Measured(way, gradients) for gradients in SHAPES for way in BOUNDS]
    with common.progress() as bar:
        line = bar.add_task("rounds", total=len(everything) * (rounds + 1))
        for measured in everything:
            measure(measured, rounds, device, lambda: bar.advance(line))
    common.console.print(as_table(everything))
    common.save_figure(draw(everything), args.out / "scaler_passes.svg")
    results = [asdict(one) for one in everything]
    common.save_record(args.out / "scaler_passes.json", device, results)
    if args.quick:
        return 0
    return common.conclude(*finding(everything))


if __name__ == "__main__":
    sys.exit(main())

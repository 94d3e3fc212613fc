"""How long does a step take under loss scaling, next to torch.amp's scaler?

    python demos/scaler_passes.py              about a minute on 2 CPU cores
    python demos/scaler_passes.py --quick      a few seconds

The gradients are there already; timed is what scaler and optimizer do with them. Three
ways to end an iteration, four sets of parameters, minamp and torch.amp in turns,
medians. The sentence at the end is checked; the exit status says whether it is true.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from minamp.scaling.scaler import DynamicLossScaler

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "200 x 64x64": [(64, 64)] * 200,
    "20 x 1M": [(1000, 1000)] * 20,
    "the MLP, 10.5M": [(2048, 4096), (2048,), (1024, 2048), (1024,)],
    "10,000 x 32": [(32,)] * 10_000,
}
# How many times torch.amp's time each way may take; (usual, many small tensors).
BOUNDS = {
    "clip, step": (0.75, 0.75),
    "step, fused": (1.0, 1.0),
    "step": (1.3, 1.5),
}


def parameters_with_gradients(shapes: list[tuple[int, ...]], device: str) -> list[Any]:
    parameters = [torch.nn.Parameter(torch.randn(s, device=device)) for s in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


Run = Callable[[], None]


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


def time_in_turns(runs: list[Run], rounds: int, device: str) -> list[list[float]]:
    """The times of each, in milliseconds; they take turns, so they share the noise."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):
        for run, measured in zip(runs, times, strict=True):
            synchronize(device)
            start = time.perf_counter()
            run()
            synchronize(device)
            measured.append(1e3 * (time.perf_counter() - start))
    return [measured[1:] for measured in times]  # the first round warms up


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def measure(way: str, name: str, rounds: int, device: str) -> tuple[float, ...]:
    """Median times of minamp and torch.amp, and of the ratio in each round."""
    parameters = parameters_with_gradients(SHAPES[name], device)
    # A scale of 1 and a learning rate of 0 change no number but skip no work.
    optimizer = torch.optim.SGD(parameters, lr=0.0, fused=way == "step, fused")
    loss = torch.ones((), device=device, requires_grad=True)
    runs = [
        iteration(way, scaler(device, init_scale=1.0), optimizer, loss)
        for scaler in (DynamicLossScaler, torch.amp.GradScaler)
    ]
    ours, theirs = time_in_turns(runs, rounds, device)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return median(ours), median(theirs), median(ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, no verdict")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--device", default=DynamicLossScaler()._device)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rounds = 5 if arguments.quick else arguments.rounds
    where = f"torch {torch.__version__}, {arguments.device}"
    table = Table("gradients", "way", title=f"{where}, medians of {rounds} rounds")
    for column in ("minamp ms", "torch.amp ms", "ratio", "bound"):
        table.add_column(column, justify="right")
    too_slow = []
    for name in SHAPES:
        for way, bounds in BOUNDS.items():
            ours, theirs, ratio = measure(way, name, rounds, arguments.device)
            bound = bounds[name.startswith("10,000")]
            row = (f"{ours:.2f}", f"{theirs:.2f}", f"{ratio:.2f}", f"{bound:.2f}")
            table.add_row(name, way, *row)
            if ratio > bound:
                too_slow.append(f"{way} on {name}: {ratio:.2f} > {bound}")
    console = Console()
    console.print(table)
    console.print("\n".join(too_slow) or "Every ratio is within its bound.")
    return 0 if arguments.quick else bool(too_slow)


if __name__ == "__main__":
    sys.exit(main())

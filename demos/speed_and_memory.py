"""What does half precision cost and save, in time and in memory?

The classic measurement: an MLP 4096-2048-1024, batch 256, SGD, cross entropy, 50 steps,
in full precision and in half, by PyTorch and by minamp.  They take turns, a few steps
each, round after round, so that whatever disturbs the machine disturbs all alike.  Then
the price of a single call in a region: a small `linear`, and an op that is on no list.

    python demos/speed_and_memory.py            50 steps each
    python demos/speed_and_memory.py --quick    2 steps each of batch 32, and no verdict
                                                on time
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

import _calls
import _common as common
from _contestants import Contestant, Run, contestants
from _memory import peak_bytes

MIB = 2**20
STEPS_A_ROUND = 5

# What we hold minamp to, as shares of torch.amp's time and memory in the same dtype.
# Masters cannot do with less memory here: once all gradients are there, torch.amp holds
# 4 bytes of weight and 4 of gradient an element, and has dropped the half copies of the
# forward, 2 bytes; a model of half weights keeps them.  So it is 10 bytes against 8.
TARGETS = {"minamp autocast": (1.03, 1.0), "minamp masters": (0.97, 1.25)}
# A small listed call, against torch.amp's; an unlisted one, against outside: the same,
# but for the noise of measuring a call of a microsecond.
TARGET_LISTED, TARGET_UNLISTED = 2.0, 1.05


@dataclass
class Measured:
    """One contestant: peak bytes, and seconds a step in each round."""

    contestant: Contestant
    peak_bytes: int
    seconds: list[float] = field(default_factory=list)

    def time_by(self, other: Measured) -> float:
        pairs = zip(self.seconds, other.seconds, strict=True)
        return median(ours / theirs for ours, theirs in pairs)

    def memory_by(self, other: Measured) -> float:
        return self.peak_bytes / other.peak_bytes


class Bench:
    """The MLP and its one batch."""

    def __init__(self, device: torch.device, size: int) -> None:
        torch.manual_seed(0)
        self.device = device
        inputs = torch.randn(size, 4096, device=device)
        self.batch = inputs, torch.randint(1024, (size,), device=device)

    def measure(
        self, everyone: list[Contestant], rounds: int, tick: Callable[[], object]
    ) -> list[Measured]:
        found = [Measured(who, self.peak(who)) for who in everyone]
        runs = [self.start(who) for who in everyone]
        steps = STEPS_A_ROUND if rounds > 2 else 1
        for this_round in range(-1, rounds):
            for run, measured in zip(runs, found, strict=True):
                seconds = self.seconds_a_step(run, steps)
                if this_round >= 0:  # the one before the first is the warm-up
                    measured.seconds.append(seconds)
            tick()
        return found

    def start(self, contestant: Contestant) -> Run:
        torch.manual_seed(0)
        layers = nn.Linear(4096, 2048), nn.ReLU(), nn.Linear(2048, 1024)
        model = nn.Sequential(*layers).to(self.device)
        return contestant.start(model, lambda m: torch.optim.SGD(m.parameters(), 0.1))

    def peak(self, contestant: Contestant) -> int:
        def build() -> Callable[[], Tensor]:
            run = self.start(contestant)
            return lambda: run.step(self.batch)

        return peak_bytes(self.device, build)

    def seconds_a_step(self, run: Run, steps: int) -> float:
        started = common.now(self.device)
        for _ in range(steps):
            run.step(self.batch)
        return (common.now(self.device) - started) / steps


def reference_of(measured: Measured, everyone: list[Measured]) -> Measured:
    """PyTorch's own run in the same dtype: it comes first among its kind."""
    dtype = measured.contestant.dtype
    return next(other for other in everyone if other.contestant.dtype == dtype)


def as_table(everyone: list[Measured], batch: int) -> Table:
    full = everyone[0]
    made = common.table(
        f"MLP 4096-2048-1024, batch {batch}",
        *("", "ms/step", "to PyTorch", "to fp32"),
        *("peak MiB", "to PyTorch", "to fp32"),
    )
    for one in everyone:
        theirs = reference_of(one, everyone)
        if one is theirs:
            made.add_section()
        made.add_row(
            str(one.contestant),
            f"{1e3 * median(one.seconds):.2f}",
            *(f"{one.time_by(other):.3f}" for other in (theirs, full)),
            f"{one.peak_bytes / MIB:.1f}",
            *(f"{one.memory_by(other):.3f}" for other in (theirs, full)),
        )
    return made


def finding(
    everyone: list[Measured], costs: list[_calls.Cost], judge_times: bool
) -> tuple[str, bool]:
    """The sentence, with what was measured, and whether every target is met."""
    times, memories = [], []
    for one in (one for one in everyone if one.contestant.by in TARGETS):
        most_time, most_memory = TARGETS[one.contestant.by]
        theirs = reference_of(one, everyone)
        times.append((f"time of {one.contestant}", one.time_by(theirs), most_time))
        memories.append(
            (f"memory of {one.contestant}", one.memory_by(theirs), most_memory)
        )
    listed, unlisted = costs
    times.append(("a small listed call", listed.to_torch, TARGET_LISTED))
    times.append(("an unlisted call", unlisted.to_torch, TARGET_UNLISTED))
    claims = memories + times if judge_times else memories
    said = [f"{name} {share:.3f} (at most {most})" for name, share, most in claims]
    sentence = "as shares of torch.amp's: " + "; ".join(said) + "."
    return sentence, all(share <= most for _, share, most in claims)


def can_judge_times(device: torch.device, dtype: str, quick: bool) -> bool:
    """The targets of time are for bf16 on a CPU that has its instructions.

    Elsewhere, and in a short run, times are shown and not judged.
    """
    on_cpu = device.type == "cpu" and common.cpu_has_bf16()
    return on_cpu and dtype == "bf16" and not quick


def main() -> int:
    args = common.options_of_training(__doc__, "speed_and_memory").parse_args()
    device = common.pick_device(args.device)
    dtype = choose_dtype(args.dtype, device)
    everyone = contestants(dtype)
    rounds = 2 if args.quick else max(3, (args.steps or 50) // STEPS_A_ROUND)
    batch = 32 if args.quick else 256
    with common.progress() as bar:
        line = bar.add_task("rounds", total=rounds + 1)
        bench = Bench(device, batch)
        measured = bench.measure(everyone, rounds, lambda: bar.advance(line))
    common.console.print(as_table(measured, batch))
    half = common.DTYPES["bf16" if dtype == "all" else dtype]
    costs = _calls.call_costs(device, half, batches=5 if args.quick else 100)
    common.console.print(_calls.as_table(costs))
    common.save_figure(draw(measured), args.out / "speed_and_memory.svg")
    results = [asdict(one) for one in [*measured, *costs]]
    common.save_record(args.out / "speed_and_memory.json", device, results)
    judge_times = can_judge_times(device, dtype, args.quick)
    return common.conclude(*finding(measured, costs, judge_times))


def choose_dtype(asked: str, device: torch.device) -> str:
    """All half formats on CUDA; on the CPU bf16, unless fp16 is asked for."""
    if asked != "all" or device.type != "cpu":
        return asked
    common.console.print(
        "fp16 is left out: most CPUs have no fast fp16 product, and one step takes "
        "seconds (--dtype fp16 measures it)."
    )
    return "bf16"


def draw(everyone: list[Measured]) -> Any:
    """Two rows of bars: time and memory, in the order of the table."""
    drawn, axes = common.figure(1, 2, sharey=True)
    names = [str(one.contestant) for one in everyone]
    colours = [common.COLOURS[one.contestant.dtype] for one in everyone]
    times = [1e3 * median(one.seconds) for one in everyone]
    peaks = [one.peak_bytes / MIB for one in everyone]
    for ax, title, numbers in zip(
        axes[0], ("milliseconds a step", "peak MiB"), (times, peaks), strict=True
    ):
        bars = ax.barh(names, numbers, color=colours, height=0.6)
        ax.bar_label(bars, fmt="%.0f", padding=3)
        ax.set_title(title)
        ax.margins(x=0.12)  # room for the numbers
        ax.grid(axis="y", visible=False)
    axes[0][0].invert_yaxis()
    return drawn


if __name__ == "__main__":
    sys.exit(main())

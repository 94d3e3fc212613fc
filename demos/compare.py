"""Does training in half precision give what full precision gives, and at what cost?

The same model is trained from the same seed in full precision, with torch.amp, with
minamp's autocast and scaler, and with minamp's master weights.  All advance together,
one step each in turn, so that whatever disturbs the machine disturbs all of them alike.

    python demos/compare.py             two tasks, every recipe, on the device found
    python demos/compare.py --quick     the same in a few seconds
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import _common as common
from _compare_figure import draw
from _compare_report import Trace, as_table, finding, reference_of
from _contestants import Contestant, Run, contestants
from _data import Digits, Source, seeded
from _memory import peak_bytes
from _models import CharTransformer, conv_net


@dataclass(frozen=True)
class Task:
    """What is learnt, from what, by which model, in how many steps."""

    name: str
    data: Digits | Source
    build: Callable[[], nn.Module]
    learning_rate: float
    steps: int
    quick_steps: int

    def start(self, contestant: Contestant, seed: int, steps: int) -> Run:
        """`contestant` ready to train; one seed gives all the same first weights."""
        torch.manual_seed(seed)
        model = self.build().to(self.data.device)
        # Ten intervals in a run, so that the scale is seen growing and backing off.
        scaling = {"init_scale": 2.0**14, "growth_interval": 1 + steps // 10}
        return contestant.start(model, self.optimizer, **scaling)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.learning_rate)


def tasks(device: torch.device) -> list[Task]:
    return [
        Task("digits, conv net", Digits.load(device), conv_net, 1e-3, 200, 20),
        Task("source, transformer", Source.load(device), CharTransformer, 3e-3, 100, 6),
    ]


def race(
    task: Task, traces: list[Trace], seed: int, steps: int, tick: Callable[[], object]
) -> None:
    """Train all contestants side by side, and note in `traces` what each did."""
    runs = [task.start(trace.contestant, seed, steps) for trace in traces]
    batches = seeded(seed)
    for step in range(steps):
        batch = task.data.batch(batches)
        for i in range(len(runs)):
            turn = (i + step) % len(runs)  # nobody always goes first
            take_step(runs[turn], batch, traces[turn])
        tick()
    for run, trace in zip(runs, traces, strict=True):
        trace.score = run.score(task.data.held_out())
        reference = runs[traces.index(reference_of(trace, traces))]
        trace.difference = largest_difference(run, reference)


def take_step(run: Run, batch: tuple[Tensor, Tensor], trace: Trace) -> None:
    device = batch[0].device
    started = common.now(device)
    loss = run.step(batch)
    trace.seconds.append(common.now(device) - started)
    # Read once the clock has stopped: each of these two waits for the device.
    trace.losses.append(loss.item())
    trace.scales.append(run.scaler.get_scale())


def largest_difference(run: Run, reference: Run) -> float:
    ours, theirs = run.weights_fp32(), reference.weights_fp32()
    return max((ours[name] - theirs[name]).abs().max().item() for name in theirs)


def peak_of(task: Task, contestant: Contestant) -> int:
    """Peak bytes of one contestant alone."""

    def build() -> Callable[[], Tensor]:
        run = task.start(contestant, seed=0, steps=2)
        batch = task.data.batch(seeded(0))
        return lambda: run.step(batch)

    return peak_bytes(task.data.device, build)


def main() -> int:
    parser = common.options_of_training(__doc__, "compare")
    parser.add_argument("--seeds", type=common.positive, default=1, help="how many")
    args = parser.parse_args()
    device = common.pick_device(args.device)
    be_comparable()
    traces = []
    for task in tasks(device):
        steps = args.steps or (task.quick_steps if args.quick else task.steps)
        traces += train(
            task, contestants(args.dtype, sixteen_bits=True), steps, args.seeds
        )
    common.save_figure(draw(traces), args.out / "compare.svg")
    record = [trace.as_record() for trace in traces]
    common.save_record(args.out / "compare.json", device, record)
    return common.conclude(*finding(traces))


def train(
    task: Task, everyone: list[Contestant], steps: int, seeds: int
) -> list[Trace]:
    """All contestants on one task, from each seed; prints the table."""
    peaks = [(contestant, peak_of(task, contestant)) for contestant in everyone]
    traces = []
    with common.progress() as bar:
        line = bar.add_task(task.name, total=steps * seeds)
        for seed in range(seeds):
            raced = [Trace(task.name, who, seed, peak) for who, peak in peaks]
            race(task, raced, seed, steps, lambda: bar.advance(line))
            traces += raced
    common.console.print(as_table(traces))
    return traces


def be_comparable() -> None:
    """The same bits each time, on CUDA too, and a steadier clock on the CPU.

    The models are so small that a second thread gains nothing, but has to be waited for
    whenever other programs want the processor.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it costs time
    torch.set_num_threads(1)


if __name__ == "__main__":
    sys.exit(main())

"""Whole training runs: equal to torch.amp's to the bit, resumed or never stopped.

Four models, three optimizers, fp16 with a loss scale that overflows on the way. The
weights, the optimizer's memory, the loss of every step and the scale must agree.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from implementations import load_implementation
from oracles import assert_same_bits, train_in_float64
from small_models import MODELS, OPTIMIZERS, an_lstm_that_runs, make_task

STEPS = 50
by_model = pytest.mark.parametrize("model", MODELS)
by_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)


@dataclass
class Run:
    """A training run in mixed precision, with one implementation's two parts."""

    amp: object
    device: str
    model: str
    optimizer: str
    low: torch.dtype = torch.float16
    losses: list[torch.Tensor] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.task = make_task(self.model, self.device)
        self.optimizer = OPTIMIZERS[self.optimizer](self.task.model.parameters())
        # Too large at first, so that the first steps overflow; and it grows often.
        self.scaler = self.amp.GradScaler(
            self.device, init_scale=2.0**24, growth_interval=7
        )

    def train(self, steps: int) -> Run:
        for _ in range(steps):
            self.optimizer.zero_grad()
            with self.amp.autocast(self.device, dtype=self.low):
                loss = self.task.loss(len(self.losses))
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.losses.append(loss.detach())
            self.scales.append(self.scaler.get_scale())
        return self

    def resumed_from(self, other: Run) -> Run:
        """Everything a checkpoint holds, and where in the data the run was."""
        self.task.model.load_state_dict(copy.deepcopy(other.task.model.state_dict()))
        self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))
        self.scaler.load_state_dict(other.scaler.state_dict())
        self.losses, self.scales = list(other.losses), list(other.scales)
        return self

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights, buffers and the optimizer's memory, by name."""
        named = dict(self.task.model.state_dict())
        for i, memory in enumerate(self.optimizer.state.values()):
            for key, value in memory.items():
                if isinstance(value, torch.Tensor):
                    named[f"{key} of parameter {i}"] = value
        return named


def assert_same_run(ours: Run, theirs: Run) -> None:
    assert ours.scales == theirs.scales
    for step, pair in enumerate(zip(ours.losses, theirs.losses, strict=True)):
        assert_same_bits(*pair, f"loss of step {step}")
    left, right = ours.tensors(), theirs.tensors()
    assert left.keys() == right.keys()
    for name in left:
        assert_same_bits(left[name], right[name], name)


@pytest.mark.slow
@by_model
@by_optimizer
def test_an_fp16_run_equals_torchs_to_the_bit(amp, device, model, optimizer):
    torch_amp = load_implementation("torch")
    ours = Run(amp, device, model, optimizer).train(STEPS)
    theirs = Run(torch_amp, device, model, optimizer).train(STEPS)
    assert_same_run(ours, theirs)
    # The run was worth comparing: it overflowed, grew, moved, and stayed finite.
    steps = list(zip(ours.scales, ours.scales[1:], strict=False))
    assert any(after < before for before, after in steps)
    assert any(after > before for before, after in steps)
    untrained = make_task(model, device).model.state_dict()
    assert all(
        not torch.equal(weight, untrained[name]) and weight.isfinite().all()
        for name, weight in ours.task.model.named_parameters()
        if "in_proj_bias" not in name  # its middle third has no gradient: softmax
    )


@by_model
def test_a_bf16_run_equals_torchs_to_the_bit(amp, device, model):
    torch_amp = load_implementation("torch")
    runs = [
        Run(implementation, device, model, "adam", torch.bfloat16).train(12)
        for implementation in (amp, torch_amp)
    ]
    assert_same_run(*runs)


def test_the_fused_lstm_of_pytorch_equals_torchs_to_the_bit(amp, device):
    """nn.LSTM takes another way than its cells: one op for the whole sequence."""
    outputs = []
    for implementation in (amp, load_implementation("torch")):
        torch.manual_seed(0)
        lstm = nn.LSTM(6, 8, num_layers=2).to(device)
        sequence = torch.randn(5, 3, 6, device=device)
        region = implementation.autocast(device, dtype=torch.bfloat16)
        with an_lstm_that_runs(), region:
            output, _ = lstm(sequence)
        gradients = torch.autograd.grad(output.float().sum(), list(lstm.parameters()))
        outputs.append([output, *gradients])
    for left, right in zip(*outputs, strict=True):
        assert_same_bits(left, right, "lstm")


@by_model
@pytest.mark.parametrize("stop_at", [1, 9])
def test_a_resumed_run_equals_the_run_never_stopped(amp, device, model, stop_at):
    unstopped = Run(amp, device, model, "adamw").train(14)
    stopped = Run(amp, device, model, "adamw").train(stop_at)
    resumed = Run(amp, device, model, "adamw").resumed_from(stopped)
    assert_same_run(resumed.train(14 - stop_at), unstopped)


@pytest.mark.slow
@by_model
def test_a_mixed_precision_run_ends_where_the_float64_run_ends(amp, device, model):
    """Rounding to fp16 moves a number by at most 2^-11 of itself, either way. A loss
    near 1 may come out a few such steps off; four of them, 2^-9, are allowed. What was
    learned is 64 times as much, so a wrong scale or lost updates would show."""
    mixed = Run(amp, device, model, "sgd with momentum")
    mixed.scaler = amp.GradScaler(device, init_scale=1024.0)
    mixed.train(60)
    exact = make_task(model, device)
    exact.inputs = exact.inputs.double()
    train_in_float64(exact.model, OPTIMIZERS["sgd with momentum"], exact.loss, 60)
    with torch.no_grad():
        exact_loss, mixed_loss = exact.loss(0).item(), mixed.task.loss(0).item()
        untrained_loss = make_task(model, device).loss(0).item()
    assert untrained_loss - exact_loss > 2.0**-3
    assert abs(mixed_loss - exact_loss) < 2.0**-9

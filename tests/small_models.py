"""Four small models, each with data and a loss: what the training laws train.

A multilayer perceptron, a convolutional net with batch norm, an LSTM and a
transformer layer: together they use every category of the op lists. Same seed, same
weights, same batches.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 4
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd with momentum": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, 0.01),
    "adamw": lambda params: torch.optim.AdamW(params, 0.01, weight_decay=0.1),
}


@contextlib.contextmanager
def an_lstm_that_runs() -> Iterator[None]:
    """PyTorch's fused LSTM, or the one it falls back on where that cannot run.

    A CPU without 16-bit instructions has no fused kernel for halves, and torch.autocast
    asks for it all the same: a RuntimeError, with minamp as with PyTorch.
    """
    with contextlib.ExitStack() as stack:
        if not _can_fuse_lstm():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about GPUs of Intel
                stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        yield


@functools.cache
def _can_fuse_lstm() -> bool:
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(2, 2)(torch.ones(1, 1, 2))
    except RuntimeError:
        return False
    return True


class LastOutputOfLSTM(nn.Module):
    """Cell by cell: the fused kernel of nn.LSTM has no fp16 on many CPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, sequence: Tensor) -> Tensor:
        state = None
        for x in sequence.unbind(dim=1):
            state = self.cell(x, state)
        return self.head(state[0])


class MeanOfTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # No dropout: two runs must not need the same random numbers to be equal.
        self.layer = nn.TransformerEncoderLayer(
            8, nhead=2, dim_feedforward=16, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(8, CLASSES)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.head(self.layer(sequence).mean(dim=1))


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def _conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (_perceptron, (12,)),
    "conv net with batch norm": (_conv_net, (2, 6, 6)),
    "lstm": (LastOutputOfLSTM, (5, 6)),
    "transformer": (MeanOfTransformer, (5, 8)),
}


@dataclass
class Task:
    """A model with its batches; `loss` runs the forward pass of one step."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor

    def loss(self, step: int) -> Tensor:
        at = step % len(self.inputs)
        logits = self.model(self.inputs[at])
        return F.cross_entropy(logits.to(self._loss_dtype), self.targets[at])

    @property
    def _loss_dtype(self) -> torch.dtype:
        is_double = self.inputs.dtype == torch.float64
        return torch.float64 if is_double else torch.float32


def make_task(name: str, device: str, seed: int = 0) -> Task:
    """The named model with four batches of eight samples, the same for a seed."""
    build, shape = MODELS[name]
    torch.manual_seed(seed)
    inputs, targets = torch.randn(4, 8, *shape), torch.randint(CLASSES, (4, 8))
    return Task(build().to(device), inputs.to(device), targets.to(device))

"""Who takes part: each recipe of minamp, and what PyTorch itself offers in its place.

A `Run` is one model being trained one way.  PyTorch's way is written out here, so that
the reader can lay it beside `minamp/loop/train_step.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minamp
from _common import DTYPES
from _data import Batch

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class Contestant:
    """Matrix products in `dtype`, brought about `by` PyTorch or a recipe of minamp."""

    dtype: str
    by: str
    recipe: str | None = None  # None is PyTorch itself, the reference of its dtype

    def __str__(self) -> str:
        return f"{self.dtype} {self.by}"

    def start(
        self, model: nn.Module, make_optimizer: MakeOptimizer, **scaling: float
    ) -> Run:
        optimizer = make_optimizer(model)
        if self.recipe is None:
            return TorchRun(model, optimizer, DTYPES[self.dtype], **scaling)
        if self.by in SIXTEEN_BITS:
            run = MinampRun(model, optimizer, self.recipe, **scaling)
            SIXTEEN_BITS[self.by](model, optimizer, DTYPES[self.dtype])
            return run
        return MinampRun(model, optimizer, self.recipe, **scaling)


# Half weights without masters: what is kept of an update has 16 bits, or none.
SIXTEEN_BITS = {
    "minamp Kahan": minamp.KahanSummation,
    "minamp stoch.": minamp.StochasticRounding,
}


def contestants(dtype: str, sixteen_bits: bool = False) -> list[Contestant]:
    """Full precision, and each half format asked for; PyTorch first in each.

    With `sixteen_bits` also half weights without masters, in bf16.
    """
    halves = ["fp16", "bf16"] if dtype == "all" else [dtype]
    everyone = [
        Contestant("fp32", "PyTorch"),
        Contestant("fp32", "minamp", "fp32"),
    ]
    for half in halves:
        everyone += [
            Contestant(half, "torch.amp"),
            Contestant(half, "minamp autocast", f"{half}_autocast"),
            Contestant(half, "minamp masters", f"{half}_masters"),
        ]
        if sixteen_bits and half == "bf16":
            everyone += [Contestant(half, by, "bf16_autocast") for by in SIXTEEN_BITS]
    return everyone


@dataclass(frozen=True)
class Score:
    """How a model does on data it never saw."""

    loss: float
    accuracy: float
    answers: int


class Run:
    """One model being trained one way."""

    model: nn.Module
    region: AbstractContextManager[Any]
    scaler: Any

    def step(self, batch: Batch) -> Tensor:
        """Train on one batch; its loss, on the device, unscaled."""
        raise NotImplementedError

    def weights_fp32(self) -> dict[str, Tensor]:
        """The weights being trained, by name, in full precision."""
        return {name: p.detach().float() for name, p in self.model.named_parameters()}

    @torch.no_grad()
    def score(self, batch: Batch) -> Score:
        """Mean loss and share of right answers, computed in the region of training."""
        inputs, classes = batch
        self.model.eval()
        with self.region:
            logits = self.model(inputs)
            loss = F.cross_entropy(logits.flatten(0, -2), classes.flatten())
        self.model.train()
        right = logits.argmax(-1) == classes
        return Score(loss.item(), right.float().mean().item(), right.numel())


class TorchRun(Run):
    """The loop of PyTorch's documentation; in float32 both parts are switched off."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dtype: torch.dtype,
        **scaling: Any,
    ) -> None:
        device, half = next(model.parameters()).device.type, dtype is not torch.float32
        self.model, self.optimizer = model, optimizer
        self.region = torch.autocast(device, dtype if half else None, enabled=half)
        self.scaler = torch.amp.GradScaler(
            device, enabled=dtype is torch.float16, **scaling
        )

    def step(self, batch: Batch) -> Tensor:
        with self.region:
            loss = loss_of(self.model, batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()


class MinampRun(Run):
    """The same loop, its parts made by a recipe."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        recipe: str,
        **scaling: Any,
    ) -> None:
        self.parts = minamp.RECIPES[recipe].parts(model, optimizer, **scaling)
        self.model = model
        self.region, self.scaler = self.parts.region, self.parts.scaler

    def step(self, batch: Batch) -> Tensor:
        return minamp.train_step(self.parts, loss_of, batch).loss

    def weights_fp32(self) -> dict[str, Tensor]:
        if self.parts.masters is None:
            return super().weights_fp32()
        return self.parts.masters.state_dict()


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy; the model gives logits whose last dimension is the class."""
    inputs, classes = batch
    return F.cross_entropy(model(inputs).flatten(0, -2), classes.flatten())

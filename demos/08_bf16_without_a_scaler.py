"""Does bf16 train without a loss scaler, where fp16 needs one?

bf16 reaches as far down as float32, so no gradient is too small for it.  A transformer
learns to predict Python source, character by character: in full precision, in fp16 with
a scaler and without, and in bf16 without one.  The loss stands for one of many, with a
weight of 1e-4: its gradients are small.

    python demos/08_bf16_without_a_scaler.py            60 steps each
    python demos/08_bf16_without_a_scaler.py --quick    10
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import _common as common
import _lesson
import minamp
from _data import Source, seeded
from _lesson import SCALE
from _models import CharTransformer

WEIGHT = 1e-4


@dataclass(frozen=True)
class Way:
    """A format, the package that gives region and scaler, and whether it scales."""

    dtype: str
    amp: Any
    scaled: bool

    def __str__(self) -> str:
        if self.dtype == "fp32":
            return "fp32"
        scaler = "scaler" if self.scaled else "no scaler"
        return f"{self.dtype} {self.amp.__name__}, {scaler}"


WAYS = (
    Way("fp32", torch.amp, scaled=False),
    Way("fp16", torch.amp, scaled=True),
    Way("fp16", minamp, scaled=True),
    Way("fp16", minamp, scaled=False),
    Way("bf16", torch.amp, scaled=False),
    Way("bf16", minamp, scaled=False),
)


def train(way: Way, data: Source, steps: int) -> tuple[list[float], float]:
    """The loss of each step, and the share of the last one's gradients that are 0."""
    torch.manual_seed(0)
    model, draws = CharTransformer().to(data.device), seeded(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-12)
    half, kind = way.dtype != "fp32", data.device.type
    region = way.amp.autocast(kind, common.DTYPES[way.dtype] if half else None, half)
    scaler = way.amp.GradScaler(kind, init_scale=SCALE, enabled=way.scaled)
    losses = []
    for _ in range(steps):
        text, following = data.batch(draws)
        optimizer.zero_grad()
        with region:
            logits = model(text).flatten(0, 1)
            loss = F.cross_entropy(logits, following.flatten())
        scaler.scale(WEIGHT * loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    # Embeddings have zeros of their own, for characters that did not occur.
    blocks = [weight.grad for weight in model.blocks.parameters()]
    return losses, share_of_zeros(blocks)


def share_of_zeros(tensors: list[Tensor]) -> float:
    zeros = sum(int((tensor == 0).sum()) for tensor in tensors)
    return zeros / sum(tensor.numel() for tensor in tensors)


def last(losses: list[float]) -> float:
    """The mean of the last fifth: single batches differ much."""
    end = losses[-max(1, len(losses) // 5) :]
    return sum(end) / len(end)


def draw(curves: dict[Way, list[float]]) -> Any:
    drawn, ((ax,),) = common.figure(1, 1)
    drawn.set_size_inches(7.5, 3.6)
    for way, losses in curves.items():
        broad = way.amp is not minamp
        look = {"lw": 5, "alpha": 0.35} if broad else {"lw": 1.4}
        if way.dtype == "fp16" and not way.scaled:
            look["ls"] = (0, (4, 2))
        ax.plot(losses, label=str(way), color=common.COLOURS[way.dtype], **look)
    ax.set(title="training loss of a transformer on source code", xlabel="step")
    ax.legend(ncols=2, fontsize=9)
    return drawn


def main() -> int:
    args = _lesson.begin(__doc__, __file__)
    data, steps = Source.load(args.device, 200_000), 10 if args.quick else 60
    curves, zeros = {}, {}
    for way in WAYS:
        curves[way], zeros[way] = train(way, data, steps)
    made = common.table(
        f"{steps} steps", "", "loss of the last fifth", "gradients that are 0"
    )
    for way, losses in curves.items():
        made.add_row(str(way), f"{last(losses):.6f}", f"{zeros[way]:.1%}")
    common.console.print(made)
    common.save_figure(draw(curves), args.out / "bf16_without_a_scaler.svg")

    full, *_, bare, torchs, ours = WAYS
    off = abs(last(curves[ours]) - last(curves[full]))
    off_bare = abs(last(curves[bare]) - last(curves[full]))
    return common.conclude(
        f"Without a scaler, bf16 loses {zeros[ours]:.1%} of the gradients and fp16 "
        f"{zeros[bare]:.1%}; the loss ends {off:.4f} from full precision's in bf16 and "
        f"{off_bare:.4f} in fp16; minamp's bf16 run is torch.amp's to the bit.",
        curves[ours] == curves[torchs]
        and zeros[ours] < 0.01
        and zeros[bare] > 0.2
        and off < min(0.1, off_bare),
    )


if __name__ == "__main__":
    sys.exit(main())

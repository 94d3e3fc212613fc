"""What does autocast decide, call by call, and why?

A small transformer reads a few lines of source code, and each call it makes is noted on
the way: what it was given, what it gave back in a region of minamp and in one of
torch.amp, on which list it stands for this device and for CUDA, and the reason.

    python demos/05_what_autocast_decides.py
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

import _common as common
import _lesson
import minamp
from _data import Batch, Source, seeded
from _models import CharTransformer
from minamp.policy.op_lists import Row

NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Call:
    """A call by its name, the dtypes it was given, and the dtype it gave back."""

    name: str
    given: str
    gave: str


class Notes(TorchFunctionMode):
    """Note each call that computes with floats, as Python makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given, gave = dtypes_of((args, kwargs)), dtypes_of(result)
        name = func.__name__.strip("_")
        if given and gave and name not in NO_ARITHMETIC:
            self.calls.append(Call(name, given, gave))
        return result


# They look at the same numbers in another order, or at none.
NO_ARITHMETIC = {"get", "transpose", "permute", "flatten", "unflatten", "unbind"}
NO_ARITHMETIC |= {"ones_like", "getitem"}


def dtypes_of(values: Any) -> str:
    """The float dtypes among some values, each once: "fp32", or "bf16, fp32"."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return ", ".join(sorted({NAMES[t.dtype] for t in tensors if t.dtype in NAMES}))


def calls_of(
    model: nn.Module, batch: Batch, region: AbstractContextManager[Any]
) -> list[Call]:
    """Every call of a forward pass and its loss, in order."""
    text, following = batch
    with region, Notes() as notes:
        logits = model(text).flatten(0, 1)
        # F.cross_entropy makes these two inside, where Python does not see them.
        F.nll_loss(F.log_softmax(logits, -1), following.flatten())
    return notes.calls


def row_of(name: str, device_type: str) -> Row | None:
    """Where a call stands on PyTorch's lists; Python has no names for overloads."""
    rows = minamp.torch_lists().tables.get(device_type, {})
    return next((row for op, row in rows.items() if op.split(".")[0] == name), None)


def as_table(ours: list[Call], theirs: list[Call], device_type: str) -> Table:
    columns = "given", "minamp", "torch.amp", f"list on {device_type}", "list on cuda"
    made = common.table("Calls of a transformer", "", "times", *columns)
    counts = Counter(zip(ours, theirs, strict=True))
    for (our, their), count in counts.items():
        rows = row_of(our.name, device_type), row_of(our.name, "cuda")
        lists = [row.category.value if row else "-" for row in rows]
        made.add_row(our.name, str(count), our.given, our.gave, their.gave, *lists)
    return made


def as_reasons(calls: list[Call], device_type: str) -> Table:
    made = common.table("Why", "", "on", "reason")
    made.columns[1].justify = made.columns[2].justify = "left"
    made.columns[2].no_wrap = False
    reasons: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(call.name for call in calls):
        for kind in dict.fromkeys((device_type, "cuda")):
            if row := row_of(name, kind):
                reasons.setdefault((name, row.why), []).append(kind)
    for (name, why), kinds in reasons.items():
        made.add_row(name, ", ".join(kinds), why)
    return made


def draw(ours: list[Call], theirs: list[Call]) -> Any:
    """The forward pass as two strips, a field for each call, coloured by its dtype."""
    drawn, ((ax,),) = common.figure(1, 1)
    drawn.set_size_inches(11, 2.4)
    for height, calls in ((1, ours), (0, theirs)):
        colours = [common.COLOURS[call.gave] for call in calls]
        ax.bar(range(len(calls)), 0.9, bottom=height, width=0.92, color=colours)
    ax.set_yticks([1.45, 0.45], ["minamp", "torch.amp"])
    ax.set_xticks(range(len(ours)), [call.name for call in ours], rotation=90)
    ax.set(title="each call in order, coloured by its result: blue bf16, grey fp32")
    ax.margins(x=0.01)
    ax.grid(visible=False)
    return drawn


def main() -> int:
    args = _lesson.begin(__doc__, __file__, quick="no difference: it is quick")
    kind, bf16 = args.device.type, torch.bfloat16
    data = Source.load(args.device, characters=20_000)
    model, batch = CharTransformer().to(args.device), data.batch(seeded(0))
    ours = calls_of(model, batch, minamp.autocast(kind, bf16))
    theirs = calls_of(model, batch, torch.autocast(kind, bf16))
    common.console.print(as_table(ours, theirs, kind))
    common.console.print(as_reasons(ours, kind))
    common.save_figure(draw(ours, theirs), args.out / "what_autocast_decides.svg")
    halves = sum(call.gave == "bf16" for call in ours)
    return common.conclude(
        f"In all {len(ours)} calls minamp chose as torch.amp does: {halves} gave bf16, "
        f"{len(ours) - halves} fp32.",
        ours == theirs and 0 < halves < len(ours),
    )


if __name__ == "__main__":
    sys.exit(main())

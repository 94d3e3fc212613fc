"""The figure of `compare.py`: a column a task, PyTorch's curves under minamp's."""

from __future__ import annotations

from typing import Any

import _common as common
from _compare_report import Trace, reference_of

# PyTorch's curve is broad and pale, so that minamp's is seen to lie on it.
BROAD = {"linewidth": 5, "alpha": 0.3}
STYLES = {
    "PyTorch": BROAD,
    "torch.amp": BROAD,
    "minamp": {"linewidth": 1.2},
    "minamp autocast": {"linewidth": 1.2},
    "minamp masters": {"linewidth": 1.2, "linestyle": (0, (2, 2))},
    "minamp Kahan": {"linewidth": 0.8, "linestyle": (0, (1, 3))},
    "minamp stoch.": {"linewidth": 0.8, "linestyle": (0, (4, 2, 1, 2))},
}


def draw(traces: list[Trace]) -> Any:
    """Loss, how far it is from full precision's, and the loss scale where there is one.

    Of several seeds the first is drawn.
    """
    first = [trace for trace in traces if trace.seed == 0]
    tasks = list(dict.fromkeys(trace.task for trace in first))
    scaled = any(trace.contestant.dtype == "fp16" for trace in first)
    drawn, axes = common.figure(2 + scaled, len(tasks), sharex="col")
    for column, task in zip(axes.T, tasks, strict=True):
        for axis, title in zip(column, titles(task), strict=False):
            axis.set_title(title)
        column[-1].set_xlabel("step")
        for trace in (t for t in first if t.task == task):
            draw_trace(trace, reference_of(trace, traces, "fp32"), column)
    names, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(names, labels, loc="outside lower center", ncols=4, fontsize=9)
    return drawn


def titles(task: str) -> tuple[str, str, str]:
    return f"{task}: training loss", "loss less that of fp32", "loss scale of fp16"


def draw_trace(trace: Trace, full: Trace, column: Any) -> None:
    """One contestant's curves."""
    look = STYLES[trace.contestant.by] | {
        "color": common.COLOURS[trace.contestant.dtype]
    }
    column[0].plot(trace.losses, label=str(trace.contestant), **look)
    pairs = zip(trace.losses, full.losses, strict=True)
    column[1].plot([half - whole for half, whole in pairs], **look)
    if trace.contestant.dtype == "fp16":
        column[2].step(range(len(trace.scales)), trace.scales, **look)
        column[2].set_yscale("log", base=2)

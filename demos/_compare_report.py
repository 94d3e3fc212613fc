"""What `compare.py` says about its runs: the table, the record, the finding."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from rich.table import Table

import _common as common
from _contestants import Contestant, Score

MIB = 2**20
WARM_UP = 2  # steps not timed: allocators, caches and libraries set themselves up


@dataclass
class Trace:
    """What one contestant did with one task and seed: a number a step, and the end."""

    task: str
    contestant: Contestant
    seed: int
    peak_bytes: int
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)  # after each step
    score: Score = Score(math.nan, math.nan, 0)
    difference: float = math.nan  # largest, from the weights of PyTorch's own run

    @property
    def skipped(self) -> int:
        """Steps that overflowed: the scale is lower after them."""
        return sum(after < before for before, after in pairwise(self.scales))

    def as_record(self) -> dict[str, Any]:
        return asdict(self) | {"skipped": self.skipped}


def as_table(traces: list[Trace]) -> Table:
    """One row a contestant; over several seeds means, for the worst the largest."""
    made = common.table(
        traces[0].task,
        *("", "ms/step", "ratio", "peak MiB", "loss", "accuracy"),
        *("max diff", "skipped", "scale"),
    )
    for group in by_contestant(traces):
        reference = [reference_of(trace, traces) for trace in group]
        if group == reference:
            made.add_section()
        made.add_row(
            str(group[0].contestant),
            f"{1e3 * median(timed(group)):.2f}",
            f"{ratio(group, reference):.2f}",
            f"{group[0].peak_bytes / MIB:.2f}",
            f"{fmean(t.score.loss for t in group):.4f}",
            f"{fmean(t.score.accuracy for t in group):.1%}",
            f"{max(t.difference for t in group):.1e}",
            f"{sum(t.skipped for t in group)}",
            f"2^{math.log2(group[0].scales[-1]):.0f}",
        )
    return made


def timed(group: list[Trace]) -> list[float]:
    return [second for trace in group for second in after_warm_up(trace.seconds)]


def after_warm_up(seconds: list[float]) -> list[float]:
    return seconds[min(WARM_UP, len(seconds) - 1) :]


def ratio(group: list[Trace], reference: list[Trace]) -> float:
    """Median over the steps of this contestant's time by that of PyTorch's own run.

    Both took each step within the same moments, so pairs are compared, not medians.
    """
    pairs = zip(timed(group), timed(reference), strict=True)
    return median(ours / theirs for ours, theirs in pairs)


def by_contestant(traces: list[Trace]) -> list[list[Trace]]:
    """The traces of each contestant, one a seed."""
    found: dict[Contestant, list[Trace]] = {}
    for trace in traces:
        found.setdefault(trace.contestant, []).append(trace)
    return list(found.values())


def reference_of(trace: Trace, traces: list[Trace], dtype: str | None = None) -> Trace:
    """PyTorch's own run of the same task and seed, in the same or in another dtype."""
    wanted = (trace.task, trace.seed, dtype or trace.contestant.dtype)
    return next(
        other
        for other in traces
        if other.contestant.recipe is None
        and (other.task, other.seed, other.contestant.dtype) == wanted
    )


def finding(traces: list[Trace]) -> tuple[str, bool]:
    """The sentence, and whether it is true of these traces."""
    same_law = [
        trace
        for trace in traces
        if trace.contestant.by in ("minamp", "minamp autocast")
    ]
    same = [is_same(trace, reference_of(trace, traces)) for trace in same_law]
    near = [is_near(trace, reference_of(trace, traces, "fp32")) for trace in traces]
    sentence = (
        f"{sum(same)} of {len(same)} runs of minamp without masters are PyTorch's own "
        "to the last bit (every loss, every scale, every weight), and in "
        f"{sum(near)} of {len(near)} runs the accuracy is within two standard errors "
        "of full precision's."
    )
    return sentence, all(same) and all(near)


def is_same(ours: Trace, theirs: Trace) -> bool:
    curves = (ours.losses, ours.scales) == (theirs.losses, theirs.scales)
    return curves and ours.difference == 0


def is_near(half: Trace, full: Trace) -> bool:
    """Is the difference of two accuracies less than chance alone could make it?

    A share p of n right answers has the standard error sqrt(p (1 - p) / n).
    """
    p, n = full.score.accuracy, full.score.answers
    return abs(half.score.accuracy - p) <= 2 * math.sqrt(p * (1 - p) / n)

"""What becomes of a sum whose running total is a half?

The pixels of scikit-learn's handwritten digits, 0 to 16 each, added up.  One by one in
half precision the total first drifts, since each addition rounds; then it stalls, since
a pixel is less than half a step of the total.  And a total past 65504 does not exist in
fp16.  That is why reductions and losses belong into float32.

    python demos/02_summing_in_half.py            all that are not blank
    python demos/02_summing_in_half.py --quick    the first 8,000
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

import _common as common
import _lesson
import minamp
from _data import Digits


def running_sum(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """The total after each term, rounded to `dtype` each time: the sum by hand."""
    total, totals = torch.zeros((), dtype=dtype), torch.empty(len(terms))
    for i, term in enumerate(terms.cpu().to(dtype)):
        total = total + term
        totals[i] = total
    return totals


def stall(totals: Tensor) -> float:
    """The last total, if nothing was added for the whole last tenth; else NaN."""
    end = totals[-len(totals) // 10 :]
    return float(end[-1]) if (end == end[-1]).all() else float("nan")


def stall_of(fmt: minamp.FloatFormat, largest_term: int = 16) -> float:
    """Where the step is twice the largest term: a tie, which the even total wins."""
    return float(2 * largest_term / fmt.epsilon)


def sums_of_halves(terms: Tensor) -> dict[str, Tensor]:
    """`terms.sum()` of fp16 terms, as each region has it."""
    kind = terms.device.type
    safe = minamp.safe_lists()
    regions = {
        "halves.sum()": nullcontext(),
        "... in torch.autocast": torch.autocast(kind, torch.float16),
        "... in minamp.autocast": minamp.autocast(kind, torch.float16),
        "... with safe_lists()": minamp.autocast(kind, torch.float16, op_lists=safe),
    }
    sums = {}
    for name, region in regions.items():
        with region:
            sums[name] = terms.half().sum()
    return sums


def as_table(
    truth: float, by_hand: dict[str, Tensor], in_regions: dict[str, Tensor]
) -> Table:
    made = common.table("The sum of the pixels", "", "sum", "of the truth", "dtype")
    made.add_row("exact", f"{truth:,.0f}")
    for name, totals in by_hand.items():
        total = totals[-1].item()
        made.add_row(f"one by one in {name}", f"{total:,.0f}", f"{total / truth:.1%}")
    for name, total in in_regions.items():
        share = f"{total / truth:.1%}" if total.isfinite() else "overflow"
        dtype = str(total.dtype).removeprefix("torch.")
        made.add_row(name, f"{total:,.0f}", share, dtype)
    return made


def draw(by_hand: dict[str, Tensor], exact: Tensor) -> Any:
    drawn, ((totals, errors),) = common.figure(1, 2)
    for name, totals_here in by_hand.items():
        look = {"color": common.COLOURS[name], "label": name, "lw": 2}
        totals.plot(totals_here, **look)
        off = (totals_here - exact).abs() / exact
        errors.plot(off.where(off > 0, float("nan")), **look)  # log of 0: no point
    totals.set(title="running total", xlabel="pixels added", xscale="log", yscale="log")
    errors.set(title="share of the true total that is lost", xlabel="pixels added")
    errors.set(yscale="log", ylim=(1e-4, 2), xlim=(1, None), xscale="log")
    totals.legend()
    return drawn


def main() -> int:
    args = _lesson.begin(__doc__, __file__, quick="only 8,000 pixels")
    pixels = 16 * Digits.load(args.device).images.flatten()  # whole numbers, 0 to 16
    pixels = pixels[pixels > 0][: 8_000 if args.quick else None]
    exact = pixels.cpu().double().cumsum(0)
    by_hand = {
        name: running_sum(pixels, dtype) for name, dtype in common.DTYPES.items()
    }
    in_regions = sums_of_halves(pixels)

    truth = exact[-1].item()
    common.console.print(as_table(truth, by_hand, in_regions))
    common.save_figure(draw(by_hand, exact), args.out / "summing_in_half.svg")

    _, torchs, ours, safe = in_regions.values()
    return common.conclude(
        f"One by one, fp16 stalls at {stall(by_hand['fp16']):,.0f} and bf16 at "
        f"{stall(by_hand['bf16']):,.0f} of {truth:,.0f}; float32 is exact, and so is "
        f"minamp.autocast with safe_lists(), which sums halves in float32.",
        stall(by_hand["fp16"]) == stall_of(minamp.FP16)
        and stall(by_hand["bf16"]) == stall_of(minamp.BF16)
        and by_hand["fp32"][-1] == safe == truth
        and torchs.dtype == ours.dtype
        and torch.equal(torchs, ours),
    )


if __name__ == "__main__":
    sys.exit(main())

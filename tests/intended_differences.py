"""Where minamp means to differ from torch.amp, why, and which test says so.

One row a difference. The test named in the row carries the marker
`intended_difference("name")`: it passes for minamp, and `--implementation torch`
expects it to fail, so a row that is no longer true is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """What torch.amp does, what minamp does instead, and the reason."""

    name: str
    torch_does: str
    minamp_does: str
    reason: str


DIFFERENCES: tuple[Difference, ...] = ()


def by_name(name: str) -> Difference:
    for difference in DIFFERENCES:
        if difference.name == name:
            return difference
    raise LookupError(
        f"{name!r} is not in the table of tests/intended_differences.py: add a row "
        "that says what torch.amp does, what minamp does, and why."
    )

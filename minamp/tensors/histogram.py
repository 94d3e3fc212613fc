"""Where the values of a tensor lie: how many of them sit at each power of two.

The one idea: whether a format can hold a tensor is a question about exponents. Count
the values by the e with 2^e <= |x| < 2^(e+1); draw the format's range over it, from
its smallest subnormal number to its largest; what sticks out on the left is lost to
underflow, on the right to overflow. A loss scale of 2^k moves the whole picture k
places to the right and changes nothing else: that is all loss scaling does
(Micikevicius et al. 2018, "Mixed precision training", figure 3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from minamp.numbers.formats import FloatFormat, floor_log2


@dataclass(frozen=True)
class ExponentHistogram:
    """How many values a tensor has at each power of two, and how many at none.

    `counts[e]` is the number of finite values with 2^e <= |x| < 2^(e+1). Zeros,
    infinities and NaN have no exponent and are counted apart. Histograms add up:
    `sum(map(exponent_histogram, tensors), ExponentHistogram({}))`.
    """

    counts: dict[int, int]
    zeros: int = 0
    infinities: int = 0
    nans: int = 0

    @property
    def total(self) -> int:
        """The number of all values, whatever they are."""
        return sum(self.counts.values()) + self.zeros + self.infinities + self.nans

    def __add__(self, other: ExponentHistogram) -> ExponentHistogram:
        return ExponentHistogram(
            dict(sorted((Counter(self.counts) + Counter(other.counts)).items())),
            self.zeros + other.zeros,
            self.infinities + other.infinities,
            self.nans + other.nans,
        )

    def scaled_by_power_of_two(self, power: int) -> ExponentHistogram:
        """The histogram of the values times 2^power: the same one, moved right."""
        moved = {exponent + power: n for exponent, n in self.counts.items()}
        return ExponentHistogram(moved, self.zeros, self.infinities, self.nans)

    def share_below_smallest_subnormal(self, fmt: FloatFormat) -> float:
        """The share of the non-zero finite values that `fmt` is too coarse for.

        Those under half the smallest subnormal number become zero; the others come
        up to it, with an error as large as themselves. `share_lost_to_zero` asks
        the tensor itself and counts only the former.
        """
        return self._share(lambda e: e < floor_log2(fmt.smallest_subnormal))

    def share_subnormal(self, fmt: FloatFormat) -> float:
        """The share that `fmt` holds, but with fewer than its full mantissa bits."""
        lowest = floor_log2(fmt.smallest_subnormal)
        return self._share(lambda e: lowest <= e < fmt.min_exponent)

    def share_above_largest(self, fmt: FloatFormat) -> float:
        """The share whose power of two is past the largest one of `fmt`."""
        return self._share(lambda e: e > fmt.max_exponent)

    def _share(self, is_inside: Callable[[int], bool]) -> float:
        non_zero = sum(self.counts.values())
        inside = sum(n for exponent, n in self.counts.items() if is_inside(exponent))
        return inside / non_zero if non_zero else 0.0


def exponent_histogram(tensor: Tensor) -> ExponentHistogram:
    """Count the values of a floating-point tensor of any shape, dtype and device.

    Exact for every value, subnormal ones too. Raises TypeError for integers and
    complex numbers. One transfer to the host, of at most a few thousand counts.
    """
    values = _in_wide_format(tensor.detach())
    is_counted = values.isfinite() & (values != 0)
    # frexp splits x = mantissa * 2^exponent with 1/2 <= |mantissa| < 1.
    exponents = torch.frexp(values[is_counted]).exponent - 1
    powers, counts = torch.unique(exponents, return_counts=True)
    return ExponentHistogram(
        dict(zip(powers.tolist(), counts.tolist(), strict=True)),
        zeros=int((values == 0).sum()),
        infinities=int(values.isinf().sum()),
        nans=int(values.isnan().sum()),
    )


def share_lost_to_zero(tensor: Tensor, fmt: FloatFormat) -> float:
    """The share of the non-zero values that become zero when stored in `fmt`.

    Exactly those with |x| <= smallest subnormal / 2: the tie goes to the even
    neighbour, and that is zero. NaN and infinities count as not lost.
    """
    magnitudes = _in_wide_format(tensor.detach()).abs()
    non_zero = int((magnitudes != 0).sum())
    limit = float(fmt.smallest_subnormal / 2)
    lost = int(((magnitudes != 0) & (magnitudes <= limit)).sum())
    return lost / non_zero if non_zero else 0.0


def _in_wide_format(tensor: Tensor) -> Tensor:
    """The same numbers in float32, or float64 if they are that already."""
    if not tensor.is_floating_point():
        raise TypeError(
            f"A {tensor.dtype} tensor has no floating-point exponents to count. "
            "Convert it first: tensor.float(), or torch.view_as_real for complex."
        )
    return tensor if tensor.dtype == torch.float64 else tensor.float()

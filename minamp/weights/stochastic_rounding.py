"""Stochastic rounding: half weights without masters, right on average.

Rounding to the nearest loses every update below half an ulp.  Rounding by a coin keeps
it on average.  Between its neighbours  low <= x < low + ulp  a value is rounded

    up    with probability (x - low) / ulp,
    down  otherwise,                            so that   E[round(x)] = x.

A step of a thousandth of an ulp moves one weight in a thousand by a whole ulp.  Nothing
is kept but the weight, at the price of noise: after n steps sqrt(n)/2 ulps at most.
(Gupta et al., "Deep Learning with Limited Numerical Precision", 2015.  Elsewhere it is
a switch of one optimizer, in bfloat16; here it goes with any optimizer, and float16.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from minamp.weights.half_weights import HalfWeights
from minamp.weights.pieces import pieces
from minamp.weights.twins import empty


class StochasticRounding(HalfWeights):
    """Train half weights alone; called like ``MasterWeights``, which see.

    The coin is torch's random generator of the weights' device: seed it, and save it in
    the checkpoint, as for dropout (``TrainingState`` does).  Moments of the optimizer
    stay float32: squares of gradients underflow in float16, and in bfloat16 a decay by
    0.999 is rounded away.
    """

    memory_key = "stochastic_rounding"

    @torch.no_grad()
    def unpack(self) -> None:
        for weight, twin in zip(self.weights, self.twins, strict=True):
            twin.data = weight.float()

    @torch.no_grad()
    def pack(self) -> None:
        for pair in zip(self.weights, self.twins, strict=True):
            for weight, twin in pieces(*pair):
                weight.copy_(round_stochastically(twin, weight.dtype))

    def release(self) -> None:
        for twin in self.twins:
            empty(twin)


def round_stochastically(value_fp32: Tensor, dtype: torch.dtype) -> Tensor:
    """``value_fp32`` rounded to ``dtype``, float16 or bfloat16, up or down by chance.

    Exactly unbiased within the range of ``dtype``: the coin has 24 bits, the fraction
    of a normal number at most 16.  What ``dtype`` can hold comes back unchanged, and so
    do infinities and NaN.
    """
    ulp = _ulp(value_fp32, dtype)
    steps = value_fp32 / ulp  # exact, since ulp is a power of two
    low = steps.floor()
    up = torch.rand_like(steps) < steps - low
    return ((low + up) * ulp).copysign(value_fp32).to(dtype)  # zeros keep their sign


def _ulp(value_fp32: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of neighbours in ``dtype`` around each value.

    A float32 without its sign and its 23 bits of mantissa is the power of two below it.
    """
    half = torch.finfo(dtype)
    power_of_two = (value_fp32.view(torch.int32) & 0x7F800000).view(torch.float32)
    smallest = half.smallest_normal * half.eps  # the subnormal numbers' distance
    # The upper bound is for infinity and NaN: they shall divide to what they are.
    return (power_of_two * half.eps).clamp(smallest, torch.finfo(torch.float32).max)

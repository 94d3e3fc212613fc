"""Kahan summation: half weights that remember, in half, what rounding cut off.

A half weight and a half *rest* stand for one number, their sum:

    twin   = weight + rest           exact, in float32
    twin  <- twin + update           the optimizer's step
    weight = round(twin)
    rest   = round(twin - weight)    the part of twin that the weight cannot hold

An update below half an ulp goes into the rest, and moves the weight when the rest has
grown to half an ulp.  So it is masters at 2 bytes instead of 4, with the digits of two
half numbers: 16 in bfloat16, 22 in float16, of float32's 24.  Below that, updates
vanish as ever.  (Kahan, 1965; for training: Zamirai et al., "Revisiting BFloat16
Training", 2020.)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from minamp.weights.half_weights import HalfWeights
from minamp.weights.pieces import pieces
from minamp.weights.twins import empty


class KahanSummation(HalfWeights):
    """Train half weights with 16-bit rests; called like ``MasterWeights``, which see.

    The rests are in ``optimizer.state_dict()``, the weights in the model's own.
    Moments of the optimizer stay float32: squares of gradients underflow in float16,
    and in bfloat16 a decay by 0.999 is rounded away.
    """

    memory_key = "kahan_rests"

    def adopted(self, weight: nn.Parameter, twin: nn.Parameter) -> None:
        self.memory.append((twin.detach() - weight.detach()).to(weight.dtype))

    @torch.no_grad()
    def unpack(self) -> None:
        for weight, rest, twin in self._triples():
            twin.data = weight.float()
            for piece, rest_of_it in pieces(twin.data, rest):
                piece.add_(rest_of_it.float())

    @torch.no_grad()
    def pack(self) -> None:
        for triple in self._triples():
            for weight, rest, twin in pieces(*triple):
                _split(twin, weight, rest)

    def release(self) -> None:
        for twin in self.twins:
            empty(twin)

    @torch.no_grad()
    def follow(self) -> None:
        """A rest above half an ulp belongs to a weight that is gone."""
        for weight, rest in zip(self.weights, self.memory, strict=True):
            # Slightly less than the rest, since a rest of half an ulp is fine: a tie.
            fits = (weight + 0.99 * rest.float()).to(weight.dtype) == weight
            rest.copy_(torch.where(fits, rest, 0))

    def _triples(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return zip(self.weights, self.memory, self.twins, strict=True)


def _split(twin: Tensor, weight: Tensor, rest: Tensor) -> None:
    """Write ``twin`` into ``weight`` and ``rest``.

    What the step did not move keeps its bits: split anew, a tie might fall to the other
    side.  (The sum is exact: it was one float32 number before.)
    """
    moved = twin != weight.float() + rest.float()
    weight.copy_(torch.where(moved, twin, weight.float()))
    rest.copy_(torch.where(moved, twin - weight.float(), rest.float()))

"""Read every element of a list of CPU tensors once, and know whether all are finite.

Memory traffic is the cost: a gradient of 4 MB takes longer to fetch than to square. So
there is one reading pass, a sum of products, and it answers two questions:

    norm         sqrt(sum of g * g)
    all finite   if the sum is: inf * g and NaN * g are never finite, nor a sum with one

The second question may multiply any two: half of the elements by the other half makes
half the products. The converse fails: products of finite numbers may overflow (1e20
times itself > 3.4e38). So a sum that is not finite starts a second, exact look; that is
rare, and never a wrong answer. (Tools that stop at a sum report an overflow for the
finite [3e38, 3e38].)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Short blocks keep float32 sums of squares exact enough: for random numbers the norm by
# `dot` over 8M elements is off by 8e-5, over 1M by 4e-6 (torch's own over 8M by 2e-4).
BLOCK = 2**20
TENSORS_PER_BLOCK = 256
# Above this many elements `dot` reads each tensor once and writes nothing. Below, the
# call costs more than the work: add tensors of one shape into a common accumulator.
SMALL = 2**16
# Up to this many, even adding costs more than copying: join them, in pieces that stay
# in the cache, and let `dot` read the piece.
TINY = 2**10
JOINED = 2**15


def sum_of_squares(tensors: list[Tensor]) -> float:
    """Of all elements. Inf or NaN if one is, or if a sum of squares overflows."""
    return sum(map(_sum_of_squares, _blocks(tensors)))


def has_nonfinite(tensors: list[Tensor]) -> bool:
    """Whether any element is inf or NaN; exact."""
    return any(map(_has_nonfinite, _blocks(tensors)))


def _has_nonfinite(block: list[Tensor]) -> bool:
    """The quick look at a block, and the exact one if that raises suspicion."""
    if math.isfinite(_sum_of_pairs(block)):
        return False
    return not all(map(_is_finite, block))


def _is_finite(tensor: Tensor) -> bool:
    """Exact, and still one pass: a NaN is both the smallest and the largest element."""
    smallest, largest = tensor.aminmax()
    return math.isfinite(smallest) and math.isfinite(largest)


def _blocks(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """CPU tensors in blocks: a large one; several small of one shape; tiny, joined."""
    for shape, group in _by_shape(tensors).items():
        size = shape.numel()
        if size > SMALL:
            yield from ([tensor] for tensor in group)
        elif size > TINY:
            yield from _slices(group, min(TENSORS_PER_BLOCK, BLOCK // size))
        elif size:
            joined = _slices(group, JOINED // size)
            yield from ([torch.stack(few)] if few[1:] else few for few in joined)


def _by_shape(tensors: list[Tensor]) -> dict[torch.Size, list[Tensor]]:
    shapes = {tensor.shape for tensor in tensors}
    if len(shapes) == 1:
        return {shapes.pop(): tensors}
    groups: dict[torch.Size, list[Tensor]] = {shape: [] for shape in shapes}
    for tensor in tensors:
        groups[tensor.shape].append(tensor)
    return groups


def _slices(tensors: list[Tensor], length: int) -> Iterator[list[Tensor]]:
    return (tensors[i : i + length] for i in range(0, len(tensors), length))


def _sum_of_squares(block: list[Tensor]) -> float:
    if len(block) == 1:
        pieces = torch.split(block[0].reshape(-1), BLOCK)
        return sum(float(piece.dot(piece)) for piece in pieces)
    return _sum_of_products(block, block)


def _sum_of_pairs(block: list[Tensor]) -> float:
    """Half of the elements times the other half."""
    if len(block) == 1:
        left, right = _halves(block[0].reshape(-1))
        return float(left.dot(right))
    return _sum_of_products(*_halves(block))


def _sum_of_products(left: list[Tensor], right: list[Tensor]) -> float:
    """Add up products one by one, acc += a * b, and then the elements of acc.

    It stays in the cache, and one multi-tensor call does the whole list: on the CPU it
    goes through the list in order, so one accumulator may serve all.
    """
    accumulator = torch.zeros_like(left[0])
    torch._foreach_addcmul_([accumulator] * len(left), left, right)
    return float(accumulator.sum())


def _halves(whole: Any) -> tuple[Any, Any]:
    """Of a list or a vector; of an odd number both have the one in the middle."""
    half = (len(whole) + 1) // 2
    return whole[:half], whole[-half:]

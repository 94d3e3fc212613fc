"""A list of gradients: are all finite, what is their norm, multiply them all.

Memory traffic is the cost here: a gradient of 4 MB takes longer to fetch than to
square. So there is one reading pass, the *sum of squares*, and it answers two
questions:

    norm         sqrt(sum of g**2)
    all finite   if the sum is: inf**2 = inf and NaN**2 = NaN cannot cancel

The converse fails: the squares of finite gradients may overflow (1e20**2 > 3.4e38). So
a sum that is not finite starts a second, exact look; that is rare, and never a wrong
answer. (Tools that stop at a sum report an overflow for the finite [3e38, 3e38].)

A host that may look at the sum before it goes on has to wait for it. On the CPU that is
free; on an accelerator it would stall the queue, so there the exact question (the
largest magnitude) is asked at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

# Below this many elements the call costs more than the work: add tensors of one shape
# into a common accumulator. Above, `dot` reads each tensor once and writes nothing.
SMALL = 2**16
# Large tensors are read in blocks of one megabyte of float32, which a core's cache
# holds: what is done next with a block finds it there.
BLOCK = 2**18
# Long float32 sums lose digits, so start anew after so many small tensors. (The blocks
# do it for large ones: `dot` over 8M elements would be 2e-5 off.)
TENSORS_PER_ACCUMULATOR = 256
LOW_PRECISION = (torch.float16, torch.bfloat16)

Groups = dict[tuple[torch.device, torch.dtype], list[Tensor]]


def values_of(grad: Tensor) -> Tensor:
    """The real, dense, local tensor that holds the numbers of a gradient.

    It shares memory with `grad`: the values of a sparse gradient, this rank's shard of
    a distributed one (DTensor), the real view of a complex one.
    """
    if type(grad) is not Tensor and hasattr(grad, "to_local"):
        grad = grad.to_local()
    if grad.is_sparse:
        # `values()` insists on a coalesced tensor; `_values()` is torch's only other
        # way.
        grad = grad._values()
    return torch.view_as_real(grad) if grad.is_complex() else grad


def by_device_and_dtype(tensors: Iterable[Tensor]) -> Groups:
    """Sort tensors into lists for multi-tensor calls; empty ones are left out."""
    groups: Groups = {}
    for tensor in tensors:
        if tensor.numel():
            groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return groups


def nonfinite(tensors: Sequence[Tensor]) -> Tensor:
    """1.0 if any element of any tensor is inf or NaN, else 0.0; exact, float32, 0-dim.

    The tensors have one device and one dtype (see `by_device_and_dtype`). The answer
    is on their device: asking does not synchronise an accelerator with the host.
    """
    if torch.compiler.is_compiling():
        return _nonfinite_elementwise(tensors)
    if tensors[0].is_cpu:
        certainly_finite = math.isfinite(sum_of_squares(tensors))
        return torch.zeros(()) if certainly_finite else _nonfinite_elementwise(tensors)
    largest = torch._foreach_norm(list(tensors), float("inf"))
    return (~torch.stack(largest).isfinite().all()).to(torch.float32)


def _nonfinite_elementwise(tensors: Sequence[Tensor]) -> Tensor:
    finite = torch.stack([tensor.isfinite().all() for tensor in tensors])
    return (~finite.all()).to(torch.float32)


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all elements of tensors of one device and dtype, float64, 0-dim.

    It is finite if and only if every element is (of float64 gradients, if their squares
    do not overflow either): that is why it is float64.
    """
    if tensors[0].is_cpu and not torch.compiler.is_compiling():
        squares = sum_of_squares(tensors)
        if math.isfinite(squares):
            return torch.tensor(math.sqrt(squares), dtype=torch.float64)
    return _norm_wide(tensors)


def _norm_wide(tensors: Sequence[Tensor]) -> Tensor:
    """The norm with each square taken in float64, where float32's cannot overflow."""
    device = tensors[0].device.type
    wide = torch.float32 if device == "mps" else torch.float64  # mps has no float64
    if device == "cpu":  # here the multi-tensor call squares before it widens
        norms = [torch.linalg.vector_norm(t, dtype=wide) for t in tensors]
    else:
        norms = list(torch._foreach_norm(list(tensors), 2, dtype=wide))
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def sum_of_squares(tensors: Sequence[Tensor]) -> float:
    """The sum over all elements of g**2, on the CPU, in one reading pass.

    A finite answer means that every element is finite. inf or NaN means nothing
    certain: a square may have overflowed.
    """
    if tensors[0].dtype in LOW_PRECISION:
        norms = [torch.linalg.vector_norm(t, dtype=torch.float32) for t in tensors]
        return sum(float(part) ** 2 for part in norms)
    parts = [flat.dot(flat) for flat in _flat_large(tensors)]
    for same_shape in _small_by_shape(tensors):
        for start in range(0, len(same_shape), TENSORS_PER_ACCUMULATOR):
            chunk = same_shape[start : start + TENSORS_PER_ACCUMULATOR]
            parts.append(_accumulated_squares(chunk))
    return sum(part.item() for part in parts)


def _flat_large(tensors: Sequence[Tensor]) -> list[Tensor]:
    large = [tensor.reshape(-1) for tensor in tensors if tensor.numel() > SMALL]
    return [block for flat in large for block in torch.split(flat, BLOCK)]


def _small_by_shape(tensors: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    groups: dict[torch.Size, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() <= SMALL:
            groups.setdefault(tensor.shape, []).append(tensor)
    return groups.values()


def _accumulated_squares(same_shape: list[Tensor]) -> Tensor:
    """Sum of squares, with acc += g * g for each tensor g of one shape.

    The accumulator stays in the cache, and one multi-tensor call does the whole list
    (on the CPU it goes through the list in order, so one accumulator may serve all).
    """
    accumulator = torch.zeros_like(same_shape[0])
    accumulators = [accumulator] * len(same_shape)
    torch._foreach_addcmul_(accumulators, same_shape, same_shape)
    return accumulator.sum()


def multiply_(tensors: list[Tensor], factor: Tensor) -> None:
    """Multiply tensors of one device and dtype in place by a 0-dim float32 tensor.

    Each product is rounded once, to the dtype of the tensor. For half tensors that
    takes care: 1/65536**2 underflows in fp16, so the factor must not be rounded before
    the product is taken.
    """
    if tensors[0].dtype in LOW_PRECISION:
        for tensor in tensors:
            tensor.copy_(tensor.float().mul_(factor))
    else:
        torch._foreach_mul_(tensors, factor)


def check_and_multiply_(tensors: list[Tensor], factor: Tensor) -> Tensor:
    """`nonfinite(tensors)`, then `multiply_(tensors, factor)`; returns the former.

    On the CPU large tensors go through memory once instead of twice: a block is
    checked, which fetches it, and multiplied before it has left the cache.
    """
    if torch.compiler.is_compiling() or not tensors[0].is_cpu:
        return _check_then_multiply_(tensors, factor)
    large = [t for t in tensors if t.numel() > SMALL and t.is_contiguous()]
    blocks = [[b] for t in large for b in torch.split(t.view(-1), BLOCK)]
    others = [t for t in tensors if t.numel() <= SMALL or not t.is_contiguous()]
    parts = [*blocks, others] if others else blocks
    flags = [_check_then_multiply_(part, factor) for part in parts]
    return flags[0] if len(flags) == 1 else torch.stack(flags).amax(0)


def _check_then_multiply_(tensors: list[Tensor], factor: Tensor) -> Tensor:
    flag = nonfinite(tensors)
    multiply_(tensors, factor)
    return flag

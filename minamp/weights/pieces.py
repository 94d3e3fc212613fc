"""Work on large tensors piece by piece, so that what comes between stays small.

A formula of five operations makes five tensors as large as the weight.  In pieces of a
million elements it makes five of 4 MiB, which on a CPU also stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

PIECE = 2**20  # elements


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of ``tensors``, all of one shape, cut alike along the first dimension."""
    first = tensors[0]
    if first.numel() <= PIECE:
        yield tensors
    else:
        rows = max(1, PIECE * first.shape[0] // first.numel())
        yield from zip(*(tensor.split(rows) for tensor in tensors), strict=True)

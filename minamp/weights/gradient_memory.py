"""Large float32 gradients, on a CPU: each step in the memory of the step before.

``zero_grad`` gives all gradients away after every step.  The C library keeps what it is
given for the next who asks, but blocks of 32 MiB and more go back to the operating
system, and memory that comes fresh from there is slow: each page is cleared when it is
first touched.  For 16.8 million elements the cast to float32 takes 32 ms into fresh
memory and 4.4 ms into old (measured; glibc).

So the memory of large gradients stays here and is used again, unless somebody still
holds the gradient that was in it.  (The price: it is there during the forward too.)  On
a GPU there is nothing to do: PyTorch's caching allocator does this for all tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


def float32_copy(grad_half: Tensor, twin: Tensor) -> Tensor:
    """``grad_half`` in float32, to become the gradient of ``twin``."""
    if grad_half.numel() < _LARGE or not grad_half.is_cpu or grad_half.is_sparse:
        return grad_half.float()
    memory = _memory.get(twin)
    if memory is None or _holders(memory) > _HOLDERS_ALONE:
        memory = _memory[twin] = torch.empty_like(grad_half, dtype=torch.float32)
    # An alias goes out, so that whoever holds the gradient counts as one more holder.
    grad_fp32: Tensor = memory.copy_(grad_half).detach()
    return grad_fp32


def _holders(tensor: Tensor) -> int:
    """How many tensors share the memory of ``tensor``: no public name tells it."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


_LARGE = 2**25 // 4  # elements of float32 in 32 MiB, glibc's M_MMAP_THRESHOLD at most
_memory = WeakTensorKeyDictionary()
_HOLDERS_ALONE = _holders(torch.empty(0))

"""Peak memory of a few training steps.

On CUDA the allocator keeps the books.  On the CPU nobody does, so we count: a dispatch
mode sees each op below autograd, notes each new storage that comes out, and a weak
reference tells when that storage dies.  The peak of the sum is *deterministic*: the
bytes of live tensors, whatever the allocator did with them.  What an op takes and gives
back inside itself is not seen.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Step = Callable[[], object]


def peak_bytes(device: torch.device, build: Callable[[], Step], steps: int = 2) -> int:
    """Peak bytes while `build()`'s step runs, with all that `build` made counted in.

    Two steps, since the optimizer makes its state in the first.
    """
    gc.collect()
    measure = _peak_on_cuda if device.type == "cuda" else _peak_by_counting
    return measure(build, steps)


def _peak_on_cuda(build: Callable[[], Step], steps: int) -> int:
    before = torch.cuda.memory_allocated()
    step = build()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        step()
    return torch.cuda.max_memory_allocated() - before


def _peak_by_counting(build: Callable[[], Step], steps: int) -> int:
    with LiveBytes() as live:
        step = build()
        live.peak = live.now
        for _ in range(steps):
            step()
    return live.peak


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages born inside: `now`, and at most `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = op(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._note(value.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._alive:
            return

        def died(_: object) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, died)
        self.now += size
        self.peak = max(self.peak, self.now)

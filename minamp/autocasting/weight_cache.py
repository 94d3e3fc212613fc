"""The weight cache: in a region, each float32 weight is cast once.

A layer that runs twice would cast its weight twice, and the backward pass would meet
two casts where one is enough.  So the half copy of a weight is kept until the outermost
region ends.  A cache lies when what it copied has changed; the key holds all that can
change: which tensor, at which version (every in-place update counts it up), in which
memory (``weight.data = ...`` moves it), to which dtype, and in which grad mode.  The
mode matters because a cast made under ``no_grad`` has no gradient, and one made under
``inference_mode`` may never meet autograd.

PyTorch's cache has neither the version nor the dtype in its key, and holds the weight
itself: weights updated inside a region are used stale, and dead layers pile up.

Two limits remain.  A write through ``weight.data`` counts up no version, so after it
call ``clear_autocast_cache()``.  And a copy that was made with a gradient holds its
weight, by its graph, until the outermost region ends.
"""

from __future__ import annotations

import threading
import weakref

import torch
from torch import (
    is_autocast_cache_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
)

# Private: the only way to learn that torch.jit.trace is recording.
from torch._C import _get_tracing_state

Key = tuple[int, torch.dtype, int]
Size = tuple[int, ...]
Entry = tuple[
    "weakref.ref[torch.Tensor]", int, int, Size, Size, torch.Tensor, torch.Tensor
]


def is_cacheable(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a weight: a float32 leaf that requires grad.

    Views are left out (a new object each time), and so is everything that a tracer or
    a function transform wraps: such tensors mean something only until it is done.
    """
    return (
        tensor.dtype is torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and tensor._base is None
        and not tensor.is_inference()  # such a tensor has no version
        and _is_plain(tensor)
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    if type(tensor) is torch.nn.Parameter:
        return True
    # Private: inside torch.func transforms, a wrapper has the type of what it wraps.
    return type(tensor) is torch.Tensor and not (
        torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or torch._is_functional_tensor(tensor)
    )


class WeightCache:
    """Half copies of weights, shared by all threads that are inside a region."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._users = 0
        self._lock = threading.Lock()

    def cast(self, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``weight.to(dtype)``, made once for each state that ``weight`` is in."""
        # An older copy would be a constant of the trace.  PyTorch's other tracers set
        # its own cache off while they run.
        if _get_tracing_state() is not None or not is_autocast_cache_enabled():
            return weight.to(dtype)
        mode = is_grad_enabled() or is_inference_mode_enabled() - 1
        key = (id(weight), dtype, mode)
        entry = self._entries.get(key)
        if entry is not None:
            source, version, address, strides, shape, _, half = entry
            if (
                source() is weight
                and version == weight._version
                and address == weight.data_ptr()
                and strides == weight.stride()
                and shape == weight.shape
            ):
                return half
        half = weight.to(dtype)
        # enable_grad() within inference_mode() looks like plain grad mode, but the copy
        # made there is no part of a graph.
        if is_cacheable(weight) and not (half.is_inference() and is_grad_enabled()):
            self._remember(key, weight, half)
        return half

    def _remember(self, key: Key, weight: torch.Tensor, half: torch.Tensor) -> None:
        def forget(_: object) -> None:
            self._entries.pop(key, None)

        source = weakref.ref(weight, forget)
        # While the alias lives, nobody else is given the memory and its address.
        alias = weight.detach()
        where = (weight.data_ptr(), weight.stride(), weight.shape, alias)
        self._entries[key] = (source, weight._version, *where, half)

    def enter(self) -> None:
        """A thread has entered its outermost region."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """A thread has left its outermost region; the last one empties the cache."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._entries.clear()

    def clear(self) -> None:
        """Forget every half copy now."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)

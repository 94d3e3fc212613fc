"""Keeping compiled graphs apart: none made in one kind of region is used in another.

``torch.compile`` records the plain ops of a function; minamp's casts enter later, when
the graph is traced through the dispatcher.  To the compiler a bfloat16 region, a
float16 region and one with other op lists look alike, and without help it would reuse
the graph of the first in the second, silently.  Two caches need telling:

* *In the process*, Dynamo guards each graph with PyTorch's autocast state, a flag and a
  dtype for each device type.  The slot of our own dispatch key is free for a mark, and
  nobody computes with its dtype: each signature (``AutocastState.signature``) gets a
  dtype of its own, shown there while a region is open.
* *On disk*, the key of each stored graph holds ``torch.compiler.config.cache_key_tag``.
  A tag that spells out the signature at the moment it is pickled goes in there.

Where no mark is left, or PyTorch does not guard the slot (2.6), compiled functions run
eagerly in all regions but those of the first signature: slower, never wrong.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

SLOT = "privateuseone"

# Any dtype can be a mark.  The first two come first so that the usual regions show what
# they compute in.
_MARKS = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)
# Shared by all copies of minamp in the process, which show their marks in one slot.
_marks: dict[str, torch.dtype | None] = torch.__dict__.setdefault("_minamp_marks", {})
_lock = threading.Lock()


def mark_of(signature: str) -> torch.dtype | None:
    """The dtype that stands for ``signature`` in this process; None if none is left."""
    if signature not in _marks:
        with _lock:
            free = [mark for mark in _usable_marks() if mark not in _marks.values()]
            _marks.setdefault(signature, free[0] if free else None)
    return _marks[signature]


@functools.cache
def _usable_marks() -> tuple[torch.dtype, ...]:
    """All marks, or one where Dynamo does not see them."""
    return _MARKS if dynamo_sees_marks() else _MARKS[:1]


def dynamo_sees_marks() -> bool:
    """Whether Dynamo's guard on global state notices another mark in the slot."""
    # Private: the guard itself, asked without compiling anything.
    from torch._C._dynamo.guards import GlobalStateGuard

    enabled = torch.is_autocast_enabled(SLOT)
    dtype = torch.get_autocast_dtype(SLOT)
    try:
        torch.set_autocast_enabled(SLOT, True)
        torch.set_autocast_dtype(SLOT, torch.float32)
        guard = GlobalStateGuard()
        torch.set_autocast_dtype(SLOT, torch.float64)
        return not guard.check()
    finally:
        torch.set_autocast_dtype(SLOT, dtype)
        torch.set_autocast_enabled(SLOT, enabled)


def show(signature: str) -> None:
    """Show the mark of ``signature`` to the compiler; of the empty one, none."""
    if not signature:
        torch.set_autocast_enabled(SLOT, False)
        return
    torch.set_autocast_enabled(SLOT, True)
    torch.set_autocast_dtype(SLOT, mark_of(signature) or _MARKS[0])


def is_compiler_loaded() -> bool:
    """Whether anything can have been compiled in this process so far."""
    return "torch._dynamo" in sys.modules


class EagerStretches(threading.local):
    """The stretches in which compiled functions run eagerly, in whatever thread.

    The compiler has one stance for the whole process, so it is taken when the first
    such stretch begins, and given up when the last one ends.  A stretch may begin while
    a compiled function is running, after a graph break: then Dynamo is watching the
    frames of this thread, and must look away until the stretch ends.
    """

    def __init__(self) -> None:
        self._watches: list[Any] = []

    def begin(self) -> None:
        """Compiled functions run eagerly from here on."""
        self._watches.append(_set_watch(None))
        _stance.take()

    def end(self) -> None:
        """End one stretch; with the last, compiled functions are used again."""
        _stance.give_up()
        _set_watch(self._watches.pop())


# Private: what Dynamo calls for each frame of this thread.  Returns what it was.
_set_watch: Any = torch._C._dynamo.eval_frame.set_eval_frame


class _Stance:
    """The compiler's stance "force_eager", and how many stretches want it."""

    def __init__(self) -> None:
        self._wanted = 0
        self._taken: Any = None

    def take(self) -> None:
        with _lock:
            self._wanted += 1
            # The compiler takes seconds to load, and has nothing to reuse before it is.
            if self._taken is None and is_compiler_loaded():
                self._taken = torch.compiler.set_stance("force_eager")
                self._taken.__enter__()

    def give_up(self) -> None:
        with _lock:
            self._wanted -= 1
            if self._wanted:
                return
            if self._taken is not None:
                self._taken.__exit__(None, None, None)
                self._taken = None
            elif is_compiler_loaded():
                # Loaded in here: what is compiled by now, is compiled without a mark.
                torch._dynamo.reset()


_stance = _Stance()
eager_stretches = EagerStretches()


def needs_eager(signature: str) -> bool:
    """Whether nothing would keep graphs made under ``signature`` apart from others."""
    return bool(signature) and mark_of(signature) is None


class SignatureTag(str):
    """A cache key tag that adds the signature in force at the moment it is pickled."""

    signature: Callable[[], str]

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (f"{self} minamp:{self.signature()}",)


def install_tag(signature: Callable[[], str]) -> None:
    """Let the key of each graph stored on disk name the signature it was made under."""
    from torch.compiler import config

    if not isinstance(config.cache_key_tag, SignatureTag):
        tag = SignatureTag(config.cache_key_tag)
        tag.signature = signature
        config.cache_key_tag = tag

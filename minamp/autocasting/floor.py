"""The autocast floor of the dispatcher, and who may be on it.

PyTorch keeps one dispatch key free for the autocast of new devices.  Here it is, with
what the dispatcher lets Python ask and say about it, and what exists once a thread
(which state is in force) and once a process (which kernels stand on the floor).
``dispatch_key.py`` tells how it all plays together.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from minamp.autocasting.state import AutocastState, Rules
from minamp.autocasting.weight_cache import WeightCache

# Private, all of it: the dispatcher's thread state has no public Python face.
KEY: Any = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
# The floors below.  Those above have been passed, and riding on must not stop there
# again: the compiler's floors would come straight back to ours.
BELOW = torch._C._dispatch_keyset_full_after(KEY)
set_included = torch._C._dispatch_tls_set_dispatch_key_included
set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
is_included = torch._C._dispatch_tls_is_dispatch_key_included
is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded


class Thread(threading.local):
    """The state of autocast in one thread, and its rules ready for the kernels."""

    state = AutocastState()
    rules: tuple[Rules, ...] = ()
    depth = 0


class Process:
    """What exists once, however often minamp is imported or reloaded."""

    def __init__(self) -> None:
        self.thread = Thread()
        self.weights = WeightCache()
        self.library: torch.library.Library | None = None
        self.fallthrough: torch.library.Library | None = None
        self.kernels: set[str] = set()
        self.lock = threading.Lock()


# Two copies of minamp in one process must share one floor: a second fallback on a key
# is an error, and a second kernel for an op would silently replace the first.
process: Process = torch.__dict__.setdefault("_minamp_process", Process())
thread = process.thread
weights = process.weights

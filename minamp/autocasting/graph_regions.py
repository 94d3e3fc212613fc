"""Regions inside a compiled function.

Dynamo reads the Python of a function and writes down its tensor ops as a graph; a
``with autocast(...)`` in it has to become part of that graph.  Here it becomes two
calls, ``enter_region`` and ``leave_region``.  Dynamo runs them as it goes, so it sees
the dtypes that the casts will give; then the graph is traced through the dispatcher,
runs them again, and what comes out has the casts in it and the two calls no more.
"""

from __future__ import annotations

import threading

import torch

from minamp.autocasting import dispatch_key
from minamp.autocasting.request import resolve
from minamp.autocasting.state import Setting
from minamp.policy.op_lists import with_fingerprint


class _Thread(threading.local):
    def __init__(self) -> None:
        self.entered: list[dispatch_key.Restore] = []


_thread = _Thread()


def enter_region(
    device_type: str,
    dtype: torch.dtype | None,
    enabled: bool,
    cache_enabled: bool | None,
    lists: str,
) -> None:
    """``autocast.__enter__`` as a call in a graph, which holds lists by fingerprint."""
    around = dispatch_key.current()
    op_lists = with_fingerprint(lists) if lists else None
    setting = resolve(around, device_type, dtype, enabled, op_lists)
    refuse_export(setting)
    cache = around.cache_enabled if cache_enabled is None else cache_enabled
    state = around.entering(setting, cache)
    _thread.entered.append(dispatch_key.enter(state, in_graph=True))


def leave_region() -> None:
    """Leave the region entered last, as a call in a graph."""
    dispatch_key.leave(_thread.entered.pop())


def refuse_export(setting: Setting) -> None:
    """Raises RuntimeError inside ``torch.export``, which would lose the region.

    An exported program holds the ops of a floor above autocast's, and no calls.
    """
    # PyTorch 2.6 has no such question; there, only an export compiles in plain Python.
    asked = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    if setting.enabled and asked():
        raise RuntimeError(
            "a region inside an exported module would be lost, and the program run in "
            "full precision: export the module without it, and run the program in a "
            "region; or call exported.run_decompositions() in a region, which writes "
            "the casts into the program"
        )


def leave_eagerly(entered: threading.local) -> None:
    """Leave a region that was entered eagerly, as Dynamo traces no function so marked.

    The trace may have begun in mid-region, after a graph break.
    """
    dispatch_key.leave(entered.stack.pop())


# Private: the attribute set by torch.compiler.disable, which would load the compiler.
leave_eagerly._torchdynamo_disable = True  # type: ignore[attr-defined]


def prepare_trace() -> bool:
    """Called while Dynamo traces an ``__enter__``; True, a constant of the trace.

    Makes the two calls known to Dynamo as graph calls, and sees to it that a trace that
    is given up between them (a graph break, an exception) leaves nothing entered.
    """
    torch.compiler.allow_in_graph(enter_region)
    torch.compiler.allow_in_graph(leave_region)
    entered = _thread.entered
    depth = len(entered)

    def undo() -> None:
        while len(entered) > depth:
            leave_region()

    # Private: the trace that is going on, which runs its hooks however it ends.
    from torch._dynamo.symbolic_convert import InstructionTranslator

    InstructionTranslator.current_tx().output.add_cleanup_hook(undo)
    return True


# Private: the attribute by which Dynamo knows a function to run while it traces, set by
# torch._dynamo.assume_constant_result, which would load the compiler at import.
prepare_trace._dynamo_marked_constant = True  # type: ignore[attr-defined]

"""minamp's own frames are not for the compiler.

While a compiled function runs a stretch eagerly, Dynamo looks at every Python frame
that starts below, and compiles those it can.  Our kernels and the code that enters and
leaves regions change the state of the dispatcher, which no graph can hold: they must
run as they are.  A frame marked here is never compiled on its own; Dynamo may still
read *through* it while it traces a caller.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch


def never_compile(code: CodeType) -> None:
    """Let Dynamo run frames of ``code`` as they are."""
    # Private: torch.compiler.disable says the same of a function, but loads the
    # compiler, and hides the function from a trace as well.
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
        frames.set_code_exec_strategy(code, strategy)
    else:  # PyTorch 2.6
        frames.skip_code(code)


def never_compile_functions_of(*modules: ModuleType) -> None:
    """Mark every function and method that ``modules`` define."""
    for module in modules:
        for value in vars(module).values():
            if getattr(value, "__module__", None) == module.__name__:
                _mark(value)


def _mark(value: object) -> None:
    if isinstance(value, FunctionType):
        never_compile(inspect.unwrap(value).__code__)
    elif isinstance(value, type):
        for member in vars(value).values():
            _mark(member.fget if isinstance(member, property) else member)

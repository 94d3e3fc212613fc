"""The names a module must have to be put through the suite, and how it is loaded.

Any module will do that has

    autocast(device_type, dtype=None, enabled=True, cache_enabled=None)
    GradScaler(device, init_scale, growth_factor, backoff_factor, growth_interval)
    custom_fwd, custom_bwd

with the behaviour of their namesakes in torch.amp. Whoever writes only a scaler
imports the other names from torch.amp.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

NAMES = ("autocast", "GradScaler", "custom_fwd", "custom_bwd")


@dataclass(frozen=True)
class Implementation:
    """One implementation of mixed precision, under the names torch.amp uses."""

    name: str
    autocast: Any
    GradScaler: Any
    custom_fwd: Any
    custom_bwd: Any


def load_implementation(spec: str) -> Implementation:
    """`spec` is "minamp", "torch" (torch.amp), a module's name or a file's path."""
    module = _load_module("torch.amp" if spec == "torch" else spec)
    missing = [name for name in NAMES if not hasattr(module, name)]
    if missing:
        raise LookupError(
            f"{spec} has no {', '.join(missing)}. The suite needs {', '.join(NAMES)}; "
            "what you did not write yourself, import from torch.amp."
        )
    return Implementation(spec, *(getattr(module, name) for name in NAMES))


def _load_module(spec: str) -> ModuleType:
    if not spec.endswith(".py"):
        return importlib.import_module(spec)
    path = Path(spec).resolve()
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    if module_spec is None or module_spec.loader is None or not path.exists():
        raise LookupError(f"There is no Python file {path} to test.")
    module = importlib.util.module_from_spec(module_spec)
    # Registered before it runs, so that what it defines can be pickled; and it may
    # import the files beside it.
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    module_spec.loader.exec_module(module)
    return module

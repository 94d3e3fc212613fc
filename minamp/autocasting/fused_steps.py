"""Fused optimizer steps inside a region make the half copies of weights stale.

The weight cache knows a changed weight by its version, which every in-place update
counts up.  The fused steps of PyTorch's optimizers do not: so they get a kernel on the
autocast floor as well, which casts nothing and afterwards empties the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minamp.autocasting.floor import BELOW, weights
from minamp.autocasting.never_compiled import never_compile
from minamp.policy.op_lists import overload

FUSED_STEPS = tuple(
    f"_fused_{kind}_{variant}"
    for kind in ("adagrad", "adam", "adamw", "sgd")
    for variant in ("", ".tensor_lr")
)


def step_kernel_for(op: str) -> Callable[..., Any]:
    """The kernel for the fused optimizer step ``op``."""
    plain = overload(op)

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return plain.redispatch(keyset & BELOW, *args, **kwargs)
        finally:
            weights.clear()

    never_compile(kernel.__code__)
    return kernel

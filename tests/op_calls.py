"""Calls of ops, drawn: which function, on which shapes, dtypes and layouts.

By what autocast should do with them. The tables hold ops that PyTorch treats alike on
the CPU and on CUDA (promotion excepted), so the same laws hold on both; every other
op is covered by `test_every_op.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
Maker = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class OpCall:
    """A function with its arguments, ready to be called."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]

    def __call__(self) -> Any:
        return self.function(*self.args)

    def with_args(self, args: Any) -> OpCall:
        return OpCall(self.name, self.function, tuple(args))

    def __repr__(self) -> str:
        described = [
            f"{arg.dtype}{tuple(arg.shape)}" if isinstance(arg, torch.Tensor) else arg
            for arg in self.args
        ]
        return f"{self.name}({', '.join(map(str, described))})"


# Each entry makes the arguments from tensors t(*shape) and three small sizes.
LOWER_PRECISION = {
    F.linear: lambda t, m, k, n: (t(m, k), t(n, k), t(n)),
    torch.mm: lambda t, m, k, n: (t(m, k), t(k, n)),
    torch.matmul: lambda t, m, k, n: (t(2, m, k), t(k, n)),
    torch.bmm: lambda t, m, k, n: (t(2, m, k), t(2, k, n)),
    torch.addmm: lambda t, m, k, n: (t(m, n), t(m, k), t(k, n)),
    torch.baddbmm: lambda t, m, k, n: (t(2, m, n), t(2, m, k), t(2, k, n)),
    F.conv1d: lambda t, m, k, n: (t(m, k, 5), t(n, k, 3), t(n)),
    F.conv2d: lambda t, m, k, n: (t(m, k, 4, 5), t(n, k, 3, 2)),
    F.conv_transpose1d: lambda t, m, k, n: (t(m, k, 5), t(k, n, 3)),
    F.prelu: lambda t, m, k, n: (t(m, k, n), t(k)),
    torch.addbmm: lambda t, m, k, n: (t(m, n), t(2, m, k), t(2, k, n)),
}
FULL_PRECISION = {
    F.mse_loss: lambda t, m, k, n: (t(m, n), t(m, n)),
    F.l1_loss: lambda t, m, k, n: (t(m, n), t(m, n)),
    F.huber_loss: lambda t, m, k, n: (t(m, n), t(m, n)),
    F.kl_div: lambda t, m, k, n: (t(m, n), t(m, n), None, None, "sum"),
    F.soft_margin_loss: lambda t, m, k, n: (t(m, n), t(m, n).detach()),
    F.poisson_nll_loss: lambda t, m, k, n: (t(m, n), t(m, n)),
    F.binary_cross_entropy_with_logits: lambda t, m, k, n: (t(m, n), t(m, n)),
    torch.cdist: lambda t, m, k, n: (t(m, k), t(n, k)),
    torch.prod: lambda t, m, k, n: (t(m, n),),
}
WIDEST = {
    "cpu": {
        lambda *tensors: torch.cat(tensors): lambda t, m, k, n: (t(m, n), t(k, n)),
        lambda *tensors: torch.stack(tensors): lambda t, m, k, n: (t(m, n), t(m, n)),
    },
    "cuda": {
        torch.dot: lambda t, m, k, n: (t(n), t(n)),
        torch.addcmul: lambda t, m, k, n: (t(m, n), t(m, n), t(m, n)),
        torch.atan2: lambda t, m, k, n: (t(m, n), t(m, n)),
        torch.bilinear: lambda t, m, k, n: (t(m, k), t(m, k), t(n, k, k), t(n)),
    },
}
UNLISTED = {
    torch.relu: lambda t, m, k, n: (t(m, n),),
    torch.neg: lambda t, m, k, n: (t(m, n),),
    torch.sigmoid: lambda t, m, k, n: (t(m, n),),
    F.gelu: lambda t, m, k, n: (t(m, n),),
    torch.add: lambda t, m, k, n: (t(m, n), t(m, n)),
    torch.mul: lambda t, m, k, n: (t(m, n), 3.0),
    torch.amax: lambda t, m, k, n: (t(m, n),),
    torch.flatten: lambda t, m, k, n: (t(m, k, n),),
    F.max_pool1d: lambda t, m, k, n: (t(m, k, 5), 2),
}


@st.composite
def calls(
    draw, table: dict[Any, Any], device: str, dtypes=FLOATS, requires_grad=False
) -> OpCall:
    """A call of an op of `table`; each tensor's dtype and layout drawn on its own."""
    function = draw(st.sampled_from(list(table)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))

    def tensor(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=generator).to(
            draw(st.sampled_from(dtypes))
        )
        if len(shape) > 1 and draw(st.booleans()):
            values = values.mT.contiguous().mT
        return values.to(device).requires_grad_(requires_grad)

    sizes = (draw(st.integers(1, 4)) for _ in range(3))
    return OpCall(
        getattr(function, "__name__", "?"), function, table[function](tensor, *sizes)
    )


def dtype_of_mm(device: str) -> torch.dtype:
    """In which dtype a listed op runs here and now."""
    x = torch.ones(2, 2, device=device)
    return torch.mm(x, x).dtype

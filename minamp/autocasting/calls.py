"""What a kernel calls once its arguments are cast: mostly the op itself.

Three kinds of op are not called through their own overload: the commonest have a
faster binding, ``norm`` has a twin that takes the dtype a policy has set, and cuDNN's
recurrent layer wants its cast weights packed anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minamp.policy.op_lists import APPENDS_DTYPE, overload

Call = Callable[..., Any]

# The Python bindings of the commonest ops: the same calls, a microsecond faster each
# than through the overload object.
BINDINGS: dict[str, Call] = {
    "addmm": torch.addmm,
    "baddbmm": torch.baddbmm,
    "bmm": torch.bmm,
    "conv1d": torch.conv1d,
    "conv2d": torch.conv2d,
    "linear": torch._C._nn.linear,
    "matmul": torch.matmul,
    "mm": torch.mm,
    "scaled_dot_product_attention": torch._C._nn.scaled_dot_product_attention,
}


def call_for(op: str) -> Call:
    """The function that runs ``op`` on arguments as a policy left them."""
    if op in BINDINGS:
        return BINDINGS[op]
    if op in APPENDS_DTYPE:
        return _with_dtype(overload(op), overload(APPENDS_DTYPE[op]))
    if op == "_cudnn_rnn":
        return with_packed_weights(overload(op))
    return overload(op)


def _with_dtype(plain: torch._ops.OpOverload, twin: torch._ops.OpOverload) -> Call:
    # The dispatcher drops trailing arguments that have their default value, and the
    # twin has no defaults.
    defaults = [argument.default_value for argument in plain._schema.arguments]

    def call(*args: Any, **kwargs: Any) -> Any:
        if "dtype" not in kwargs:
            return plain(*args, **kwargs)
        return twin(*args, *defaults[len(args) :], **kwargs)

    return call


def with_packed_weights(plain: Call) -> Call:
    """``_cudnn_rnn``, with its weights packed if a cast has torn them apart.

    cuDNN reads the weights of all layers from one buffer, ``weight_buf``, of which the
    single weights are views.  Casting gives every weight, and the buffer, memory of its
    own; the layout in half precision is cuDNN's to choose.  PyTorch's autocast packs
    again too (``_cudnn_rnn_cast_reflatten``).
    """

    def call(
        input: torch.Tensor,
        weights: list[torch.Tensor],
        weight_stride0: int,
        weight_buf: torch.Tensor | None,
        *rest: Any,
    ) -> Any:
        _hx, _cx, mode, hidden, proj, layers, batch_first, _p, _train, both, *_ = rest
        if weight_buf is None or weights[0].data_ptr() != weight_buf.data_ptr():
            with torch.no_grad():
                # Private: what nn.RNN.flatten_parameters calls.  It moves the weights
                # into the buffer that it returns.
                weight_buf = torch._cudnn_rnn_flatten_weight(
                    weights,
                    weight_stride0,
                    input.size(-1),
                    mode,
                    hidden,
                    proj,
                    layers,
                    batch_first,
                    both,
                )
        return plain(input, weights, weight_stride0, weight_buf, *rest)

    return call

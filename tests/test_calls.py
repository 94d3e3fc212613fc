"""What a kernel calls: bindings equal their overloads, cuDNN's weights are packed."""

from __future__ import annotations

import pytest
import torch

from minamp.autocasting import calls
from minamp.policy.op_lists import overload

CUDNN_RNN = (
    "aten::_cudnn_rnn(Tensor input, Tensor[] weight, int weight_stride0, "
    "Tensor? weight_buf, Tensor hx, Tensor? cx, int mode, SymInt hidden_size, "
    "SymInt proj_size, int num_layers, bool batch_first, float dropout, bool train, "
    "bool bidirectional, SymInt[] batch_sizes, Tensor? dropout_state)"
)


@pytest.mark.parametrize("op", sorted(calls.BINDINGS))
def test_binding_is_the_op(op):
    schema = overload(op)._schema
    seen = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    size = {"conv1d": 3, "conv2d": 4, "bmm": 3, "baddbmm": 3}.get(op, 2)
    size = 4 if op == "scaled_dot_product_attention" else size
    tensors = [a for a in schema.arguments if str(a.type) == "Tensor"]
    inputs = [torch.randn([4] * size) for _ in tensors]
    with Spy():
        bound = calls.BINDINGS[op](*inputs)
    by_binding, seen[:] = list(seen), []
    with Spy():
        called = overload(op)(*inputs)
    assert by_binding == seen
    assert torch.equal(bound, called)


def _rnn_call(weights, weight_buf):
    """The arguments of ``_cudnn_rnn``, in the order of its schema."""
    x, hx = torch.ones(5, 1, 3), torch.zeros(1, 1, 2)
    return (
        x,
        weights,
        4,
        weight_buf,
        hx,
        None,
        2,
        2,
        0,
        1,
        False,
        0.0,
        True,
        False,
        [],
    )


@pytest.fixture
def packer(monkeypatch):
    """A stand-in for cuDNN's packer, which is only in CUDA builds."""
    asked = []

    def flatten(weights, *shape):
        asked.append(shape)
        buffer = torch.cat([w.detach().flatten() for w in weights])
        start = 0
        for w in weights:
            w.set_(buffer[start : start + w.numel()].view_as(w))
            start += w.numel()
        return buffer

    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", flatten, raising=False)
    return asked


def test_weights_torn_apart_by_a_cast_are_packed_again(packer):
    weights = [torch.ones(2, 3).half(), torch.full((2,), 2.0).half()]
    call = calls.with_packed_weights(lambda *args: args)
    given = _rnn_call(weights, torch.zeros(8))
    args = call(*given)
    assert packer == [(4, 3, 2, 2, 0, 1, False, False)]
    assert args[3].tolist() == [1.0] * 6 + [2.0] * 2
    assert args[1][0].data_ptr() == args[3].data_ptr()
    assert all(got is was for got, was in zip(args[4:], given[4:], strict=True))


def test_packed_weights_stay_as_they_are(packer):
    buffer = torch.ones(8).half()
    weights = [buffer[:6].view(2, 3), buffer[6:]]
    args = calls.with_packed_weights(lambda *args: args)(*_rnn_call(weights, buffer))
    assert packer == []
    assert args[3] is buffer


def test_cudnn_rnn_takes_its_arguments_in_the_order_we_unpack():
    if not hasattr(torch.ops.aten, "_cudnn_rnn"):
        pytest.fail("this torch has no _cudnn_rnn: the row in torch_lists can go")
    schema = str(torch.ops.aten._cudnn_rnn.default._schema)
    assert schema.startswith(CUDNN_RNN)

"""What the tests of half weights and of checkpoints share."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from oracles import assert_same_bits


class OneWeight(nn.Module):
    """A model that is one tensor."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(values.clone())

    def give_gradient(self, grad: Tensor) -> None:
        """Backward through autograd, with exactly this gradient."""
        self.weight.backward(grad.to(self.weight.dtype))


def assert_same_state(left: Any, right: Any, where: str = "") -> None:
    """The same bits in every tensor of two nests."""
    if isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_same_state(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), where
        for place, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same_state(a, b, f"{where}.{place}")
    else:
        assert_same_bits(left, right, where)

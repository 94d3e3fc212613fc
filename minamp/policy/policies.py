"""The categories as functions: from the arguments of a call to those it runs with.

Each policy takes ``(args, kwargs, target)`` and returns the new ``(args, kwargs)``.
``target`` says what the region wants: its dtype, which tensors are eligible, and how to
cast a value.  No policy knows the op it serves, the dispatcher or the region's state;
that is why the six of PyTorch, and minamp's three more, fit on this page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from minamp.policy.op_lists import Category

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Cast = Callable[[Any], Any]


class Target(Protocol):
    """What a policy needs to know of a region."""

    dtype: torch.dtype
    to_lower: Cast
    to_fp32: Cast

    def is_eligible(self, value: object) -> bool:
        """Whether ``value`` is a tensor that the region may cast."""

    def caster(self, dtype: torch.dtype) -> Cast:
        """A function that casts eligible tensors to ``dtype``, alone or in a list."""


Policy = Callable[[Args, Kwargs, Target], tuple[Args, Kwargs]]


def cast_all(args: Args, kwargs: Kwargs, cast: Cast) -> tuple[Args, Kwargs]:
    """Every argument cast."""
    if kwargs:
        kwargs = {name: cast(value) for name, value in kwargs.items()}
    # The last argument first, which is the order of PyTorch's C++.  Backward meets the
    # casts in it, and so the peak of memory is the same, to the byte.
    return tuple(map(cast, args[::-1]))[::-1], kwargs


def eligible_tensors(
    args: Args, kwargs: Kwargs, target: Target
) -> Iterator[torch.Tensor]:
    """The eligible tensors of a call, in the order of its arguments."""
    for value in (*args, *kwargs.values()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if target.is_eligible(item):
                yield item


def lower_precision_fp(
    args: Args, kwargs: Kwargs, target: Target
) -> tuple[Args, Kwargs]:
    """Everything in the region's dtype: where half the bits are enough."""
    return cast_all(args, kwargs, target.to_lower)


def fp32(args: Args, kwargs: Kwargs, target: Target) -> tuple[Args, Kwargs]:
    """Everything in float32."""
    return cast_all(args, kwargs, target.to_fp32)


def fp32_dtype_argument(
    args: Args, kwargs: Kwargs, target: Target
) -> tuple[Args, Kwargs]:
    """``dtype=float32``, unless the caller chose one: the op casts as it reads.

    The first argument alone decides whether the region has a say, as in PyTorch.  This
    serves both categories with a dtype argument: where the overload has none, the
    kernel calls the one that has.
    """
    chosen = any(isinstance(v, torch.dtype) for v in (*args, *kwargs.values()))
    if chosen or not target.is_eligible(args[0]):
        return args, kwargs
    return args, {**kwargs, "dtype": torch.float32}


def promote(args: Args, kwargs: Kwargs, target: Target) -> tuple[Args, Kwargs]:
    """Everything in float32 if one input is, else in the region's dtype.

    Raises RuntimeError for a third dtype (bfloat16 in a float16 region), as PyTorch.
    """
    widest = target.dtype
    for tensor in eligible_tensors(args, kwargs, target):
        if torch.float32 in (widest, tensor.dtype):
            widest = torch.float32
        elif tensor.dtype is not target.dtype:
            raise RuntimeError(
                f"Unexpected floating ScalarType in a region of {target.dtype}: an op "
                f"that promotes its inputs was given {tensor.dtype}, which neither "
                "holds all of the other nor is float32; cast one of the two, or use "
                "op_lists=minamp.safe_lists(), which promotes the pair to float32"
            )
    return cast_all(args, kwargs, target.caster(widest))


def banned(args: Args, kwargs: Kwargs, target: Target) -> tuple[Args, Kwargs]:
    """Always raises RuntimeError: what the op needs is lost before it runs."""
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
        "autocast: a probability that left a sigmoid in half precision has already "
        "been rounded to 0 or 1, and its log is infinite. Use "
        "binary_cross_entropy_with_logits (BCEWithLogitsLoss) on the values before the "
        "sigmoid, or run the loss in a region with enabled=False on float32 inputs."
    )


def promote_any(args: Args, kwargs: Kwargs, target: Target) -> tuple[Args, Kwargs]:
    """Everything in the narrowest dtype that holds all (half and bf16: float32)."""
    found = [t.dtype for t in eligible_tensors(args, kwargs, target)]
    if len(set(found)) < 2:
        return args, kwargs
    widest = found[0]
    for dtype in found[1:]:
        widest = torch.promote_types(widest, dtype)
    return cast_all(args, kwargs, target.caster(widest))


def cast_to_self(args: Args, kwargs: Kwargs, target: Target) -> tuple[Args, Kwargs]:
    """Everything in the dtype of the first argument, which an in-place op keeps."""
    if not target.is_eligible(args[0]):
        return args, kwargs
    rest, kwargs = cast_all(args[1:], kwargs, target.caster(args[0].dtype))
    return (args[0], *rest), kwargs


def fp32_if_scalar_lost(
    args: Args, kwargs: Kwargs, target: Target
) -> tuple[Args, Kwargs]:
    """Everything in float32 if a Python number would not survive in the inputs' dtype.

    A number is lost when it is finite and not 0, yet becomes infinite (``-1e9`` in a
    mask) or 0 (``x + 1e-8``) in the narrowest input's dtype.
    """
    dtypes = {t.dtype for t in eligible_tensors(args, kwargs, target)}
    halves = [dtype for dtype in dtypes if dtype is not torch.float32]
    values = (*args, *kwargs.values())
    numbers = [v for v in values if type(v) in (int, float)]  # bool is neither
    if any(is_lost(number, dtype) for number in numbers for dtype in halves):
        return cast_all(args, kwargs, target.to_fp32)
    return args, kwargs


def is_lost(number: float, dtype: torch.dtype) -> bool:
    """Whether finite, non-zero ``number`` rounds to 0 or to infinity in ``dtype``.

    Half of the smallest subnormal is a tie, which rounds to 0; the largest value plus
    half its spacing is a tie as well, which rounds to infinity.
    """
    limits = torch.finfo(dtype)
    size = abs(number)
    # The largest value is (2 - eps) * 2^e, and so half a spacing is eps / 2 * 2^e.
    past = limits.max / (2 - limits.eps) * (2 - limits.eps / 2)
    return (
        0 < size <= limits.smallest_normal * limits.eps / 2 or past <= size < math.inf
    )


POLICIES: dict[Category, Policy] = {
    Category.LOWER_PRECISION_FP: lower_precision_fp,
    Category.FP32: fp32,
    Category.FP32_SET_OPT_DTYPE: fp32_dtype_argument,
    Category.FP32_APPEND_DTYPE: fp32_dtype_argument,
    Category.PROMOTE: promote,
    Category.BANNED: banned,
    Category.PROMOTE_ANY: promote_any,
    Category.CAST_TO_SELF: cast_to_self,
    Category.FP32_IF_SCALAR_LOST: fp32_if_scalar_lost,
}

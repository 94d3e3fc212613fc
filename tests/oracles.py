"""The truths the laws compare with, and how bits are compared.

Exact rounding, calls cast by hand with autocast off, torch.autocast and
torch.amp.GradScaler, a ten-line fold of the loss scale, training in float64.
Comparison is bitwise wherever possible; where it is not, distances are in ulps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from minamp.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, FloatFormat
from minamp.numbers.rounding import round_to_nearest_even
from strategies import ScalerSettings

DTYPE_OF: dict[FloatFormat, torch.dtype] = {
    FP32: torch.float32,
    FP16: torch.float16,
    BF16: torch.bfloat16,
    FP8_E5M2: torch.float8_e5m2,
    FP8_E4M3: torch.float8_e4m3fn,
}
FORMAT_OF = {dtype: fmt for fmt, dtype in DTYPE_OF.items()}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# --- bits ---------------------------------------------------------------------------


def integer_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a floating-point tensor, as signed integers of the same width."""
    return tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()])


def all_patterns(fmt: FloatFormat) -> torch.Tensor:
    """Every value of a format of at most 16 bits, in the order of its patterns."""
    counted = torch.arange(1 << fmt.bits)
    integer = _INTEGERS[fmt.bits // 8]
    return counted.to(integer).view(DTYPE_OF[fmt])


def same_bits(left: Any, right: Any) -> bool:
    """Same type, dtype, shape, bits (zeros' signs too); any NaN equals any NaN."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return type(left) is type(right) and (left == right or left != left)
    if left.dtype is not right.dtype or left.shape != right.shape:
        return False
    left, right = left.detach().cpu().to_dense(), right.detach().cpu().to_dense()
    if not (left.is_floating_point() or left.is_complex()):
        return torch.equal(left, right)
    both_nan = left.isnan() & right.isnan()
    same_sign = left.is_complex() or torch.equal(
        left.signbit() | both_nan, right.signbit() | both_nan
    )
    return bool(same_sign and ((left == right) | both_nan).all())


def assert_same_bits(left: Any, right: Any, what: str = "") -> None:
    """Fail with dtypes, shapes, and the first differing element in bits and ulps."""
    assert same_bits(left, right), f"{what}: {describe_difference(left, right)}"


def assert_same_gradients(
    ours: torch.Tensor, theirs: torch.Tensor, leaves: Iterable[torch.Tensor]
) -> None:
    """The gradients of two outputs for the same leaves, ones flowing in, are equal."""
    leaves, ones = list(leaves), torch.ones_like(ours)
    for left, right in zip(
        torch.autograd.grad(ours, leaves, ones),
        torch.autograd.grad(theirs, leaves, ones),
        strict=True,
    ):
        assert_same_bits(left, right, "gradient")


def describe_difference(left: Any, right: Any) -> str:
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return f"{left!r} against {right!r}"
    if left.dtype != right.dtype or left.shape != right.shape:
        return (
            f"{left.dtype} {tuple(left.shape)} against "
            f"{right.dtype} {tuple(right.shape)}"
        )
    left, right = left.detach().cpu().reshape(-1), right.detach().cpu().reshape(-1)
    place = int((~((left == right) | (left.isnan() & right.isnan()))).nonzero()[0])
    x, y = left[place], right[place]
    distance = ulps_apart(x, y) if x.is_floating_point() else "?"
    return (
        f"{left.dtype}, element {place}: {x.item()!r} against {y.item()!r}, "
        f"{distance} ulps apart"
    )


def ulps_apart(left: torch.Tensor, right: torch.Tensor) -> int:
    """The largest number of representable steps between two tensors' elements.

    Patterns count the numbers in order, so the distance is a subtraction; negative
    numbers count downwards from zero.
    """

    def place(tensor: torch.Tensor) -> torch.Tensor:
        bits = integer_bits(tensor).long()
        lowest = torch.iinfo(_INTEGERS[tensor.element_size()]).min
        return torch.where(bits >= 0, bits, lowest - bits)

    return int((place(left) - place(right)).abs().max()) if left.numel() else 0


# --- rounding and casting ------------------------------------------------------------


def cast_exactly(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in `dtype`, each element rounded in rational arithmetic."""
    fmt = FORMAT_OF[dtype]
    rounded = [
        math.copysign(abs(float(round_to_nearest_even(x, fmt))), x)
        for x in tensor.detach().double().reshape(-1).tolist()
    ]
    # Every element is a number of the format by now: these casts are exact.
    return torch.tensor(rounded, dtype=torch.float64).to(dtype).view(tensor.shape)


def cast_by_hand(nest: Any, dtype: torch.dtype) -> Any:
    """Every float16, bfloat16 and float32 tensor of a nest as `dtype`."""
    castable = (torch.float16, torch.bfloat16, torch.float32)

    def cast(value: Any) -> Any:
        is_castable = isinstance(value, torch.Tensor) and value.dtype in castable
        return value.to(dtype) if is_castable else value

    return tree_map(cast, nest)


# --- the loss scale -------------------------------------------------------------------


def fold_scale(
    settings: ScalerSettings, overflows: Iterable[bool]
) -> tuple[float, int]:
    """Scale and growth tracker after a history: the rule, in ten lines.

    The scale is a float32 number; the product is rounded once.
    """
    scale, clean_steps = np.float32(settings.init_scale), 0
    for overflow in overflows:
        if overflow:
            scale = np.float32(float(scale) * settings.backoff_factor)
            clean_steps = 0
            continue
        clean_steps += 1
        if clean_steps == settings.growth_interval:
            grown = float(scale) * settings.growth_factor
            scale = np.float32(grown) if grown <= float(FP32.largest) else scale
            clean_steps = 0
    return float(scale), clean_steps


# --- training -------------------------------------------------------------------------


def train_in_float64(
    model: torch.nn.Module,
    make_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer],
    loss_of_step: Callable[[int], torch.Tensor],
    steps: int,
) -> None:
    """Train with 53 bits of precision: what no smaller format's error touches.

    `loss_of_step` runs the forward pass of `model`, on data that is float64 too.
    """
    optimizer = make_optimizer(model.double().parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss_of_step(step).backward()
        optimizer.step()

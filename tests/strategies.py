"""What the laws are tried on: numbers by zone, formats, tensors by layout, histories.

Plain `floats(width=32)` is nearly blind for half precision: more than half of its
draws overflow fp16. So numbers are drawn by zone, each zone as often as the others,
and tensors by memory layout. `test_strategies.py` proves that every zone and every
layout is really reached.
"""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from hypothesis import strategies as st

from minamp.numbers.formats import FP32, FloatFormat, power_of_two
from minamp.numbers.patterns import pattern_of, sign_bit, value_of

# --- formats and numbers ---------------------------------------------------------


def invented_formats() -> st.SearchStrategy[FloatFormat]:
    """Formats nobody built, small enough for float32 to hold their every number."""
    return st.builds(
        FloatFormat,
        st.just("invented"),
        exponent_bits=st.integers(2, 6),
        mantissa_bits=st.integers(1, 8),
        has_infinity=st.booleans(),
    )


@st.composite
def finite_patterns_with_formats(draw) -> tuple[int, FloatFormat]:
    """A finite bit pattern of either sign, and the (invented) format it belongs to."""
    fmt = draw(invented_formats())
    sign = draw(st.sampled_from([0, sign_bit(fmt)]))
    return sign | draw(st.integers(0, pattern_of(fmt.largest, fmt))), fmt


def positive_fractions() -> st.SearchStrategy[Fraction]:
    """Rational numbers far below, around and far above what any format holds."""
    return st.builds(
        lambda numerator, denominator, exponent: (
            Fraction(numerator, denominator) * power_of_two(exponent)
        ),
        st.integers(1, 5000),
        st.integers(1, 5000),
        st.integers(-160, 160),
    )


def _pattern_zone(fmt: FloatFormat, zone: str) -> st.SearchStrategy[Fraction | float]:
    first_normal = pattern_of(fmt.smallest_normal, fmt)
    largest = pattern_of(fmt.largest, fmt)
    first, last = {
        "zero": (0, 0),
        "subnormal": (1, first_normal - 1),
        "normal": (first_normal, largest),
        "near the maximum": (largest - 3, largest),
    }[zone]
    return st.integers(first, last).map(lambda pattern: value_of(pattern, fmt))


def _ties(fmt: FloatFormat) -> st.SearchStrategy[Fraction]:
    """Halfway between two neighbours (or past the largest, where overflow starts)."""
    numbers = st.integers(0, pattern_of(fmt.largest, fmt)).map(
        lambda pattern: value_of(pattern, fmt)
    )
    return numbers.map(lambda x: x + fmt.spacing(x) / 2)


def _fp32_between(low: Fraction, high: Fraction) -> st.SearchStrategy[Fraction]:
    first, last = pattern_of(low, FP32), pattern_of(high, FP32)
    return st.integers(first, last).map(lambda pattern: value_of(pattern, FP32))


def _overflowing(fmt: FloatFormat) -> st.SearchStrategy[Fraction]:
    return _fp32_between(fmt.largest + fmt.spacing(fmt.largest) / 2, FP32.largest)


def _underflowing(fmt: FloatFormat) -> st.SearchStrategy[Fraction]:
    return _fp32_between(FP32.smallest_subnormal, fmt.smallest_subnormal / 2)


ZONES = {
    "zero": lambda fmt: _pattern_zone(fmt, "zero"),
    "subnormal": lambda fmt: _pattern_zone(fmt, "subnormal"),
    "normal": lambda fmt: _pattern_zone(fmt, "normal"),
    "near the maximum": lambda fmt: _pattern_zone(fmt, "near the maximum"),
    "tie": _ties,
    "overflow": _overflowing,
    "underflow": _underflowing,
    "infinity": lambda fmt: st.just(math.inf),
    "nan": lambda fmt: st.just(math.nan),
}
FINITE_ZONES = ("zero", "subnormal", "normal", "near the maximum")


def numbers(fmt: FloatFormat, zones=tuple(ZONES)) -> st.SearchStrategy[float]:
    """Floats of either sign, each zone of `fmt` as often; float32 holds them all."""
    magnitudes = st.one_of([ZONES[zone](fmt) for zone in zones])
    signs = st.sampled_from([1.0, -1.0])
    return st.builds(lambda sign, x: math.copysign(x, sign), signs, magnitudes)


# --- tensors, in every memory layout ------------------------------------------------


def _dense(values: torch.Tensor) -> torch.Tensor:
    return values.clone(memory_format=torch.contiguous_format)


def _transposed(values: torch.Tensor) -> torch.Tensor:
    return _dense(values.mT).mT


def _strided(values: torch.Tensor) -> torch.Tensor:
    """Every second place of a buffer twice as wide; the places between hold NaN."""
    filler = torch.full_like(values, math.nan if values.is_floating_point() else 0)
    return torch.stack([values, filler], dim=-1)[..., 0]


def _offset(values: torch.Tensor) -> torch.Tensor:
    """A view that starts in the middle of its storage."""
    return torch.cat([_dense(values)[:1], _dense(values)])[1:]


def _channels_last(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous(memory_format=torch.channels_last)


LAYOUTS = {
    "contiguous": ((2, 3), _dense),
    "transposed": ((3, 4), _transposed),
    "strided": ((3, 4), _strided),
    "offset": ((3, 2), _offset),
    "expanded": ((1, 4), lambda values: values.expand(5, 4)),
    "empty": ((0, 3), _dense),
    "0-d": ((), _dense),
    "channels_last": ((2, 3, 2, 2), _channels_last),
}


@st.composite
def tensors(
    draw,
    dtype: torch.dtype = torch.float32,
    elements: st.SearchStrategy[float] | None = None,
    layouts=tuple(LAYOUTS),
    device: str = "cpu",
) -> torch.Tensor:
    """A tensor in a drawn layout: mostly seeded noise, with a few drawn elements."""
    shape, lay_out = LAYOUTS[draw(st.sampled_from(layouts))]
    values = torch.randn(shape, generator=_generator(draw)).to(dtype)
    if elements is not None and values.numel():
        for _ in range(draw(st.integers(1, 3))):
            place = draw(st.integers(0, values.numel() - 1))
            values.view(-1)[place] = draw(elements)
    return lay_out(values.to(device))


def _generator(draw) -> torch.Generator:
    return torch.Generator().manual_seed(draw(st.integers(0, 2**16)))


# --- nests --------------------------------------------------------------------------

Pair = namedtuple("Pair", "first second")


def nests(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists, tuples, dicts and namedtuples of `leaves`, and things to leave alone."""
    return st.recursive(
        leaves | st.sampled_from([None, 3, "text", 2.5]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.builds(Pair, inner, inner)
            | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        ),
        max_leaves=6,
    )


# --- what a loss scaler lives through ----------------------------------------------


@dataclass(frozen=True)
class ScalerSettings:
    """The four numbers of a dynamic loss scale, as GradScaler takes them."""

    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int


def scaler_settings(only_powers_of_two=False) -> st.SearchStrategy[ScalerSettings]:
    """Settings people use and settings nobody uses, all of them valid."""
    odd = not only_powers_of_two
    return st.builds(
        ScalerSettings,
        init_scale=st.sampled_from([2.0**16, 1.0, 2.0**24] + [3000.0] * odd),
        growth_factor=st.sampled_from([2.0, 4.0] + [1.5, 1.001] * odd),
        backoff_factor=st.sampled_from([0.5, 0.25] + [0.9, 1 / 3] * odd),
        growth_interval=st.integers(1, 5),
    )


def histories(max_size: int = 30) -> st.SearchStrategy[list[float]]:
    """What is mixed into the gradient of each step: 0 (clean), inf, -inf or NaN."""
    poison = st.sampled_from([0.0, 0.0, 0.0, math.inf, -math.inf, math.nan])
    return st.lists(poison, max_size=max_size)

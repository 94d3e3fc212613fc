"""The generators are code too: they reach every zone, layout and kind of history."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_flatten

import strategies
from minamp.numbers.formats import BF16, FP16
from minamp.numbers.rounding import Fate, fate
from oracles import fold_scale
from strategies import LAYOUTS, ZONES

HALF_FORMATS = [FP16, BF16]
by_format = pytest.mark.parametrize("fmt", HALF_FORMATS, ids=lambda f: f.name)
by_zone = pytest.mark.parametrize("zone", ZONES)
by_layout = pytest.mark.parametrize("layout", LAYOUTS)


def belongs(x: float, zone: str, fmt) -> bool:
    """The definition of each zone, written apart from the way it is drawn."""
    size = abs(x)
    half_a_step = float(fmt.smallest_subnormal) / 2
    return {
        "zero": size == 0,
        "subnormal": 0 < size < fmt.smallest_normal and fate(x, fmt) is Fate.EXACT,
        "normal": fmt.smallest_normal <= size <= fmt.largest,
        "near the maximum": float(fmt.largest) * 0.97 <= size <= fmt.largest,
        "tie": math.isfinite(x) and _is_tie(Fraction(size), fmt),
        "overflow": math.isfinite(x) and fate(x, fmt) is Fate.OVERFLOW,
        "underflow": 0 < size <= half_a_step and fate(x, fmt) is Fate.UNDERFLOW,
        "infinity": math.isinf(x),
        "nan": math.isnan(x),
    }[zone]


def _is_tie(size: Fraction, fmt) -> bool:
    return (size / fmt.spacing(size)) % 1 == Fraction(1, 2)


@by_format
@by_zone
def test_a_zone_gives_only_numbers_that_belong_to_it(fmt, zone):
    @given(strategies.numbers(fmt, [zone]))
    @settings(max_examples=50)
    def every_number_belongs(x):
        assert belongs(x, zone, fmt)
        assert math.isnan(x) or torch.tensor(x, dtype=torch.float32).item() == x

    every_number_belongs()


@by_format
def test_mixed_numbers_reach_every_zone_with_both_signs(fmt):
    seen: Counter[tuple[str, float]] = Counter()

    @given(strategies.numbers(fmt))
    @settings(max_examples=400, derandomize=True, database=None)
    def collect(x):
        seen.update(
            (zone, math.copysign(1.0, x)) for zone in ZONES if belongs(x, zone, fmt)
        )

    collect()
    for zone in ZONES:
        for sign in (1.0, -1.0):
            assert seen[zone, sign], f"{zone}, sign {sign}: {seen}"


@by_layout
def test_a_layout_looks_as_its_name_says(layout):
    tensor = find(strategies.tensors(layouts=[layout]), lambda _: True)
    is_as_named = {
        "contiguous": tensor.is_contiguous() and tensor.dim() == 2,
        "transposed": not tensor.is_contiguous() and tensor.mT.is_contiguous(),
        "strided": tensor.dim() == 2 and tensor.stride(-1) == 2,
        "offset": tensor.storage_offset() > 0,
        "expanded": tensor.dim() == 2 and tensor.stride(0) == 0,
        "empty": tensor.numel() == 0,
        "0-d": tensor.dim() == 0,
        "channels_last": tensor.dim() == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous(),
    }
    assert is_as_named[layout]


@by_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_drawn_elements_arrive_in_every_layout_and_dtype(layout, dtype):
    drawn = strategies.tensors(dtype, elements=st.just(math.inf), layouts=[layout])
    tensor = find(drawn, lambda _: True)
    assert tensor.dtype is dtype
    assert bool(tensor.isinf().any()) == (layout != "empty")


def test_tensors_take_every_layout():
    shapes = set()

    @given(strategies.tensors())
    @settings(max_examples=200, derandomize=True, database=None)
    def collect(tensor):
        shapes.add((tensor.shape, tensor.stride()))

    collect()
    assert len(shapes) == len(LAYOUTS)


def test_invented_formats_come_with_and_without_infinity_and_of_many_sizes():
    find(strategies.invented_formats(), lambda fmt: fmt.has_infinity)
    find(strategies.invented_formats(), lambda fmt: not fmt.has_infinity)
    sizes = set()

    @given(strategies.invented_formats())
    @settings(max_examples=200, derandomize=True, database=None)
    def collect(fmt):
        sizes.add((fmt.exponent_bits, fmt.mantissa_bits))

    collect()
    assert len(sizes) >= 20


@pytest.mark.parametrize("kind", [list, tuple, dict, strategies.Pair])
def test_nests_contain_every_kind_of_container_with_a_leaf_inside(kind):
    nest = find(
        strategies.nests(st.just(torch.ones(2))),
        lambda nest: (
            isinstance(nest, kind)
            and any(isinstance(x, torch.Tensor) for x in tree_flatten(nest)[0])
        ),
    )
    assert isinstance(nest, kind)


@pytest.mark.parametrize("poison", [0.0, math.inf, -math.inf, math.nan])
def test_histories_contain_every_poison(poison):
    find(strategies.histories(), lambda h: any(_same(p, poison) for p in h))


def _same(x: float, y: float) -> bool:
    return x == y or (math.isnan(x) and math.isnan(y))


def test_histories_make_scales_grow_back_off_and_stay():
    def scale_after(drawn):
        chosen, history = drawn
        overflows = [not math.isfinite(poison) for poison in history]
        return fold_scale(chosen, overflows)[0] / chosen.init_scale

    drawn = st.tuples(strategies.scaler_settings(), strategies.histories())
    find(drawn, lambda d: scale_after(d) > 2)
    find(drawn, lambda d: scale_after(d) < 0.25)
    find(drawn, lambda d: len(d[1]) > 5 and scale_after(d) == 1)

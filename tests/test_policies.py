"""Each policy on its own: from arguments to arguments, no region and no dispatcher."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from minamp.autocasting.state import Rules, Setting
from minamp.numbers.formats import BF16 as BF16_FORMAT
from minamp.numbers.formats import FP16 as FP16_FORMAT
from minamp.numbers.rounding import Fate, fate
from minamp.policy.op_lists import Category
from minamp.policy.policies import POLICIES, is_lost
from minamp.policy.torch_lists import torch_lists

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
FORMATS = {FP16: FP16_FORMAT, BF16: BF16_FORMAT}
STAY = (torch.float64, torch.complex64, torch.int64, torch.bool)

by_low = pytest.mark.parametrize("low", [FP16, BF16], ids=str)


def target(low: torch.dtype = FP16) -> Rules:
    return Rules(Setting("cpu", low, True, torch_lists()), cache=None)


def ones(*dtypes: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(torch.ones(2, dtype=dtype) for dtype in dtypes)


def apply(category: Category, args: tuple, low: torch.dtype = FP16, **kwargs):
    return POLICIES[category](args, kwargs, target(low))


def dtypes_after(category: Category, *dtypes, low: torch.dtype = FP16) -> list:
    args, _ = apply(category, ones(*dtypes), low)
    return [arg.dtype for arg in args]


def test_every_category_has_a_policy():
    assert set(POLICIES) == set(Category)


@pytest.mark.parametrize(
    "category", [c for c in Category if c is not Category.BANNED], ids=lambda c: c.value
)
def test_no_policy_touches_what_is_no_eligible_tensor(category):
    meta = torch.ones(2, device="meta")
    args = (*ones(*STAY), meta, None, "mean", 3, [1, 2], True)
    after, kwargs = apply(category, args, weight=None, reduction=1)
    assert kwargs == {"weight": None, "reduction": 1}
    for before, now in zip(args, after, strict=True):
        assert now is before or now == before == [1, 2]


@pytest.mark.parametrize(
    "category", [c for c in Category if c is not Category.BANNED], ids=lambda c: c.value
)
def test_no_policy_changes_the_arguments_in_place(category):
    args, kwargs = ([*ones(FP32, FP16)], *ones(FP32)), {"weight": ones(FP16)[0]}
    tensors, copy = list(args[0]), dict(kwargs)
    POLICIES[category](args, kwargs, target())
    assert all(now is before for now, before in zip(args[0], tensors, strict=True))
    assert kwargs == copy


@by_low
@pytest.mark.parametrize(
    "category", [Category.LOWER_PRECISION_FP, Category.FP32], ids=lambda c: c.value
)
def test_casting_policies_reach_lists_and_keywords(category, low):
    wanted = low if category is Category.LOWER_PRECISION_FP else FP32
    args = (ones(FP32, FP16, BF16)[:2], [*ones(BF16, FP64)], *ones(FP32))
    after, kwargs = apply(category, args, low, weight=ones(BF16)[0])
    assert [t.dtype for t in after[0]] == [wanted] * 2
    assert [t.dtype for t in after[1]] == [wanted, FP64]
    assert after[2].dtype is kwargs["weight"].dtype is wanted


@by_low
@given(dtypes=st.lists(st.sampled_from([FP32, FP16, BF16, FP64]), max_size=4))
def test_promote_takes_float32_if_one_input_is_and_refuses_a_third_dtype(low, dtypes):
    other = BF16 if low is FP16 else FP16
    halves = [d for d in dtypes if d is not FP64]
    # PyTorch looks at the inputs in turn: once float32 is met, anything goes with it.
    seen = halves[: halves.index(FP32)] if FP32 in halves else halves
    if other in seen:
        with pytest.raises(RuntimeError, match=r"cast one of the two.*safe_lists"):
            dtypes_after(Category.PROMOTE, *dtypes, low=low)
        return
    widest = FP32 if FP32 in dtypes else low
    expected = [FP64 if d is FP64 else widest for d in dtypes]
    assert dtypes_after(Category.PROMOTE, *dtypes, low=low) == expected


@given(dtypes=st.lists(st.sampled_from([FP32, FP16, BF16, FP64]), max_size=4))
def test_promote_any_takes_the_narrowest_dtype_that_holds_all(dtypes):
    kinds = {d for d in dtypes if d is not FP64}
    widest = kinds.pop() if len(kinds) == 1 else FP32
    expected = [FP64 if d is FP64 else widest for d in dtypes]
    assert dtypes_after(Category.PROMOTE_ANY, *dtypes) == expected


@given(
    first=st.sampled_from([FP32, FP16, BF16]),
    rest=st.lists(st.sampled_from([FP32, FP16, BF16, FP64]), max_size=3),
)
def test_cast_to_self_follows_the_first_argument(first, rest):
    expected = [first, *(FP64 if d is FP64 else first for d in rest)]
    assert dtypes_after(Category.CAST_TO_SELF, first, *rest) == expected


def test_cast_to_self_writes_to_the_very_tensor_it_was_given():
    args = ones(FP16, FP32)
    after, _ = apply(Category.CAST_TO_SELF, args)
    assert after[0] is args[0]


@pytest.mark.parametrize("first", [FP64, torch.int64])
def test_cast_to_self_leaves_all_alone_for_a_first_argument_it_may_not_change(first):
    assert dtypes_after(Category.CAST_TO_SELF, first, FP16) == [first, FP16]


@pytest.mark.parametrize(
    "category", [Category.FP32_SET_OPT_DTYPE, Category.FP32_APPEND_DTYPE]
)
def test_a_dtype_argument_is_set_unless_the_caller_chose_one(category):
    assert apply(category, ones(FP16))[1] == {"dtype": FP32}
    assert apply(category, ones(FP32), keepdim=True)[1] == {
        "dtype": FP32,
        "keepdim": True,
    }
    assert apply(category, ones(FP16), dtype=FP16)[1] == {"dtype": FP16}
    args = (*ones(FP16), 0, FP64)
    assert apply(category, args) == (args, {})
    assert apply(category, ones(torch.int64))[1] == {}
    assert apply(category, ones(FP64))[1] == {}


def test_the_ban_says_what_to_use_instead():
    with pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        apply(Category.BANNED, ones(FP16))


# --- numbers that are lost -----------------------------------------------------------

BORDERS = [
    math.nextafter(border, towards)
    for fmt in FORMATS.values()
    for edge in (
        fmt.largest + fmt.spacing(fmt.largest) / 2,
        fmt.smallest_subnormal / 2,
        fmt.smallest_subnormal,
        fmt.largest,
    )
    for border in (float(edge),)
    for towards in (0.0, border, math.inf)
]


def is_lost_exactly(number: float, dtype: torch.dtype) -> bool:
    """The same question in rational arithmetic."""
    if number == 0 or not math.isfinite(number):
        return False
    rounded = fate(Fraction(number), FORMATS[dtype])
    return rounded in (Fate.UNDERFLOW, Fate.OVERFLOW)


@by_low
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("number", [*BORDERS, 0.0, -1e9, 1e-8, 1.0, math.inf])
def test_a_number_is_lost_when_exact_rounding_loses_it(number, sign, low):
    assert is_lost(sign * number, low) == is_lost_exactly(sign * number, low)


@by_low
@given(number=st.floats(allow_nan=False))
@example(number=65519.995)  # rounds down to 65504
@example(number=5e-324)
def test_a_drawn_number_is_lost_when_exact_rounding_loses_it(number, low):
    assert is_lost(number, low) == is_lost_exactly(number, low)


def test_not_a_number_and_infinity_are_not_lost():
    for number, low in itertools.product((math.nan, math.inf, -math.inf), FORMATS):
        assert not is_lost(number, low)


@by_low
def test_a_number_that_survives_leaves_the_arguments_alone(low):
    args = (*ones(low), 0.5)
    assert apply(Category.FP32_IF_SCALAR_LOST, args, low) == (args, {})
    args = (*ones(FP32), 1e-30)
    assert apply(Category.FP32_IF_SCALAR_LOST, args, low) == (args, {})


@by_low
def test_a_number_that_is_lost_brings_the_tensors_up_to_float32(low):
    number = 1e-8 if low is FP16 else 1e-45
    after, _ = apply(
        Category.FP32_IF_SCALAR_LOST, (*ones(low, torch.bool), number), low
    )
    assert [t.dtype for t in after[:2]] == [FP32, torch.bool] and after[2] == number
    args, kwargs = apply(
        Category.FP32_IF_SCALAR_LOST, ones(low, low), low, alpha=number
    )
    assert [t.dtype for t in args] == [FP32] * 2 and kwargs == {"alpha": number}


@by_low
def test_a_bool_is_no_number_that_could_be_lost(low):
    args = (*ones(low), True, False)
    assert apply(Category.FP32_IF_SCALAR_LOST, args, low) == (args, {})


@pytest.mark.parametrize(
    ("category", "wanted"),
    [
        (Category.PROMOTE, FP32),
        (Category.PROMOTE_ANY, FP32),
        (Category.CAST_TO_SELF, FP16),
        (Category.FP32_IF_SCALAR_LOST, FP32),
    ],
    ids=str,
)
def test_keywords_decide_and_are_cast_as_arguments_are(category, wanted):
    (first,), (bias,) = ones(FP16), ones(FP32)
    (after,), kwargs = apply(category, (first,), bias=bias, alpha=1e-9)
    assert after.dtype is kwargs["bias"].dtype is wanted and kwargs["alpha"] == 1e-9


@pytest.mark.parametrize(
    "words",
    [
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
        "autocast",
        r"Use binary_cross_entropy_with_logits \(BCEWithLogitsLoss\) on the values",
        "before the sigmoid, or run the loss in a region with enabled=False on float32",
    ],
)
def test_the_ban_names_the_ops_and_both_cures(words):
    with pytest.raises(RuntimeError, match=words):
        apply(Category.BANNED, ones(FP16))


def test_a_third_dtype_is_refused_by_name():
    words = "in a region of torch.float16: an op .* was given torch.bfloat16, which"
    with pytest.raises(RuntimeError, match=words):
        apply(Category.PROMOTE, ones(FP16, BF16))

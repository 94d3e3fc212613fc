"""The ``safe`` lists: PyTorch's, with what they leave dangerous made right.

PyTorch's lists are a compromise with speed and with what kernels existed.  Three kinds
of trouble remain, each reported again and again:

* on the CPU a sum, a softmax, an ``exp`` or a norm of halves runs in halves, and leaves
  their range: the float32 families of CUDA's lists hold here on every device type;
* an op that wants one dtype meets two (half values written into a float32 buffer by
  mask, a running average fed with halves, float16 beside bfloat16) and raises: the
  inputs are promoted, or cast to the tensor that is written to;
* a Python number is lost in a half: ``-1e9`` in a mask raises, ``+ 1e-8`` adds nothing:
  the op runs in float32 when, and only when, its number would be lost.

Matrix products, convolutions and attention are left as they are: the speed is there.
"""

from __future__ import annotations

import functools

from minamp.policy.op_lists import (
    Category,
    OpLists,
    Row,
    family,
    has_overload,
    op_lists,
)
from minamp.policy.torch_lists import CUDA, torch_lists

_NEEDS_FP32 = (
    Category.FP32,
    Category.FP32_SET_OPT_DTYPE,
    Category.FP32_APPEND_DTYPE,
)

SAFE: tuple[Row, ...] = (
    *(row for row in CUDA if row.category in _NEEDS_FP32),
    *family(
        Category.FP32_SET_OPT_DTYPE,
        "a reduction with a dtype argument: it reads halves and sums in float32",
        "mean mean.dim nansum",
    ),
    *family(
        Category.FP32,
        "calls softmax: its backward pass wants one dtype, before and after",
        "_safe_softmax",
    ),
    *family(
        Category.FP32,
        "a sum of squares or of exponentials: it overflows where its input does not",
        "logaddexp logaddexp2 logcumsumexp std.correction std_mean.correction "
        "var.correction var_mean.correction",
    ),
    *family(
        Category.FP32,
        "steep: a small rounding of the input is a large error of the result",
        "exp2 special_entr special_xlog1py xlogy.Tensor",
    ),
    *family(
        Category.PROMOTE_ANY,
        "takes tensors of one dtype only: the narrowest that holds them all decides",
        "addcdiv addcmul addmv addr atan2 bilinear cat complex cross diagonal_scatter "
        "dot grid_sampler index_add index_copy index_copy.dimname index_put "
        "index_reduce lerp.Scalar lerp.Tensor linalg_cross masked_scatter mv put "
        "scatter.reduce scatter.src scatter_add scatter_reduce.two "
        "searchsorted.Tensor select_scatter slice_scatter stack tensordot vdot",
    ),
    *family(
        Category.CAST_TO_SELF,
        "writes into a tensor that is there: what is written takes its dtype",
        "addcdiv_ addcmul_ index_add_ index_copy_ index_put_ index_reduce_ "
        "lerp_.Scalar lerp_.Tensor masked_scatter_ put_ scatter_.reduce scatter_.src "
        "scatter_add_ scatter_reduce_.two",
    ),
    *family(
        Category.FP32_IF_SCALAR_LOST,
        "takes a Python number that may not survive in a half (-1e9, 1e-8)",
        "add.Tensor clamp clamp_max clamp_min masked_fill.Scalar rsub.Scalar "
        "sub.Tensor where.ScalarOther where.ScalarSelf",
    ),
    *family(
        Category.LOWER_PRECISION_FP,
        "a batch of matrix products of different sizes",
        "_grouped_mm",
    ),
)


@functools.cache
def safe_lists() -> OpLists:
    """The ``safe`` lists for every device type that the running PyTorch autocasts."""
    extra = [row for row in SAFE if has_overload(row.op)]
    tables = {
        device_type: _made_safe(dict(rows), extra)
        for device_type, rows in torch_lists().tables.items()
    }
    return op_lists("safe", {d: rows.values() for d, rows in tables.items()})


def _made_safe(rows: dict[str, Row], extra: list[Row]) -> dict[str, Row]:
    """``rows`` overridden by ``extra``, except where that would change a precision.

    What PyTorch runs in halves stays in halves, what it runs in float32 in float32.
    """
    for row in extra:
        listed = rows[row.op].category if row.op in rows else None
        is_lowered = listed in _NEEDS_FP32 and row.category not in _NEEDS_FP32
        if listed is not Category.LOWER_PRECISION_FP and not is_lowered:
            rows[row.op] = row
    return rows

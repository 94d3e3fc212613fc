"""What the `safe` lists promise: nothing leaves the range of a half unasked, and what
wants one dtype gets one. On the CPU with values, on fake CUDA tensors by dtype."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from minamp.autocasting.region import autocast
from minamp.policy.op_lists import Category
from minamp.policy.safe_lists import safe_lists
from minamp.policy.torch_lists import torch_lists
from oracles import assert_same_bits

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
by_low = pytest.mark.parametrize("low", [FP16, BF16], ids=str)


@pytest.fixture(params=["cpu", "fake cuda"])
def place(request):
    """A device type, and for CUDA fake tensors: they have dtypes and no values."""
    if request.param == "cpu":
        yield "cpu"
        return
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        yield "cuda"


def safe(device_type: str = "cpu", dtype: torch.dtype = FP16) -> autocast:
    """A region with the safe lists, made as if there were a GPU."""
    yes = lambda *args, **kwargs: True  # noqa: E731
    with (
        mock.patch("torch.cuda.is_available", yes),
        mock.patch("torch.cuda.is_bf16_supported", yes),
    ):
        return autocast(device_type, dtype, op_lists=safe_lists())


# --- float32 where a half would go wrong ---------------------------------------------

FULL = {
    "sum": lambda t: t.sum(),
    "sum of a dim": lambda t: t.sum(0),
    "mean": lambda t: t.mean(),
    "mean of a dim": lambda t: t.mean(0, keepdim=True),
    "nansum": lambda t: t.nansum(),
    "prod": lambda t: t.prod(),
    "cumsum": lambda t: t.cumsum(0),
    "cumprod": lambda t: t.cumprod(0),
    "softmax": lambda t: t.softmax(-1),
    "log_softmax": lambda t: F.log_softmax(t, -1),
    "logsumexp": lambda t: t.logsumexp(-1),
    "logaddexp": lambda t: torch.logaddexp(t, t),
    "exp": torch.exp,
    "expm1": torch.expm1,
    "exp2": torch.exp2,
    "log": torch.log,
    "log1p": torch.log1p,
    "pow": lambda t: t.pow(2),
    "square by operator": lambda t: t**2,
    "power of a tensor": lambda t: torch.pow(t, t),
    "power to a tensor": lambda t: 2.0**t,
    "reciprocal": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "var": lambda t: t.var(),
    "std of a dim": lambda t: t.std(0),
    "norm": lambda t: t.norm(),
    "norm of a dim": lambda t: t.norm(dim=1),
    "vector norm": torch.linalg.vector_norm,
    "matrix norm": torch.linalg.matrix_norm,
    "layer_norm": lambda t: F.layer_norm(t, t.shape[-1:]),
    "group_norm": lambda t: F.group_norm(t.unsqueeze(0), 2),
    "normalize": F.normalize,
    "cosine_similarity": lambda t: F.cosine_similarity(t, t),
    "mse_loss": lambda t: F.mse_loss(t, t),
    "softplus": F.softplus,
    "cdist": lambda t: torch.cdist(t, t),
}


@by_low
@pytest.mark.parametrize("name", FULL)
def test_what_a_half_would_get_wrong_runs_in_float32(place, low, name):
    halves = torch.full((4, 8), 2.0, device=place, dtype=low)
    with safe(place, low):
        assert FULL[name](halves).dtype is FP32


@pytest.mark.parametrize("name", FULL)
def test_its_value_is_that_of_the_op_on_float32(name):
    halves = torch.rand(4, 8).to(FP16) + 0.5
    with safe():
        inside = FULL[name](halves)
    assert_same_bits(inside, FULL[name](halves.float()))


OVERFLOWS = {
    "sum": lambda t: t.sum(),
    "mean of squares": lambda t: (t**2).mean(),
    "norm": lambda t: t.norm(),
    "exp": lambda t: torch.exp(t / 20),
    "reciprocal of a square": lambda t: torch.reciprocal(1 / t**2),
    "variance": lambda t: (t * torch.tensor([1.0, -1.0], dtype=t.dtype)).var(),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_what_overflows_in_a_half_is_finite(name):
    large = torch.full((200, 2), 400.0, dtype=FP16)
    with safe():
        assert OVERFLOWS[name](large).isfinite().all()


def test_a_dtype_that_was_asked_for_is_given():
    halves = torch.ones(4, dtype=FP16)
    with safe():
        assert halves.sum(dtype=FP16).dtype is FP16
        assert halves.softmax(0, dtype=torch.float64).dtype is torch.float64
        assert halves.double().sum().dtype is torch.float64
        assert torch.ones(4, dtype=torch.int64).sum().dtype is torch.int64


# --- the speed stays -----------------------------------------------------------------

PRODUCTS = {
    "mm": lambda t: t @ t,
    "bmm": lambda t: torch.bmm(t.unsqueeze(0), t.unsqueeze(0)),
    "linear": lambda t: F.linear(t, t),
    "addmm": lambda t: torch.addmm(t, t, t),
    "einsum": lambda t: torch.einsum("ij,jk->ik", t, t),
    "conv1d": lambda t: F.conv1d(t.unsqueeze(0), t.unsqueeze(0)),
}


@by_low
@pytest.mark.parametrize("name", PRODUCTS)
def test_matrix_products_stay_half(place, low, name):
    with safe(place, low):
        assert PRODUCTS[name](torch.ones(4, 4, device=place)).dtype is low


@by_low
def test_attention_stays_half(low):
    """On the CPU only: on CUDA it asks the driver which of its kernels to take."""
    with safe(dtype=low):
        x = torch.ones(1, 1, 4, 4)
        assert F.scaled_dot_product_attention(x, x, x).dtype is low


def test_every_op_that_torch_runs_in_halves_still_does():
    for device_type, rows in torch_lists().tables.items():
        halves = {
            op for op, r in rows.items() if r.category is Category.LOWER_PRECISION_FP
        }
        now = safe_lists().for_device(device_type)
        assert {now[op].category for op in halves} == {Category.LOWER_PRECISION_FP}


def test_safe_lists_drop_no_op_of_torchs():
    for device_type, rows in torch_lists().tables.items():
        assert set(rows) <= set(safe_lists().for_device(device_type))


# --- one dtype for what wants one ----------------------------------------------------

index = lambda t: torch.zeros(2, dtype=torch.int64, device=t.device)  # noqa: E731
mask = lambda t: torch.ones_like(t, dtype=torch.bool)  # noqa: E731
MIXED = {
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "index_put": lambda a, b: a.index_put((index(a),), b),
    "index_add": lambda a, b: a.index_add(0, index(a), b),
    "index_copy": lambda a, b: a.index_copy(0, index(a), b),
    "scatter": lambda a, b: a.scatter(0, index(a), b),
    "scatter_add": lambda a, b: a.scatter_add(0, index(a), b),
    "scatter_reduce": lambda a, b: a.scatter_reduce(0, index(a), b, "sum"),
    "masked_scatter": lambda a, b: a.masked_scatter(mask(a), b),
    "dot": torch.dot,
    "vdot": torch.vdot,
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "lerp by a tensor": lambda a, b: torch.lerp(a, b, a),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b),
    "atan2": torch.atan2,
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
}


def spelled(pair: tuple) -> str:
    return "+".join(str(dtype).removeprefix("torch.") for dtype in pair)


PAIRS = [(FP32, FP16), (FP16, FP32), (FP16, BF16), (BF16, FP16), (BF16, FP32)]


@pytest.mark.parametrize("pair", PAIRS, ids=spelled)
@pytest.mark.parametrize("name", MIXED)
def test_mixed_inputs_are_promoted(place, name, pair):
    a, b = (torch.ones(2, device=place, dtype=d) for d in pair)
    with safe(place):
        assert MIXED[name](a, b).dtype is FP32


@by_low
@pytest.mark.parametrize("name", MIXED)
def test_inputs_of_one_dtype_are_left_alone(low, name):
    a = torch.ones(2, dtype=low)
    with safe(dtype=FP16):
        assert MIXED[name](a, a).dtype is low


WRITES = {
    "index_put_": lambda a, b: a.index_put_((index(a),), b),
    "index_add_": lambda a, b: a.index_add_(0, index(a), b),
    "index_copy_": lambda a, b: a.index_copy_(0, index(a), b),
    "scatter_": lambda a, b: a.scatter_(0, index(a), b),
    "scatter_add_": lambda a, b: a.scatter_add_(0, index(a), b),
    "masked_scatter_": lambda a, b: a.masked_scatter_(mask(a), b),
    "lerp_": lambda a, b: a.lerp_(b, 0.5),
    "addcmul_": lambda a, b: a.addcmul_(b, b),
    "addcdiv_": lambda a, b: a.addcdiv_(b, b),
}


@pytest.mark.parametrize("pair", PAIRS, ids=spelled)
@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_takes_the_dtype_of_where_it_is_written(place, name, pair):
    a, b = (torch.ones(2, device=place, dtype=d) for d in pair)
    with safe(place):
        WRITES[name](a, b)
    assert a.dtype is pair[0]


@pytest.mark.parametrize("where", [mask, index], ids=["mask", "index"])
@pytest.mark.parametrize("pair", PAIRS, ids=spelled)
def test_an_assignment_takes_the_dtype_of_where_it_is_written(pair, where):
    a, b = (torch.full((2,), v, dtype=d) for v, d in zip((0, 1), pair, strict=True))
    with safe():
        a[where(a)] = b
    assert a.dtype is pair[0] and a[0] == 1


def test_a_matrix_times_a_vector_of_another_dtype_works():
    """On CUDA it is one of torch's products in halves; on the CPU it is promoted."""
    for pair in PAIRS:
        a, b = (torch.ones(2, dtype=d) for d in pair)
        with safe():
            assert torch.mv(a.expand(2, 2), b).dtype is FP32


def test_a_write_lands_in_the_tensor_itself_and_has_a_gradient():
    total, part = torch.zeros(4), torch.ones(2, dtype=FP16, requires_grad=True)
    with safe():
        total.index_add_(0, torch.tensor([1, 3]), part)
    assert total.tolist() == [0, 1, 0, 1]
    total.sum().backward()
    assert part.grad.dtype is FP16 and part.grad.tolist() == [1, 1]


# --- numbers -------------------------------------------------------------------------

LOST = {
    "masked_fill": lambda t: t.masked_fill(t > 5, -1e9),
    "x + 1e-8": lambda t: t + 1e-8,
    "1e-8 + x": lambda t: 1e-8 + t,
    "x - 1e-8": lambda t: t - 1e-8,
    "1e9 - x": lambda t: 1e9 - t,
    "clamp": lambda t: t.clamp(min=1e-12),
    "where": lambda t: torch.where(t > 5, t, -1e9),
}


@pytest.mark.parametrize("name", LOST)
def test_a_number_that_a_half_cannot_hold_brings_the_op_up_to_float32(place, name):
    with safe(place):
        halves = torch.zeros(4, device=place, dtype=FP16)
        assert LOST[name](halves).dtype is FP32
    if place == "cpu":
        with safe():
            inside = LOST[name](torch.zeros(4, dtype=FP16))
        assert_same_bits(inside, LOST[name](torch.zeros(4)))


@by_low
def test_a_number_that_a_half_can_hold_leaves_it_half(place, low):
    halves = torch.ones(4, device=place, dtype=low)
    with safe(place, low):
        for result in (
            halves + 1,
            halves - 0.5,
            2 - halves,
            halves.clamp(0, 6),
            halves.masked_fill(halves > 5, float("-inf")),
            torch.where(halves > 5, halves, 0.0),
        ):
            assert result.dtype is low


def test_integers_and_float64_meet_numbers_as_always():
    with safe():
        assert (torch.ones(2, dtype=torch.int64) + 10**9).dtype is torch.int64
        assert (torch.ones(2).double() + 1e-300).dtype is torch.float64
        assert (torch.ones(2) + 1e-30).dtype is FP32


# --- whole models --------------------------------------------------------------------


def test_a_transformer_layer_trains_under_the_safe_lists():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.randn(2, 3, 8)
    with safe(dtype=BF16):
        layer(x).pow(2).mean().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    layer.eval()
    with safe(dtype=BF16), torch.no_grad():
        assert layer(x).isfinite().all()


def test_a_running_average_fed_with_halves_stays_float32():
    average = torch.zeros(4)
    with safe():
        for _ in range(3):
            average.lerp_(torch.ones(4, dtype=FP16), 0.1)
    assert_same_bits(
        average,
        torch.zeros(4)
        .lerp(torch.ones(4), 0.1)
        .lerp(torch.ones(4), 0.1)
        .lerp(torch.ones(4), 0.1),
    )

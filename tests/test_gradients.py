"""Lists of gradients: is every element finite, what is the norm, unscaling."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import oracles
import strategies
from minamp.tensors import gradients
from minamp.tensors.reading_pass import BLOCK, SMALL, TINY

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# Finite, yet their squares (of fp16: their sum) are not.
HUGE = {
    torch.float32: 3e38,
    torch.float64: 1.7e308,
    torch.float16: 65504.0,
    torch.bfloat16: 3.3e38,
}
SIZES = [1, 7, 4096, SMALL + 1, BLOCK + 3]


def tensors_of(dtype: torch.dtype, sizes: list[int], device: str) -> list[torch.Tensor]:
    return [torch.linspace(-2, 3, size, device=device).to(dtype) for size in sizes]


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_bad_element_anywhere_is_found(dtype, poison, device):
    for where in range(len(SIZES)):
        for place in (0, SIZES[where] // 2, -1):
            tensors = tensors_of(dtype, SIZES, device)
            tensors[where][place] = poison
            assert gradients.nonfinite(tensors).item() == 1.0


@pytest.mark.parametrize("size", [0, 1, 7, TINY, TINY + 1, SMALL, SMALL + 1])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_bad_element_among_zeros_is_found(number, size, device):
    """0 * inf is NaN: no partner that an element is multiplied by can hide it."""
    for where in range(number):
        for place in {0, size // 2, size - 1} if size else ():
            tensors = [torch.zeros(size, device=device) for _ in range(number)]
            assert gradients.nonfinite(tensors).item() == 0.0
            tensors[where][place] = math.inf
            assert gradients.nonfinite(tensors).item() == 1.0


def test_empty_tensors_hold_nothing_bad(device):
    empty = [torch.ones(0, device=device), torch.ones(3, 0, device=device)]
    for tensors in (empty, [*empty, torch.ones(2, device=device)]):
        for ask in (gradients.nonfinite, gradients._nonfinite_by_largest):
            assert ask(tensors).item() == 0.0
        gradients.check_and_multiply_(tensors, torch.tensor(0.5, device=device))
    assert gradients.norm(empty).item() == 0.0


@pytest.mark.parametrize("poison", [0.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_ways_to_check_of_other_devices_and_of_compile_agree(dtype, poison, device):
    tensors = tensors_of(dtype, SIZES, device)
    tensors[1][:2] = HUGE[dtype]
    tensors[2][5] += poison
    expected = float(poison != 0.0)
    assert gradients._nonfinite_by_largest(tensors).item() == expected
    assert gradients._nonfinite_elementwise(tensors).item() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_gradients_whose_sum_and_squares_overflow_are_no_overflow(dtype, device):
    tensors = tensors_of(dtype, SIZES, device)
    for tensor in tensors:
        tensor[:2] = HUGE[dtype]
    assert gradients.nonfinite(tensors).item() == 0.0


@given(st.lists(strategies.tensors(torch.float32), min_size=1, max_size=6), st.data())
def test_the_check_is_isfinite_of_every_element_for_any_layout(tensors, data):
    group = [t for t in tensors if t.numel()]
    if not group:
        return
    if data.draw(st.booleans()):
        victim = data.draw(st.sampled_from(group))
        place = tuple(data.draw(st.integers(0, n - 1)) for n in victim.shape)
        victim[place] = data.draw(st.sampled_from([math.inf, -math.inf, math.nan]))
    expected = not all(bool(t.isfinite().all()) for t in group)
    assert gradients.nonfinite(group).item() == expected


@given(st.lists(strategies.tensors(torch.float32), min_size=1, max_size=6))
def test_checking_changes_no_bit(tensors):
    group = [t for t in tensors if t.numel()]
    before = [t.clone() for t in group]
    if group:
        gradients.nonfinite(group)
        gradients.norm(group)
    for tensor, copy in zip(group, before, strict=True):
        oracles.assert_same_bits(tensor, copy)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_is_that_of_all_elements_in_one_vector(dtype, device):
    tensors = tensors_of(dtype, SIZES, device)
    exact = torch.linalg.vector_norm(torch.cat(tensors).double())
    # A float32 sum of n squares is off by at most n * 2**-24. A block has n = 2**20,
    # but `dot` keeps many partial sums, and rounding errors mostly cancel: sqrt(n).
    assert gradients.norm(tensors).item() == pytest.approx(exact.item(), rel=2**-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_norm_is_finite_although_squares_overflow(dtype, device):
    huge = [torch.full((8,), HUGE[dtype], dtype=dtype, device=device)] * 2
    expected = 4 * huge[0][0].item()
    assert gradients.norm(huge).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_is_not_finite_if_an_element_is_not(dtype, poison, device):
    tensors = tensors_of(dtype, SIZES, device)
    tensors[2][5] = poison
    assert not math.isfinite(gradients.norm(tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@given(exponent=st.integers(-30, 30))
@example(exponent=-16)
def test_multiplying_by_a_power_of_two_is_exact(dtype, exponent):
    tensor = torch.linspace(-2, 3, 11).to(dtype)
    expected = tensor * 2.0**exponent
    gradients.multiply_([tensor], torch.tensor(2.0**exponent))
    assert torch.equal(tensor, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_gradients_are_rounded_once_after_the_product(dtype, device):
    """2**-30 is no fp16 number: rounded before the product, everything becomes 0."""
    tensor = torch.tensor([65504.0, 3.0, -1e4], device=device).to(dtype)
    factor = torch.tensor(2.0**-30 / 3, device=device)
    expected = (tensor.double() * factor.double()).to(dtype)
    gradients.multiply_([tensor], factor)
    oracles.assert_same_bits(tensor, expected)


@pytest.mark.parametrize("poison", [0.0, math.inf, math.nan])
def test_check_and_multiply_is_check_then_multiply(poison, device):
    whole = tensors_of(torch.float32, SIZES, device)
    whole[-1][-1] += poison
    whole.append(torch.ones(300, 300, device=device).t()[:, 1:])  # large, with gaps
    parts = [tensor.clone() for tensor in whole]
    factor = torch.tensor(1 / 3, device=device)
    expected = gradients.nonfinite(whole)
    gradients.multiply_(whole, factor)
    found = gradients.check_and_multiply_(parts, factor)
    assert found.item() == expected.item()
    for one, other in zip(whole, parts, strict=True):
        oracles.assert_same_bits(one, other)


def test_tensors_are_sorted_by_device_and_dtype():
    tensors = [torch.ones(2), torch.ones(0), torch.ones(1).half(), torch.ones(3)]
    groups = gradients.by_device_and_dtype(tensors)
    cpu = torch.device("cpu")
    assert [len(groups[cpu, d]) for d in (torch.float32, torch.float16)] == [3, 1]
    assert gradients.by_device_and_dtype([]) == {}


def test_the_values_of_sparse_and_complex_gradients_share_their_memory():
    dense = torch.eye(3)
    sparse = dense.to_sparse().coalesce()
    gradients.values_of(sparse).mul_(2)
    assert torch.equal(sparse.to_dense(), 2 * dense)
    complex_ = torch.ones(2, dtype=torch.complex64)
    assert gradients.values_of(complex_).shape == (2, 2)  # real and imaginary parts
    gradients.values_of(complex_).mul_(3)
    assert torch.equal(complex_, torch.full((2,), 3 + 0j))


class CountCalls(TorchDispatchMode):
    """How many operators PyTorch runs: what many small tensors cost."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def calls_for(tensors: list[torch.Tensor]) -> int:
    with CountCalls() as count:
        (group,) = gradients.by_device_and_dtype(tensors).values()
        gradients.norm(group)
        gradients.check_and_multiply_(group, torch.tensor(0.5))
    return count.calls


def test_many_small_tensors_cost_no_more_than_their_number():
    few, many = (calls_for([torch.ones(4)] * n) for n in (1_000, 10_000))
    assert many <= 10 * few
    assert many < 1_000, "tensors of one shape share their calls"


def test_the_number_of_calls_grows_with_elements_not_faster():
    small, large = (calls_for([torch.ones(n)]) for n in (2**21, 2**24))
    assert large <= 8 * small


# --- devices that this machine may not have ------------------------------------------


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on another device, and computes here all the same."""

    device = torch.device("cuda")


class OnMps(Elsewhere):
    device = torch.device("mps")


@pytest.mark.parametrize("parts", [[[3.0, 4.0]], [[3.0], [4.0]]])
@pytest.mark.parametrize(
    ("kind", "wide"), [(Elsewhere, torch.float64), (OnMps, torch.float32)]
)
def test_an_accelerator_takes_the_norm_in_the_widest_dtype_it_has(kind, wide, parts):
    tensors = [torch.tensor(part).as_subclass(kind) for part in parts]
    norm = gradients._norm_wide(tensors)
    assert norm.item() == 5.0 and norm.dtype is wide


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_answers_are_0_dim_and_of_the_promised_dtypes(dtype, device):
    tensors = tensors_of(dtype, SIZES, device)
    norm, flag = gradients.norm(tensors), gradients.nonfinite(tensors)
    flags = [flag, gradients._nonfinite_by_largest(tensors)]
    flags += [gradients._nonfinite_elementwise(tensors)]
    assert norm.dtype is torch.float64 and norm.shape == ()
    assert all(f.dtype is torch.float32 and f.shape == () for f in flags)


def test_the_answer_is_float32_whatever_the_default_dtype(device):
    tensors = tensors_of(torch.float32, [1, 7], device)
    empty = [torch.ones(0, device=device)]
    torch.set_default_dtype(torch.float64)
    try:
        flags = [gradients.nonfinite(tensors), gradients.nonfinite(empty)]
        flags += [gradients._nonfinite_by_largest(empty)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(flag.dtype is torch.float32 for flag in flags)


def test_the_answers_are_on_the_device_of_the_tensors():
    """The device "meta" has no values, so asking for one would raise."""
    tensors = [torch.ones(n, device="meta") for n in (3, 1)]
    factor = torch.ones((), device="meta")
    assert gradients.nonfinite(tensors).is_meta
    assert gradients.nonfinite([torch.ones(0, device="meta")]).is_meta
    assert gradients.check_and_multiply_(tensors, factor).is_meta
    assert gradients.norm(tensors).is_meta


# What is done while a graph is compiled stands in Python.
SORTS = [gradients.by_device_and_dtype, gradients._by_device_and_dtype_in_python]


def test_tensors_that_differ_in_device_or_dtype_are_kept_apart():
    here, meta = torch.device("cpu"), torch.device("meta")
    for other in [(meta, torch.float32), (here, torch.half), (meta, torch.half)]:
        places = [(here, torch.float32), other]
        tensors = [torch.empty(1, device=d, dtype=dtype) for d, dtype in places]
        for sort in SORTS:
            groups = sort(tensors)
            assert set(groups) == set(places)
            assert all(groups[p][0] is t for p, t in zip(places, tensors, strict=True))


class Sharded(torch.Tensor):
    """As DTensor does it: the numbers are in the local tensor, not in this one."""

    def to_local(self) -> torch.Tensor:
        return self.local


def test_the_values_of_a_shard_are_its_local_tensor():
    shard = torch.zeros(4).as_subclass(Sharded)
    shard.local = torch.ones(2)
    assert gradients.values_of(shard) is shard.local


def test_the_values_of_a_parameter_or_a_plain_subclass_are_itself():
    for tensor in (torch.nn.Parameter(torch.ones(2)), OnMps(torch.ones(2))):
        assert gradients.values_of(tensor) is tensor


# --- what the host sees and when -----------------------------------------------------


class LogCalls(CountCalls):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("poison", [0.0, math.nan])
def test_while_a_graph_is_compiled_no_value_is_asked_for(poison, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    tensors, factor = [torch.ones(3), torch.ones(2)], torch.tensor(0.5)
    tensors[1][0] += poison
    with LogCalls() as log:
        answers = [gradients.nonfinite(tensors), gradients.norm(tensors)]
        answers += [gradients.check_and_multiply_(tensors, factor)]
    assert "_local_scalar_dense" not in log.names
    assert answers[0].item() == answers[2].item() == float(math.isnan(poison))
    assert tensors[0].tolist() == [0.5] * 3
    assert math.isnan(poison) == math.isnan(answers[1])


def test_each_pass_goes_over_whole_tensors_so_that_all_cores_have_work():
    tensors = [torch.ones(2 * BLOCK) for _ in range(2)]
    with LogCalls() as log:
        gradients.check_and_multiply_(tensors, torch.tensor(0.5))
    work = [name for name in log.names if name in ("dot", "_foreach_mul_")]
    assert work == ["dot", "dot", "_foreach_mul_"]


def test_the_norm_adds_up_squares_in_blocks_which_keeps_them_exact_enough():
    tensors = [torch.ones(2 * BLOCK) for _ in range(2)]
    with LogCalls() as log:
        assert gradients.norm(tensors).item() == math.sqrt(4 * BLOCK)
    assert log.names.count("dot") == 4


def test_the_largest_of_the_small_tensors_are_added_up_in_blocks_of_few():
    tensors = [torch.ones(SMALL) for _ in range(3)]
    assert gradients.norm(tensors).item() == math.sqrt(3 * SMALL)
    tensors[2][-1] = math.nan
    assert gradients.nonfinite(tensors).item() == 1.0


def test_dense_gradients_are_their_own_values_if_they_are_real():
    dense = [torch.ones(2), torch.ones(1).half(), torch.ones(2, 3).t()]
    assert gradients.are_dense([]) and gradients.are_dense(dense)
    assert all(gradients.values_of(grad) is grad for grad in dense)
    shard = torch.ones(2).as_subclass(Sharded)
    for other in (torch.eye(2).to_sparse(), shard):
        assert not gradients.are_dense([*dense, other])

"""Regions: how they nest, what they decorate, what they refuse, whom they meet.

`test_region_laws.py` puts the common laws to any implementation; here is what minamp
promises beyond them, or where PyTorch's own machinery passes through a region.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import importlib
import inspect
import pickle
import subprocess
import sys
import threading
import types
import warnings
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from minamp.autocasting import dispatch_key
from minamp.autocasting import region as region_module
from minamp.autocasting.region import (
    autocast,
    get_autocast_dtype,
    is_autocast_available,
    is_autocast_cache_enabled,
    is_autocast_enabled,
)
from minamp.policy.op_lists import Category
from minamp.policy.safe_lists import safe_lists
from minamp.policy.torch_lists import torch_lists
from op_calls import dtype_of_mm
from oracles import assert_same_bits
from small_models import an_lstm_that_runs

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
REGIONS = pytest.mark.parametrize("any_autocast", [autocast, torch.autocast])


def region(dtype: torch.dtype = BF16, **kwargs) -> autocast:
    return autocast("cpu", dtype=dtype, **kwargs)


def mm() -> torch.dtype:
    return dtype_of_mm("cpu")


class Stop(Exception):
    """Thrown through regions."""


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    yield
    assert mm() is FP32
    assert dispatch_key.current().settings == {}
    assert not dispatch_key.is_visible()
    assert dispatch_key.thread.depth == 0
    assert not torch.is_autocast_enabled("privateuseone")


# --- nesting -------------------------------------------------------------------------


def test_one_instance_may_be_entered_again_while_it_is_entered():
    once = region()
    with once:
        with region(FP16):
            with once:
                assert mm() is BF16
                with once:
                    assert mm() is BF16
                assert mm() is BF16
            assert mm() is FP16
        assert mm() is BF16
    with once:
        assert mm() is BF16


def test_one_instance_serves_several_threads_at_once():
    shared, seen = region(), []
    barrier = threading.Barrier(4, timeout=30)

    def work() -> None:
        for _ in range(20):
            barrier.wait()
            with shared, region(FP16), shared:
                seen.append(mm())
            seen.append(mm())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen.count(BF16) == seen.count(FP32) == 80


def test_none_means_as_around():
    lists = torch_lists().move("cpu", "mm", Category.FP32, why="a test")
    with region(FP16, op_lists=lists, cache_enabled=False):
        with autocast("cpu"):
            assert get_autocast_dtype("cpu") is FP16
            assert not is_autocast_cache_enabled()
            assert mm() is FP32
        with region(BF16, op_lists=torch_lists()):
            assert mm() is BF16
        with region(enabled=False), autocast("cpu"):
            assert F.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype is BF16


def test_the_surroundings_count_are_those_of_where_the_region_is_made():
    """As in PyTorch: what is None is filled in by `autocast(...)`, not by `with`."""
    made_outside = autocast("cpu")
    with region(FP16):
        made_inside = autocast("cpu")
        with made_outside:
            assert mm() is BF16
    with made_inside:
        assert mm() is FP16


def test_regions_closed_in_the_wrong_order_end_outside():
    first, second = region(BF16), region(FP16)
    first.__enter__()
    second.__enter__()
    second.__exit__(None, None, None)
    first.__exit__(None, None, None)
    with contextlib.ExitStack() as stack:
        for dtype in (BF16, FP16, BF16):
            stack.enter_context(region(dtype))
        assert mm() is BF16


def test_an_exception_inside_a_kernel_leaves_the_region_as_it_was():
    with region():
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        with pytest.raises(RuntimeError, match="third|Unexpected"):
            torch.cat([torch.ones(2, dtype=BF16), torch.ones(2, dtype=FP16)])
        assert mm() is BF16


def test_an_exception_while_a_region_is_made_changes_nothing():
    with region():
        with pytest.raises(RuntimeError), region(torch.int32):
            pass
        assert mm() is BF16


def test_the_exit_lets_exceptions_through():
    with pytest.raises(Stop), region():
        raise Stop
    assert region().__exit__.__annotations__["return"] == "None"


def test_with_gives_the_region_itself():
    once = region()
    with once as given:
        assert given is once
    assert once.fast_dtype is BF16 and once.device == "cpu"


def test_a_region_of_torch_inside_ours_and_ours_inside_it_cast_once():
    x = torch.randn(3, 3)
    by_hand = torch.mm(x.to(BF16), x.to(BF16))
    with region(), torch.autocast("cpu", dtype=BF16):
        assert_same_bits(torch.mm(x, x), by_hand)
    with torch.autocast("cpu", dtype=BF16), region():
        assert_same_bits(torch.mm(x, x), by_hand)
    with torch.autocast("cpu", dtype=BF16), region(enabled=False):
        assert mm() is BF16  # ours says nothing of torch's
    assert not torch.is_autocast_enabled("cpu")


# --- decorators ----------------------------------------------------------------------


def test_a_decorated_method_keeps_its_self_and_its_name():
    class Model:
        @region()
        def run(self) -> tuple:
            """Runs."""
            return self, mm()

        @staticmethod
        @region()
        def static() -> torch.dtype:
            return mm()

        @classmethod
        @region()
        def of_class(cls) -> tuple:
            return cls, mm()

        @property
        @region()
        def prop(self) -> torch.dtype:
            return mm()

    model = Model()
    assert model.run() == (model, BF16)
    assert Model.run.__name__ == "run" and Model.run.__doc__ == "Runs."
    assert Model.static() is BF16 and model.prop is BF16
    assert Model.of_class() == (Model, BF16)


def test_a_decorated_function_may_call_itself_and_fail():
    @region()
    def countdown(left: int) -> list[torch.dtype]:
        if left < 0:
            raise Stop
        return [mm(), *countdown(left - 1)] if left else [mm()]

    assert countdown(3) == [BF16] * 4
    with pytest.raises(Stop):
        countdown(-1)


def test_modules_partials_and_callable_objects_can_be_decorated():
    layer, x = torch.nn.Linear(2, 2), torch.ones(2, 2)
    assert region()(layer)(x).dtype is BF16
    assert region()(functools.partial(torch.mm, x))(x).dtype is BF16
    assert region()(layer.forward)(x).dtype is BF16


def test_what_cannot_be_decorated_is_refused_with_the_cure():
    with pytest.raises(TypeError, match=r"requires a callable.*write `with autocast"):
        region()(3)


def test_a_decorated_generator_runs_inside_and_its_caller_does_not():
    @region()
    def pieces():
        received = yield mm()
        while received != "stop":
            try:
                received = yield received, mm()
            except Stop:
                received = yield "caught", mm()
        return mm()

    assert inspect.isgeneratorfunction(pieces)
    body = pieces()
    assert isinstance(body, types.GeneratorType)
    assert next(body) is BF16
    assert mm() is FP32
    with region(FP16):
        assert body.send(1) == (1, BF16)
        assert mm() is FP16
    assert body.throw(Stop()) == ("caught", BF16)
    with pytest.raises(StopIteration) as stopped:
        body.send("stop")
    assert stopped.value.value is BF16


def test_a_decorated_generator_cleans_up_inside_when_it_is_closed():
    seen = []

    @region()
    def pieces():
        try:
            yield mm()
        finally:
            seen.append(mm())

    body = pieces()
    next(body)
    body.close()
    assert seen == [BF16] and mm() is FP32
    body = pieces()
    next(body)
    del body
    assert seen == [BF16] * 2
    pieces().close()  # not begun: there is nothing to clean up
    assert seen == [BF16] * 2


def test_an_exception_leaves_a_decorated_generator_as_it_left_the_body():
    @region()
    def pieces():
        yield 1
        raise Stop

    body = pieces()
    next(body)
    with pytest.raises(Stop):
        next(body)
    with pytest.raises(StopIteration):
        next(body)


def test_two_decorated_generators_may_take_turns():
    def pieces():
        while True:
            yield mm()

    one, other = region(BF16)(pieces)(), region(FP16)(pieces)()
    assert [next(g) for g in (one, other, one, other)] == [BF16, FP16] * 2


def test_a_decorated_coroutine_runs_inside_and_those_beside_it_do_not():
    async def seen_twice() -> tuple:
        before = mm()
        await asyncio.sleep(0)
        return before, mm()

    async def main() -> list:
        tasks = seen_twice(), region(BF16)(seen_twice)(), region(FP16)(seen_twice)()
        return await asyncio.gather(*tasks)

    assert inspect.iscoroutinefunction(region()(seen_twice))
    assert asyncio.run(main()) == [(FP32, FP32), (BF16, BF16), (FP16, FP16)]


def test_a_cancelled_coroutine_cleans_up_inside():
    seen = []

    @region()
    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(mm())

    async def main() -> None:
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == [BF16]


def test_a_decorated_asynchronous_generator_runs_inside():
    seen = []

    @region()
    async def pieces():
        try:
            received = yield mm()
            await asyncio.sleep(0)
            try:
                yield received, mm()
            except Stop:
                yield "caught", mm()
            yield "last", mm()
        finally:
            await asyncio.sleep(0)
            seen.append(mm())

    async def main() -> None:
        body = pieces()
        assert await body.__anext__() is BF16
        assert mm() is FP32
        assert await body.asend(1) == (1, BF16)
        assert await body.athrow(Stop()) == ("caught", BF16)
        await body.aclose()
        assert seen == [BF16] and mm() is FP32
        assert [item async for item in pieces()][-1] == ("last", BF16)

    assert inspect.isasyncgenfunction(pieces)
    asyncio.run(main())
    assert seen == [BF16] * 2


def test_what_an_asynchronous_generator_raises_reaches_its_caller():
    @region()
    async def pieces():
        yield 1
        raise Stop

    async def main() -> None:
        body = pieces()
        await body.__anext__()
        with pytest.raises(Stop):
            await body.__anext__()
        with pytest.raises(StopAsyncIteration):
            await body.__anext__()

    asyncio.run(main())


# --- copies, queries, errors ---------------------------------------------------------


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))]
)
def test_a_copied_region_asks_for_the_same(copied):
    lists = torch_lists().move("cpu", "mm", Category.FP32, why="a test")
    original = region(FP16, op_lists=lists, cache_enabled=False)
    for entered in (contextlib.nullcontext(), original):
        with entered:
            twin = copied(original)
        with twin:
            assert mm() is FP32
            assert F.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype is FP16
            assert not is_autocast_cache_enabled()
        with twin, original, twin:
            assert get_autocast_dtype("cpu") is FP16


def test_a_module_with_a_decorated_forward_can_be_copied():
    layer = torch.nn.Linear(2, 2)
    layer.region = region()
    assert copy.deepcopy(layer).region.fast_dtype is BF16


def test_queries_say_what_the_next_op_will_do():
    assert not is_autocast_enabled("cpu") and get_autocast_dtype("cpu") is BF16
    assert get_autocast_dtype("cuda") is FP16 and is_autocast_cache_enabled()
    with region(FP16, cache_enabled=False):
        assert is_autocast_enabled("cpu") and get_autocast_dtype("cpu") is FP16
        assert not is_autocast_enabled("cuda") and not is_autocast_cache_enabled()
        with region(BF16, enabled=False):
            assert not is_autocast_enabled("cpu")
            assert get_autocast_dtype("cpu") is BF16
    assert is_autocast_available("cpu") and is_autocast_available("cuda")
    assert not is_autocast_available("meta")


def test_the_default_dtype_follows_torch():
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", FP16)
    try:
        assert autocast("cpu").fast_dtype is FP16
    finally:
        torch.set_autocast_dtype("cpu", before)


def test_a_device_instead_of_its_type_is_refused_with_the_cure():
    with pytest.raises(ValueError, match=r"`device_type` of type `str`.*device\.type"):
        autocast(torch.device("cpu"))


def test_a_device_type_without_a_table_is_refused_with_the_cure():
    with pytest.raises(RuntimeError, match=r"'meta'.*tables for cpu.*OpLists\.add"):
        autocast("meta")
    with pytest.raises(RuntimeError, match="cqu"):
        autocast("cqu")


@pytest.mark.parametrize("dtype", [FP32, torch.float64, torch.int8, torch.complex64])
def test_a_dtype_that_cannot_work_is_refused_with_the_cure(dtype):
    with pytest.raises(RuntimeError, match=rf"{dtype}.*choose one.*enabled=False"):
        region(dtype)
    with region(dtype, enabled=False):
        assert mm() is FP32


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_cuda_without_cuda_casts_nothing_and_says_so_where_it_was_written():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cuda = autocast("cuda")
    assert [str(w.category.__name__) for w in told] == ["UserWarning"]
    assert "write autocast('cpu')" in str(told[0].message)
    assert told[0].filename == __file__
    with cuda:
        assert not is_autocast_enabled("cuda") and mm() is FP32


def test_a_region_left_without_being_entered_says_so():
    with pytest.raises((RuntimeError, AttributeError, IndexError)):
        region().__exit__(None, None, None)


# --- two device types ----------------------------------------------------------------


@pytest.fixture
def fake_cuda():
    """Tensors on "cuda", on every machine: fake ones, which have a dtype but no data.

    Without grad: a fake leaf that requires grad sets up a real device.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        yield


def cuda_region(dtype: torch.dtype = FP16, **kwargs) -> autocast:
    """A region for CUDA, made as if there were a GPU."""
    yes = lambda *args, **kwargs: True  # noqa: E731
    with (
        mock.patch("torch.cuda.is_available", yes),
        mock.patch("torch.cuda.is_bf16_supported", yes),
    ):
        return autocast("cuda", dtype, **kwargs)


def test_each_device_type_follows_its_own_region(fake_cuda):
    def seen() -> list[torch.dtype]:
        return [dtype_of_mm("cpu"), dtype_of_mm("cuda")]

    with cuda_region(FP16):
        assert seen() == [FP32, FP16]
        with region(BF16):
            assert seen() == [BF16, FP16]
            with cuda_region(enabled=False):
                assert seen() == [BF16, FP32]
            with cuda_region(BF16), region(FP16):
                assert seen() == [FP16, BF16]
            assert seen() == [BF16, FP16]
        assert seen() == [FP32, FP16]


def test_an_op_on_the_list_of_one_device_type_only_is_left_alone_on_the_other(
    fake_cuda,
):
    half = {d: torch.ones(2, 2, device=d, dtype=BF16) for d in ("cpu", "cuda")}
    makers = region, cuda_region
    for order in (makers, makers[::-1]):
        with contextlib.ExitStack() as stack:
            for make in order:
                stack.enter_context(make(BF16))
            assert torch.exp(half["cpu"]).dtype is BF16
            assert torch.exp(half["cuda"]).dtype is FP32
            # einsum stands on CUDA's list; on the CPU the bmm within stands on it.
            for device_type in ("cpu", "cuda"):
                x = torch.ones(2, 2, device=device_type)
                assert torch.einsum("ij,jk->ik", x, x).dtype is BF16


def test_a_cpu_scalar_does_not_bring_its_own_region_along(fake_cuda):
    x, scalar = torch.ones(2, 2, device="cuda", dtype=FP16), torch.ones(())
    with cuda_region(FP16), region(BF16):
        assert (x * scalar).dtype is FP16
        assert torch.mm(x, x).dtype is FP16


# --- inside other machinery ----------------------------------------------------------


class Log(TorchDispatchMode):
    """The ops that arrive below autograd, with the dtypes of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        dtypes = [a.dtype for a in args if isinstance(a, torch.Tensor)]
        self.seen.append((func.overloadpacket.__name__, *dtypes))
        return func(*args, **kwargs or {})


def test_a_dispatch_mode_sees_the_casts_and_the_op_on_cast_arguments():
    x = torch.ones(2, 2)
    for outer, inner in ((Log(), region()), (region(), Log())):
        log = outer if isinstance(outer, Log) else inner
        with outer, inner:
            torch.mm(x, x)
        assert log.seen == [
            ("_to_copy", FP32),
            ("_to_copy", FP32),
            ("mm", BF16, BF16),
        ]


def test_a_dispatch_mode_may_call_listed_ops_itself():
    class Doubles(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.relu.default:
                seen.append(mm())
            return func(*args, **kwargs or {})

    seen: list[torch.dtype] = []
    with region(), Doubles():
        torch.relu(torch.ones(2))
    # Above the modes lies the autocast floor, and it has been passed by then.
    with torch.autocast("cpu", dtype=BF16), Doubles():
        torch.relu(torch.ones(2))
    assert seen[0] is seen[1]


@REGIONS
def test_a_function_mode_sees_each_call_once(any_autocast):
    from torch.overrides import TorchFunctionMode

    class Names(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **kwargs or {})

    seen: list[str] = []
    x = torch.randn(3, 3)
    with any_autocast("cpu", dtype=BF16), Names():
        torch.einsum("ij,jk->ik", x, x)
        torch.mm(x, x)
    assert seen == ["einsum", "mm"]


@REGIONS
def test_a_tensor_subclass_stays_what_it_is_and_sees_each_call_once(any_autocast):
    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    x, seen = torch.randn(3, 3).as_subclass(Sub), []
    with any_autocast("cpu", dtype=BF16):
        result = torch.mm(x, x)
    assert seen == ["mm"]
    assert type(result) is Sub and result.as_subclass(torch.Tensor).dtype is BF16


# torch.func still builds on TorchScript, and PyTorch warns of that itself.
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_function_transforms_run_in_the_region():
    x, weight = torch.randn(3, 3), torch.randn(3, 3)

    def layer(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)

    def loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return layer(weight, x).float().sum()

    by_hand = loss(weight.to(BF16), x.to(BF16))
    with region():
        batch = torch.func.vmap(layer, in_dims=(None, 0))(weight, x.expand(2, 3, 3))
        grad, value = torch.func.grad_and_value(loss)(weight, x)
        out, tangent = torch.func.jvp(lambda w: layer(w, x), (weight,), (weight,))
        hessian = torch.func.hessian(lambda w: loss(w, x).pow(2))(weight)
        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(
            weight, x.expand(2, 3, 3)
        )
    assert batch.dtype is out.dtype is tangent.dtype is BF16
    assert_same_bits(value, by_hand)
    assert grad.dtype is per_sample.dtype is hessian.dtype is FP32
    assert_same_bits(per_sample[1], grad)


def test_functional_call_runs_in_the_region():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    parameters = {name: p * 2 for name, p in model.named_parameters()}
    x = torch.randn(2, 3)
    with region():
        inside = torch.func.functional_call(model, parameters, (x,))
    halves = {name: p.to(BF16) for name, p in parameters.items()}
    assert_same_bits(inside, torch.func.functional_call(model, halves, (x.to(BF16),)))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.slow
def test_an_exported_program_is_plain_and_follows_the_region_it_runs_in(strict):
    """As with torch.autocast: export writes down the ops above the autocast floor."""
    layer, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
    with region():
        exported = torch.export.export(layer, (x,), strict=strict)
        inside = layer(x)
        assert_same_bits(exported.module()(x), inside)
    assert_same_bits(exported.module()(x), layer(x))


@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # torch's own
@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
def test_a_region_inside_an_exported_module_is_refused_as_it_would_be_lost(strict):
    class Inside(torch.nn.Linear):
        def forward(self, x):
            with region_module.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    # Strict export wraps the error of the region in one of the compiler's.
    with pytest.raises(Exception, match="region inside an exported module"):
        torch.export.export(Inside(4, 4), (torch.randn(2, 4),), strict=strict)
    assert not region_module.is_autocast_enabled("cpu")


@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # torch's own
@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
def test_a_disabled_region_inside_a_module_can_be_exported(strict):
    class Inside(torch.nn.Linear):
        def forward(self, x):
            with region_module.autocast("cpu", torch.bfloat16, enabled=False):
                return super().forward(x)

    module, x = Inside(4, 4), torch.randn(2, 4)
    exported = torch.export.export(module, (x,), strict=strict)
    assert_same_bits(exported.module()(x), module(x))


@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # torch's own
@pytest.mark.slow
def test_decomposing_an_exported_program_in_a_region_writes_the_casts_down():
    layer, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
    exported = torch.export.export(layer, (x,))
    with region():
        lowered = exported.run_decompositions()
        inside = layer(x)
    assert_same_bits(lowered.module()(x), inside)


# PyTorch would rather have everybody move to torch.export; traces must still be right.
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_jit_trace_keeps_the_casts():
    model, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
    with region():
        traced = torch.jit.trace(model, x)
        inside = model(x)
    assert_same_bits(traced(x), inside)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_function_follows_the_region_it_runs_in():
    scripted = torch.jit.script(_product)
    x = torch.randn(2, 2)
    for _ in range(3):  # the first runs profile, later ones are optimised
        with region():
            assert scripted(x).dtype is BF16
        assert scripted(x).dtype is FP32


def _product(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_writes_the_casts_down(mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(2, 2)
    with region():
        traced = make_fx(_product, tracing_mode=mode)(x)
    assert_same_bits(traced(x), torch.mm(x.to(BF16), x.to(BF16)))


def test_symbolic_trace_follows_the_region_it_runs_in():
    traced = torch.fx.symbolic_trace(torch.nn.Linear(3, 3))
    with region():
        assert traced(torch.ones(2, 3)).dtype is BF16
    assert traced(torch.ones(2, 3)).dtype is FP32


# --- backward ------------------------------------------------------------------------


@REGIONS
def test_backward_inside_the_region_is_autocast_as_torch_does_it(any_autocast):
    torch.manual_seed(0)
    weight, x = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
    outside, inside = [], []
    for grads, within in ((outside, False), (inside, True)):
        with any_autocast("cpu", dtype=BF16):
            loss = F.linear(x, weight).float().pow(2).sum()
            if within:
                grads += torch.autograd.grad(loss, weight)
        if not within:
            grads += torch.autograd.grad(loss, weight)
    assert_same_bits(inside[0], outside[0])
    assert inside[0].dtype is FP32


def test_double_backward_gives_the_bits_of_torch():
    results = []
    for any_autocast in (autocast, torch.autocast):
        torch.manual_seed(0)
        weight, x = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
        with any_autocast("cpu", dtype=BF16):
            loss = F.linear(x, weight).tanh().sum()
            (grad,) = torch.autograd.grad(loss, weight, create_graph=True)
            penalty = grad.pow(2).sum()
        results.append([grad, *torch.autograd.grad(penalty, weight)])
    for ours, theirs in zip(*results, strict=True):
        assert_same_bits(ours, theirs)


# --- modules -------------------------------------------------------------------------


def make_encoder() -> torch.nn.Module:
    return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)


MODULES = {
    "lstm": lambda: torch.nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True),
    "gru": lambda: torch.nn.GRU(8, 8, 2, batch_first=True),
    "rnn": lambda: torch.nn.RNN(8, 8, batch_first=True),
    "encoder": make_encoder,
    "conv": lambda: torch.nn.Conv1d(3, 3, 3),
    "weight norm": lambda: torch.nn.utils.parametrizations.weight_norm(
        torch.nn.Linear(8, 8)
    ),
    "mlp": lambda: torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU()
    ),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_a_module_gives_the_bits_and_gradients_it_has_under_torch(make, grad, training):
    torch.manual_seed(0)
    module, x = make().train(training), torch.randn(2, 3, 8)
    results = []
    for any_autocast in (autocast, torch.autocast):
        region = any_autocast("cpu", dtype=BF16)
        with an_lstm_that_runs(), region, torch.set_grad_enabled(grad):
            out = module(x)
        out = out[0] if isinstance(out, tuple) else out
        grads = ()
        if grad:
            grads = torch.autograd.grad(out.float().sum(), list(module.parameters()))
        results.append([out, *grads])
    for ours, theirs in zip(*results, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_attention_gives_the_bits_it_has_under_torch(grad, training, need_weights):
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).train(training)
    x, results = torch.randn(2, 3, 8), []
    for any_autocast in (autocast, torch.autocast):
        with any_autocast("cpu", dtype=BF16), torch.set_grad_enabled(grad):
            results.append(attention(x, x, x, need_weights=need_weights)[0])
    assert_same_bits(*results)


def test_worker_threads_work_outside_and_may_have_regions_of_their_own():
    from concurrent.futures import ThreadPoolExecutor

    from minamp.autocasting.recompute import in_present_state

    with region(), ThreadPoolExecutor(2) as pool:
        assert set(pool.map(lambda _: mm(), range(8))) == {FP32}
        assert set(pool.map(region(FP16)(lambda _: mm()), range(8))) == {FP16}
        assert set(pool.map(in_present_state(lambda _: mm()), range(8))) == {BF16}
        assert mm() is BF16


# --- kinds of tensors ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int64])
def test_what_may_not_be_cast_meets_float32_as_without_the_region(dtype):
    left, right = torch.ones(2, 2).to(dtype), torch.ones(2, 2)
    with pytest.raises(RuntimeError) as outside:
        torch.mm(left, right)
    with region(), pytest.raises(RuntimeError) as inside:
        torch.mm(left, right)
    assert type(inside.value) is type(outside.value)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_cast(layout):
    nested = torch.nested.nested_tensor(
        [torch.ones(4, 3), torch.ones(2, 3)], layout=layout
    )
    with region():
        assert F.linear(nested, torch.ones(3, 3)).dtype is BF16


def test_sparse_tensors_are_cast():
    sparse = torch.eye(3).to_sparse()
    with region():
        assert torch.sparse.mm(sparse, torch.ones(3, 3)).dtype is BF16


def test_an_empty_and_a_broadcast_tensor_are_cast():
    with region():
        assert torch.mm(torch.ones(0, 3), torch.ones(3, 2)).dtype is BF16
        assert torch.mm(torch.ones(1, 1).expand(3, 3), torch.ones(3, 2)).dtype is BF16


def test_in_place_ops_write_in_the_dtype_that_is_there():
    total = torch.zeros(2, 2)
    with region():
        total += torch.mm(total, total)
        assert total.dtype is FP32
        with pytest.raises(RuntimeError):
            total.addmm_(torch.ones(2, 2, dtype=BF16), torch.ones(2, 2, dtype=BF16))


def test_numbers_in_place_of_tensors_pass_through_lists_that_hold_their_op():
    """With `safe` entered once, `add.Tensor` has a kernel, also for regions without."""
    with region(op_lists=safe_lists()):
        assert (torch.ones(2, dtype=FP16) + 1).dtype is FP16
    for dtype in (FP16, torch.int64, torch.float64, torch.complex64):
        x = torch.ones(2, dtype=dtype)
        with region():
            for number in (1, 1.5):
                inside = x + number, number + x, x - number, number - x
                with region(enabled=False):
                    outside = x + number, number + x, x - number, number - x
                for ours, theirs in zip(inside, outside, strict=True):
                    assert_same_bits(ours, theirs, f"{dtype} and {number}")


# --- importing -----------------------------------------------------------------------


def run_python(code: str) -> str:
    """What a fresh process prints that runs `code` with every warning an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_second_copy_and_a_reload_share_the_floor():
    code = """
import importlib, sys, torch
import minamp.autocasting.region as first
x = torch.ones(2, 2)
def mm(): return torch.mm(x, x).dtype
with first.autocast("cpu", dtype=torch.bfloat16): assert mm() is torch.bfloat16
for name in [n for n in sys.modules if n.startswith("minamp")]: del sys.modules[name]
import minamp.autocasting.region as second
assert second is not first
with second.autocast("cpu", dtype=torch.float16):
    assert mm() is torch.float16 and first.is_autocast_enabled("cpu")
    with first.autocast("cpu", dtype=torch.bfloat16): assert mm() is torch.bfloat16
    with first.autocast("cpu", enabled=False): assert mm() is torch.float32
    assert mm() is torch.float16
for name in sorted(n for n in sys.modules if n.startswith("minamp")):
    importlib.reload(sys.modules[name])
third = sys.modules["minamp.autocasting.region"]
from minamp.policy.safe_lists import safe_lists
with third.autocast("cpu", dtype=torch.bfloat16, op_lists=safe_lists()):
    assert mm() is torch.bfloat16
    assert torch.exp(x.half()).dtype is torch.float32
assert mm() is torch.float32
print("right")
"""
    assert run_python(code) == "right"


def test_a_floor_that_belongs_to_somebody_else_is_left_to_them():
    code = """
import torch
theirs = torch.library.Library("aten", "IMPL")
theirs.impl("relu", lambda *a: a[0], "AutocastPrivateUse1")
from minamp.autocasting.region import autocast
try:
    with autocast("cpu", dtype=torch.bfloat16): pass
except RuntimeError as error:
    print("AutocastPrivateUse1" in str(error) and "use that one" in str(error))
print(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype)
"""
    assert run_python(code).split() == ["True", "torch.float32"]


def test_reloading_the_region_module_here_is_harmless():
    module = importlib.import_module("minamp.autocasting.decorating")
    importlib.reload(module)
    with region():
        assert mm() is BF16


# --- as Dynamo traces, seen without Dynamo -------------------------------------------

ASKED = [
    {},
    {"dtype": FP16},
    {"enabled": False},
    {"cache_enabled": False},
    {"op_lists": safe_lists()},
]


@pytest.fixture
def graph_calls(monkeypatch):
    """What `region.py` would write into a graph, in order."""
    calls = []
    for name in ("prepare_trace", "enter_region", "leave_region"):
        note = lambda *args, name=name: calls.append((name, *args))  # noqa: E731
        monkeypatch.setattr(region_module, name, note)
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
    return calls


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: "".join(asked))
def test_while_dynamo_traces_a_region_becomes_two_calls_in_the_graph(
    asked, graph_calls
):
    lists = asked.get("op_lists")
    values = asked.get("dtype"), asked.get("enabled", True), asked.get("cache_enabled")
    enter = ("enter_region", "cpu", *values, lists.fingerprint if lists else "")
    made = autocast("cpu", **asked)
    with made as given:
        assert given is made and graph_calls == [("prepare_trace",), enter]
        with made:
            pass
    assert graph_calls == [("prepare_trace",), enter] * 2 + [("leave_region",)] * 2


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: "".join(asked))
def test_while_dynamo_traces_a_decorated_function_enters_an_equal_region(
    asked, graph_calls
):
    autocast("cpu", **asked)(lambda: None)()
    decorated, graph_calls[:] = list(graph_calls), []
    with autocast("cpu", **asked):
        pass
    assert decorated == graph_calls != []


def test_a_region_made_while_dynamo_traced_may_be_used_afterwards():
    with mock.patch("torch.compiler.is_dynamo_compiling", lambda: True):
        made, other = region(FP16), region(FP16)
    assert made.fast_dtype is FP16
    with other:
        assert mm() is FP16


# --- asking --------------------------------------------------------------------------


def test_without_an_argument_the_question_is_about_cuda_as_in_torch():
    with region():
        assert not is_autocast_enabled()
    with cuda_region():
        assert is_autocast_enabled()


def test_what_cannot_be_decorated_is_named_and_both_uses_are_shown():
    words = (
        r"but got int: to run a block write `with autocast\(...\):`, to decorate a "
        r"function write `@autocast\(...\)` above it$"
    )
    with pytest.raises(TypeError, match=words):
        region()(3)


def test_a_region_left_in_the_graph_can_be_used_eagerly_afterwards(graph_calls):
    made = region(FP16)
    for _ in range(2):
        with made:
            pass
    with mock.patch("torch.compiler.is_dynamo_compiling", lambda: False), made:
        assert mm() is FP16
    assert [name for name, *_ in graph_calls].count("leave_region") == 2


@pytest.mark.parametrize("around", [True, False])
@pytest.mark.parametrize("asked", [True, False, None])
def test_the_cache_is_on_or_off_as_asked_or_as_around(asked, around):
    with region(cache_enabled=around), region(cache_enabled=asked):
        assert is_autocast_cache_enabled() == (around if asked is None else asked)

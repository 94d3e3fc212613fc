"""torch.compile: the same dtypes as without it, and no graph used in a wrong region.

`aot_eager` traces as every backend does, casts included, but builds no kernels. The
cache on disk needs inductor, in fresh processes with a folder of their own.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F

from minamp.autocasting import dispatch_key, graph_guards
from minamp.autocasting.region import autocast, get_autocast_dtype, is_autocast_enabled
from minamp.policy.op_lists import Category
from minamp.policy.safe_lists import safe_lists
from minamp.policy.torch_lists import torch_lists
from op_calls import dtype_of_mm
from oracles import assert_same_bits

pytestmark = pytest.mark.slow

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
x = torch.randn(4, 4)

# Before 2.11 the compiler does not see the mark of a region, so that all regions but
# those of one kind run eagerly, and one that is entered inside cannot be told apart.
HAS_MARKS = graph_guards.dynamo_sees_marks()


def region(dtype: torch.dtype | None = BF16, **kwargs) -> autocast:
    return autocast("cpu", dtype=dtype, **kwargs)


def product(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x)


def compiled(function, **kwargs):
    return torch.compile(function, backend="aot_eager", **kwargs)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    assert dtype_of_mm("cpu") is FP32
    assert dispatch_key.current().settings == {}
    assert not dispatch_key.is_visible()
    assert dispatch_key.thread.depth == 0


# --- regions around ------------------------------------------------------------------

SETTINGS = {
    "off": ({"enabled": False}, FP32, BF16),
    "bf16": ({"dtype": BF16}, BF16, BF16),
    "fp16": ({"dtype": FP16}, FP16, BF16),
    "safe": ({"dtype": BF16, "op_lists": safe_lists()}, BF16, FP32),
}


@pytest.mark.parametrize("first", SETTINGS)
def test_a_function_compiled_in_one_region_is_right_in_every_other(first):
    function = compiled(lambda x, half: (product(x), torch.exp(half)))
    half = x.to(BF16)
    for name in (first, *SETTINGS, *reversed(SETTINGS)):
        asked, of_product, of_exp = SETTINGS[name]
        with region(**asked):
            results = function(x, half)
        assert [r.dtype for r in results] == [of_product, of_exp], name
        assert function(x, half)[0].dtype is FP32


@pytest.mark.parametrize("lists", [None, safe_lists()], ids=["torch", "safe"])
def test_a_compiled_model_has_the_bits_and_gradients_of_the_eager_one(lists):
    """Also where ops have a kernel, and are on no list: `safe` was here before."""
    with region(op_lists=safe_lists()):
        dtype_of_mm("cpu")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)
    )
    results = []
    for module in (model, compiled(model)):
        with region(op_lists=lists):
            loss = F.mse_loss(module(x).softmax(-1), x) + 1
        results.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    for ours, eager in zip(*results, strict=True):
        assert_same_bits(ours, eager)


def test_backward_inside_the_region_of_a_compiled_model():
    layer = torch.nn.Linear(4, 4)
    with region():
        compiled(layer)(x).float().sum().backward()
        ours, layer.weight.grad = layer.weight.grad, None
        layer(x).float().sum().backward()
    assert_same_bits(ours, layer.weight.grad)


def test_a_region_switched_on_and_off_does_not_compile_each_time():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(product, backend=counter)
    for _ in range(3):
        with region():
            assert function(x).dtype is BF16
        assert function(x).dtype is FP32
    assert counter.frame_count == 2


@pytest.mark.skipif(
    not HAS_MARKS, reason="PyTorch 2.6 cannot compile in several threads at once"
)
def test_threads_compile_in_regions_of_their_own():
    function, wrong = compiled(product), []
    barrier = threading.Barrier(3, timeout=60)

    def work(dtype: torch.dtype) -> None:
        barrier.wait()
        for _ in range(10):
            with region(dtype):
                inside = function(x).dtype
            if (inside, function(x).dtype) != (dtype, FP32):
                wrong.append(dtype)

    threads = [threading.Thread(target=work, args=(d,)) for d in (BF16, FP16, BF16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_when_all_marks_are_taken_functions_run_eagerly_and_right():
    function = compiled(lambda x: (product(x), torch.exp(x.to(BF16))))
    expected = {}
    for op in ("neg", "abs", "sin", "cos", "sqrt", "tanh", "ceil", "floor"):
        for dtype in (BF16, FP16):
            lists = torch_lists().add("cpu", op, Category.FP32, why="a test")
            expected[lists, dtype] = (dtype, BF16)
    with_exp = torch_lists().add("cpu", "exp", Category.FP32, why="a test")
    expected[with_exp, BF16] = (BF16, FP32)
    try:
        for _ in range(2):
            for (lists, dtype), dtypes in expected.items():
                with region(dtype, op_lists=lists):
                    assert tuple(r.dtype for r in function(x)) == dtypes
        assert None in graph_guards._marks.values()
        assert function(x)[0].dtype is FP32
    finally:
        _give_marks_back(expected)


def _give_marks_back(used) -> None:
    """For the tests after this one."""
    torch.compiler.reset()
    for lists, _ in used:
        for signature in list(graph_guards._marks):
            if lists.fingerprint in signature:
                del graph_guards._marks[signature]


# --- regions inside ------------------------------------------------------------------

NEEDS_MARKS = pytest.mark.skipif(
    not HAS_MARKS, reason="PyTorch 2.6 guards nothing that tells kinds of regions apart"
)


def test_regions_inside_nest_in_one_graph():
    lists = safe_lists()

    def function(x):
        with region(op_lists=lists):
            a = torch.exp(product(x))
            with region(FP16):
                b = product(x)
            with region(enabled=False):
                c = product(x)
            d = product(x)
        return a, b, c, d, product(x)

    dtypes = [r.dtype for r in compiled(function, fullgraph=True)(x)]
    assert dtypes == [FP32, FP16, FP32, BF16, FP32]


def test_a_region_of_a_class_or_a_closure_can_be_entered_inside():
    outside = region(FP16)

    def function(x):
        with outside:
            y = product(x)
        return y, product(x)

    assert [r.dtype for r in compiled(function)(x)] == [FP16, FP32]
    with outside:
        assert compiled(function)(x)[1].dtype is FP16


@pytest.mark.parametrize("fullgraph", [True, False])
def test_decorated_functions_are_compiled_inside_and_outside(fullgraph):
    decorated = region(FP16)(product)

    def function(x):
        return decorated(x), product(x)

    assert compiled(decorated, fullgraph=fullgraph)(x).dtype is FP16
    dtypes = [r.dtype for r in compiled(function, fullgraph=fullgraph)(x)]
    assert dtypes == [FP16, FP32]
    assert region(FP16)(compiled(product))(x).dtype is FP16


def test_a_graph_break_in_a_region_stays_in_the_region():
    def inner(x):
        torch._dynamo.graph_break()
        return product(x)

    def function(x):
        with region():
            before = product(x)
            torch._dynamo.graph_break()
            middle = product(x)
            with region(FP16):
                deep = inner(x)
            after = product(x)
        return [r.dtype for r in (before, middle, deep, after, product(x))]

    for _ in range(2):
        assert compiled(function)(x) == [BF16, BF16, FP16, BF16, FP32]


def test_an_exception_in_a_region_inside_leaves_the_region():
    def caught(x):
        try:
            with region():
                y = product(x)
                raise ValueError("stop")
        except ValueError:
            return y.dtype, product(x).dtype

    def escapes(x):
        with region():
            y = product(x)
            if y.sum() < 1e9:  # depends on data: a graph break
                raise ValueError("stop")
        return y

    assert compiled(caught)(x) == (BF16, FP32)
    for _ in range(2):
        with pytest.raises(ValueError, match="stop"):
            compiled(escapes)(x)
        assert dtype_of_mm("cpu") is FP32


@NEEDS_MARKS
def test_what_a_region_inside_leaves_out_it_takes_from_around_each_time():
    def function(x):
        with region(None):
            return product(x)

    function = compiled(function)
    for dtype in (BF16, FP16, BF16):
        with region(dtype):
            assert function(x).dtype is dtype
    assert function(x).dtype is BF16


def test_gradients_through_a_region_inside_are_those_of_the_eager_function():
    weight = torch.randn(4, 4, requires_grad=True)

    def function(x):
        with region():
            return F.linear(x, weight).float().pow(2).sum()

    eager = torch.autograd.grad(function(x), weight)
    ours = torch.autograd.grad(compiled(function, fullgraph=True)(x), weight)
    assert_same_bits(ours[0], eager[0])


def test_queries_inside_a_compiled_function_say_what_they_say_outside():
    def function(x):
        if is_autocast_enabled("cpu"):
            return x.to(get_autocast_dtype("cpu"))
        return x

    function = compiled(function)
    for dtype in (BF16, FP16):
        with region(dtype):
            assert function(x).dtype is dtype
        assert function(x).dtype is FP32


# --- the cache on disk ---------------------------------------------------------------

SCRIPT = """
import sys, torch
from minamp.autocasting.region import autocast
from minamp.policy.safe_lists import safe_lists
ASKED = {
    "bf16": dict(dtype=torch.bfloat16),
    "fp16": dict(dtype=torch.float16),
    "safe": dict(dtype=torch.bfloat16, op_lists=safe_lists()),
}
x = torch.ones(8, 8)
function = torch.compile(lambda x: torch.exp(torch.mm(x, x)))
for name in sys.argv[1:]:
    with autocast("cpu", **ASKED[name]):
        print(str(function(x).dtype).removeprefix("torch."))
from torch._dynamo.utils import counters
hits = counters["inductor"]["fxgraph_cache_hit"]
print(hits + counters["aot_autograd"]["autograd_cache_hit"])
"""
RIGHT = {"bf16": "bfloat16", "fp16": "float16", "safe": "float32"}


def run_with_cache(folder, *order: str) -> int:
    """Runs a process that compiles in these regions; how often the cache served it."""
    cache = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *order],
        env={**os.environ, **cache},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *dtypes, hits = done.stdout.split()
    assert dtypes == [RIGHT[name] for name in order]
    return int(hits)


def test_the_cache_on_disk_hands_out_no_graph_of_another_region(tmp_path):
    """Each process begins with another kind, which gets the same mark in each."""
    for order in (["bf16"], ["safe", "fp16"]):
        assert run_with_cache(tmp_path, *order) == 0
    hits = run_with_cache(tmp_path, "fp16", "bf16", "safe")
    # Without marks only the first kind of a process is compiled, and "fp16" was not.
    assert hits >= 1 if HAS_MARKS else hits == 0


@pytest.fixture
def tag():
    from torch.compiler import config

    before = config.cache_key_tag
    yield config
    config.cache_key_tag = before


def test_the_users_own_cache_key_tag_is_kept_whenever_it_is_set(tag):
    for own in ("mine", "another"):
        tag.cache_key_tag = own
        assert tag.cache_key_tag == own
        with region(), region(FP16):
            assert tag.cache_key_tag == own
            pickled = pickle.loads(pickle.dumps(tag.cache_key_tag))
        assert pickled.startswith(own) and "float16" in pickled
        assert pickle.loads(pickle.dumps(tag.cache_key_tag)).strip().startswith(own)


def test_the_tag_tells_regions_apart_that_decide_differently(tag):
    def pickled(**kwargs) -> str:
        with region(**kwargs):
            return pickle.loads(pickle.dumps(tag.cache_key_tag))

    asked = [
        {"dtype": d, "op_lists": o}
        for d in (BF16, FP16)
        for o in (torch_lists(), safe_lists())
    ]
    tags = [pickled(**kwargs) for kwargs in (*asked, {"enabled": False})]
    assert len(set(tags)) == 5
    assert pickled(**asked[0]) == tags[0]

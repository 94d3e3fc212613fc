"""custom_fwd and custom_bwd beyond the common laws: what is carried, what is cast."""

from __future__ import annotations

import pytest
import torch

from minamp.autocasting.custom_function import custom_bwd, custom_fwd
from minamp.autocasting.region import autocast, is_autocast_enabled
from minamp.policy.safe_lists import safe_lists
from op_calls import dtype_of_mm

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def region(dtype: torch.dtype = BF16, **kwargs) -> autocast:
    return autocast("cpu", dtype=dtype, **kwargs)


def precisions() -> tuple[torch.dtype, torch.dtype]:
    """The dtypes of a product and of an exp of halves: of the region, of its lists."""
    return dtype_of_mm("cpu"), torch.exp(torch.ones(2, dtype=BF16)).dtype


def make_function(seen: dict, **kwargs) -> type[torch.autograd.Function]:
    class Watched(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu", **kwargs)
        def forward(ctx, x, nested=None):
            seen["forward"], seen["x"], seen["nested"] = precisions(), x.dtype, nested
            return x * 2

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            seen["backward"] = precisions()
            return grad * 2, None

    return Watched


REGIONS = {
    "bf16": {"dtype": BF16},
    "fp16": {"dtype": FP16},
    "safe": {"dtype": BF16, "op_lists": safe_lists()},
    "off": {"enabled": False},
}


@pytest.mark.parametrize("backward_in", REGIONS)
@pytest.mark.parametrize("forward_in", REGIONS)
def test_backward_runs_as_forward_ran_wherever_it_is_called(forward_in, backward_in):
    seen: dict = {}
    x = torch.ones(2, requires_grad=True)
    with region(**REGIONS[forward_in]):
        y = make_function(seen).apply(x)
    with region(**REGIONS[backward_in]):
        before = precisions()
        y.sum().backward()
        assert precisions() == before
    assert seen["backward"] == seen["forward"]


def test_backward_of_a_forward_outside_every_region_runs_outside():
    seen: dict = {}
    y = make_function(seen).apply(torch.ones(2, requires_grad=True))
    with region():
        y.sum().backward()
    assert seen["forward"] == seen["backward"] == (FP32, BF16)


def test_with_cast_inputs_autocast_is_off_in_both_passes():
    seen: dict = {}
    x = torch.ones(2, requires_grad=True)
    with region():
        y = make_function(seen, cast_inputs=FP16).apply(x)
        assert is_autocast_enabled("cpu")
        y.sum().backward()
    assert seen["x"] is FP16 and y.dtype is FP16 and x.grad.dtype is FP32
    assert seen["forward"] == seen["backward"] == (FP32, BF16)


def test_cast_inputs_reaches_nested_inputs_and_leaves_the_rest():
    seen: dict = {}
    nested = {"a": [torch.ones(2), (torch.ones(2).double(), "word")], "b": None}
    with region():
        make_function(seen, cast_inputs=FP16).apply(torch.ones(2), nested)
    assert seen["nested"]["a"][0].dtype is FP16
    assert seen["nested"]["a"][1][0].dtype is torch.float64
    assert seen["nested"]["a"][1][1] == "word" and seen["nested"]["b"] is None
    assert nested["a"][0].dtype is FP32


@pytest.mark.parametrize("entered", [False, True])
def test_outside_a_region_of_its_device_type_cast_inputs_changes_nothing(entered):
    seen: dict = {}
    with region(enabled=False) if entered else torch.enable_grad():
        make_function(seen, cast_inputs=FP16).apply(torch.ones(2))
    assert seen["x"] is FP32


def test_an_exception_in_either_pass_leaves_the_region_as_it_was():
    class Fails(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=FP32)
        def forward(ctx, x, fail):
            if fail:
                raise KeyError("forward")
            return x * 2

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            raise KeyError("backward")

    x = torch.ones(2, requires_grad=True)
    with region():
        with pytest.raises(KeyError, match="forward"):
            Fails.apply(x, True)
        assert dtype_of_mm("cpu") is BF16
        y = Fails.apply(x, False)
    with pytest.raises(KeyError, match="backward"):
        y.sum().backward()
    assert dtype_of_mm("cpu") is FP32


def test_gradients_of_gradients_run_in_the_region_too():
    seen = []

    class Cube(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu")
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            seen.append(dtype_of_mm("cpu"))
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad

    x = torch.tensor([2.0], requires_grad=True)
    with region():
        y = Cube.apply(x)
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert seen == [BF16] and (first.item(), second.item()) == (12.0, 12.0)


@pytest.mark.parametrize("decorate", [custom_fwd, custom_bwd])
def test_a_device_instead_of_its_type_is_refused_with_the_cure(decorate):
    for call in (
        lambda: decorate(device_type=torch.device("cpu")),
        lambda: decorate(lambda ctx: None, device_type=0),
    ):
        with pytest.raises(ValueError, match=r"`device_type` of type `str`.*='cuda'"):
            call()


def test_decorated_passes_keep_their_names():
    @custom_fwd(device_type="cpu")
    def forward(ctx, x):
        """Says what it does."""

    @custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        """Says it too."""

    assert (forward.__name__, forward.__doc__) == ("forward", "Says what it does.")
    assert backward.__name__ == "backward"

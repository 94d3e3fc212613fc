"""Found_inf: flags of several devices, the reciprocal, gradients that are refused."""

from __future__ import annotations

import math

import pytest
import torch

from minamp.scaling import found_inf


@pytest.mark.parametrize("flags", [[], [0.0], [1.0], [0.0, 1.0], [1.0, 0.0], [0.0] * 3])
def test_the_flags_of_all_devices_make_one(flags):
    here = torch.device("cpu")
    found = {torch.device("cpu", n): torch.tensor(f) for n, f in enumerate(flags)}
    flag = found_inf.combined(found, here)
    assert flag.item() == max(flags, default=0.0)
    assert flag.dtype is torch.float32 and flag.shape == ()
    assert found_inf.any_of(found) == (1.0 in flags)


@pytest.mark.parametrize("flags", [[], [0.0], [0.0, 1.0]])
def test_the_one_flag_is_on_the_device_asked_for(flags):
    found = {torch.device("cpu", n): torch.tensor(f) for n, f in enumerate(flags)}
    assert found_inf.combined(found, torch.device("meta")).is_meta


class OnMps(torch.Tensor):
    """Says it lies on a device without float64, and computes here all the same."""

    device = torch.device("mps")

    def double(self):
        raise TypeError("mps has no float64")


class OnCuda(torch.Tensor):
    """Says it lies on a GPU, whose float32 division is not to be trusted."""

    device = torch.device("cuda")

    def reciprocal(self):
        return super().reciprocal() * (1.0 if self.dtype is torch.float64 else 1.5)


@pytest.mark.parametrize("scale", [3.0, 65536.0, 2.0**-126, 3.4e38])
@pytest.mark.parametrize("kind", [torch.Tensor, OnMps, OnCuda])
def test_the_reciprocal_is_correctly_rounded_with_float64_or_without(kind, scale):
    exact = torch.tensor(1 / torch.tensor(scale).double().item())
    tensor = torch.tensor(scale).as_subclass(kind)
    assert found_inf.reciprocal(tensor).item() == exact.item()


def test_a_parameter_without_a_gradient_hides_none_of_those_behind_it():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    weights[0].grad = torch.eye(2)[0].to_sparse()
    weights[2].grad = torch.full((2,), math.inf)
    groups = found_inf.gradients_of(torch.optim.SGD(weights))
    assert sum(map(len, groups.values())) == 2
    assert found_inf.any_of(found_inf.check(groups))


@pytest.mark.parametrize(
    "words",
    [
        "^Attempting to unscale FP16 gradients. Divided by the scale they would "
        "underflow",
        "Keep the parameters in float32 and run the forward pass under autocast, or "
        r"give the optimizer float32 masters of a half model \(MasterWeights\).$",
    ],
)
def test_half_gradients_are_refused_with_both_cures(words):
    groups = {(torch.device("cpu"), torch.float16): [torch.ones(2).half()]}
    with pytest.raises(ValueError, match=words):
        found_inf.refuse_half_gradients(groups)

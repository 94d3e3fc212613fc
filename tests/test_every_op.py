"""Every op of PyTorch's database is decided as torch.autocast decides it.

Four sweeps: fp16 and bf16 on real tensors of the device under test (dtypes, bits,
gradients, exceptions), and fp16 and bf16 on fake CUDA tensors (dtypes, exceptions),
so that CUDA's lists are proven without a GPU. Two more show that the `safe` lists only
widen. The default profile takes a few samples of every op, `deep` takes them all.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from minamp.autocasting.region import autocast
from minamp.policy.safe_lists import safe_lists
from op_grounds import FakeCudaGround, RealGround
from op_sweep import Report, narrowing, sweep

EVERY_SAMPLE = 100_000
SAMPLES_OF_REAL_TENSORS = {"ci": 5, "deep": EVERY_SAMPLE}
SAMPLES_OF_FAKE_TENSORS = {"ci": 3, "deep": EVERY_SAMPLE}
SAMPLES_WITH_SAFE_LISTS = {"ci": 1, "deep": EVERY_SAMPLE}

low_dtypes = pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)


@pytest.mark.slow
@low_dtypes
def test_every_op_has_the_dtypes_bits_and_errors_it_has_under_torch_autocast(
    low, amp, device, profile, capsys
):
    ground = RealGround(amp.autocast, device)
    report = sweep(ground, low, SAMPLES_OF_REAL_TENSORS[profile])
    _tell(capsys, f"real {device} tensors, {low}", report)
    _assert_agreement(report)


@pytest.mark.slow
@low_dtypes
def test_every_op_has_the_dtypes_it_has_under_cuda_autocast_on_fake_tensors(
    low, amp, profile, capsys
):
    ground = FakeCudaGround(amp.autocast)
    report = sweep(ground, low, SAMPLES_OF_FAKE_TENSORS[profile])
    _tell(capsys, f"fake cuda tensors, {low}", report)
    _assert_agreement(report)


@pytest.mark.slow
@pytest.mark.parametrize("make_ground", [RealGround, FakeCudaGround])
def test_the_safe_lists_only_widen_and_raise_only_where_torch_does(
    make_ground, profile, capsys
):
    safe = partial(autocast, op_lists=safe_lists())
    samples = SAMPLES_WITH_SAFE_LISTS[profile]
    report = sweep(make_ground(safe), torch.float16, samples, judge=narrowing)
    _tell(capsys, f"safe lists, {make_ground.__name__}, torch.float16", report)
    _assert_agreement(report)


def test_the_sweep_finds_fault_with_an_autocast_that_does_nothing():
    class DoNothing:
        def __init__(self, device_type: str, dtype: torch.dtype) -> None:
            """Takes what autocast takes, and forgets it."""

        def __enter__(self) -> None: ...

        def __exit__(self, *exception: object) -> None: ...

    affected = {"addmm", "nn_functional_linear", "nn_functional_mse_loss", "prod"}
    ground = RealGround(DoNothing)
    report = sweep(ground, torch.bfloat16, 2, affected | {"add", "sigmoid"})
    assert report.affected_ops == affected
    assert {line.split(",")[0] for line in report.disagreements} == affected
    report = sweep(ground, torch.bfloat16, 2, {"addmm", "prod"}, judge=narrowing)
    faults = "\n".join(report.disagreements)
    assert "addmm, torch.bfloat16, first low: raises RuntimeError" in faults
    assert "prod, torch.bfloat16, first low: [torch.bfloat16" in faults
    assert "is narrower than [torch.float32" in faults


def _tell(capsys, what: str, report: Report) -> None:
    with capsys.disabled():
        print(f"\n{what}: {report}")


def _assert_agreement(report: Report) -> None:
    # Less than this would mean that the database or the sweep has gone blind.
    assert len(report.ops) > 600
    assert len(report.affected_ops) > 80
    assert not report.disagreements, "\n".join([str(report), *report.disagreements])

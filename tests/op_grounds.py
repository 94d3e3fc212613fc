"""Where an op is tried: on real tensors, or on fake CUDA tensors on any machine.

A ground knows how to place a sample's tensors, and how to enter torch's autocast and
the one under test. Fake tensors say they are on CUDA and hold nothing, so that CUDA's
op lists can be asked what dtype they choose where there is no GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


class RealGround:
    """Real tensors: dtypes, bits, gradients and exceptions are compared."""

    compares_values = True

    def __init__(self, autocast: Callable[..., Any], device: str = "cpu") -> None:
        self.autocast = autocast
        self.device = device

    def truth(self, low: torch.dtype):
        return torch.autocast(self.device, dtype=low)

    def candidate(self, low: torch.dtype):
        return self.autocast(self.device, dtype=low)

    def tensors(self):
        return contextlib.nullcontext()

    def place(self, value: Any, dtype: torch.dtype | None) -> Any:
        if isinstance(value, torch.device) or value == "cpu":
            return self.device
        if not isinstance(value, torch.Tensor):
            return value
        copy = value.detach().to(self.device, dtype or value.dtype, copy=True)
        return copy.requires_grad_(value.requires_grad)


class FakeCudaGround(RealGround):
    """Tensors that say they are on CUDA and hold nothing: only dtypes are compared.

    They must not require grad: the autograd engine would look for a real GPU.
    """

    compares_values = False

    def __init__(self, autocast: Callable[..., Any]) -> None:
        super().__init__(autocast, "cuda")
        # Ops whose output size depends on values need a ShapeEnv to make one up.
        self.fake_mode = FakeTensorMode(shape_env=ShapeEnv())

    def truth(self, low: torch.dtype):
        return _cuda_autocast_without_asking_for_a_gpu(low)

    def candidate(self, low: torch.dtype):
        return _entered_as_if_there_were_a_gpu(self.autocast, low)

    @contextlib.contextmanager
    def tensors(self):
        with self.fake_mode, torch.no_grad():
            yield

    def place(self, value: Any, dtype: torch.dtype | None) -> Any:
        if not isinstance(value, torch.Tensor):
            return super().place(value, dtype)
        shape, stride, dtype = value.shape, value.stride(), dtype or value.dtype
        return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")


@contextlib.contextmanager
def _cuda_autocast_without_asking_for_a_gpu(low: torch.dtype) -> Iterator[None]:
    """torch.autocast("cuda") by its parts: the class itself asks for a GPU first."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", low)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


@contextlib.contextmanager
def _entered_as_if_there_were_a_gpu(autocast, low: torch.dtype) -> Iterator[None]:
    """Only entering is done under the pretence; the calls inside see the truth."""
    yes, no = (lambda *args, **kwargs: True), (lambda: False)
    pretence = contextlib.ExitStack()
    with pretence:
        for place, answer in {
            "torch.cuda.is_available": yes,
            "torch.cuda.is_bf16_supported": yes,
            "torch.cuda.amp.common.amp_definitely_not_available": no,
        }.items():
            pretence.enter_context(mock.patch(place, answer))
        region = autocast("cuda", dtype=low)
        region.__enter__()
    try:
        yield
    finally:
        region.__exit__(None, None, None)

"""The gradients of an optimizer: unscale them, and find out whether one overflowed.

    gradient = scaled gradient * (1 / scale)        exact for a power of two

The answer is a float32 tensor on each device that holds gradients, 1.0 if an inf or NaN
was found there: the host need not know it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from minamp.tensors.gradients import (
    Groups,
    Place,
    are_dense,
    by_device_and_dtype,
    check_and_multiply_,
    nonfinite,
    values_of,
)

FoundInf = dict[torch.device, Tensor]
T = TypeVar("T")


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Every parameter of every group, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def gradients_of(optimizer: Optimizer) -> Groups:
    """Every gradient the optimizer will read, by device and dtype.

    They are dense real tensors that share memory with the gradients. A sparse gradient
    that lists an index twice is summed up first, and replaced: the sum may overflow
    where no part of it does.
    """
    parameters = parameters_of(optimizer)
    grads = [grad for p in parameters if (grad := p.grad) is not None]
    if are_dense(grads):
        groups = by_device_and_dtype(grads)
        if not any(dtype.is_complex for _, dtype in groups):
            return groups
    return by_device_and_dtype(list(_values_of_gradients(parameters)))


def _values_of_gradients(parameters: list[Tensor]) -> Iterator[Tensor]:
    for parameter in parameters:
        grad = parameter.grad
        if grad is None:
            continue
        if grad.is_sparse and not grad.is_coalesced():
            parameter.grad = grad = grad.coalesce()
        yield values_of(grad)


def refuse_half_gradients(groups: Groups) -> None:
    """fp16 gradients cannot be unscaled in place: say so before touching anything.

    Raises:
        ValueError: there are float16 gradients.
    """
    if any(dtype is torch.float16 for _, dtype in groups):
        raise ValueError(
            "Attempting to unscale FP16 gradients. Divided by the scale they would "
            "underflow, which is what scaling is there to prevent. Keep the parameters "
            "in float32 and run the forward pass under autocast, or give the optimizer "
            "float32 masters of a half model (MasterWeights)."
        )


def reciprocal(scale: Tensor) -> Tensor:
    """1 / scale as a float32 tensor, correctly rounded.

    A CPU divides exactly so. A kernel for a GPU may be compiled with a faster division,
    so there the quotient is float64's, rounded (but for mps, which has no float64).
    """
    if scale.device.type in ("cpu", "mps"):
        return scale.reciprocal()
    return scale.double().reciprocal().float()


@torch.no_grad()
def unscale_and_check(groups: Groups, inv_scale: Tensor) -> FoundInf:
    """Multiply all gradients in place by `inv_scale`; was one of them not finite?"""

    def unscale(group: list[Tensor]) -> Tensor:
        factor = inv_scale.reshape(()).to(group[0].device, non_blocking=True)
        return check_and_multiply_(group, factor)

    return by_device(groups, unscale)


@torch.no_grad()
def check(groups: Groups) -> FoundInf:
    """Was one of the gradients not finite? Reads them once and changes nothing."""
    return by_device(groups, nonfinite)


def by_device(parts: dict[Place, T], question: Callable[[T], Tensor]) -> FoundInf:
    """The flag that `question` gives for each part; one for the dtypes of a device."""
    found_inf: FoundInf = {}
    for (device, _), part in parts.items():
        flag, earlier = question(part), found_inf.get(device)
        found_inf[device] = flag if earlier is None else torch.maximum(flag, earlier)
    return found_inf


def any_of(found_inf: FoundInf) -> bool:
    """The answer, on the host. This waits for the devices."""
    return any(bool(flag.item()) for flag in found_inf.values())


def combined(found_inf: FoundInf, device: torch.device) -> Tensor:
    """1.0 if a flag of any device is set, else 0.0; float32, 0-dim, on `device`."""
    flags = [flag.to(device, non_blocking=True) for flag in found_inf.values()]
    if not flags:
        return torch.zeros((), dtype=torch.float32, device=device)
    return flags[0] if len(flags) == 1 else torch.stack(flags).amax(0)

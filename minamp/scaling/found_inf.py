"""The gradients of an optimizer: unscale them, and find out whether one overflowed.

    gradient = scaled gradient * (1 / scale)        exact for a power of two

The answer is a float32 tensor on each device that holds gradients, 1.0 if an inf or NaN
was found there: the host need not know it yet.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from minamp.tensors import gradients

FoundInf = dict[torch.device, Tensor]


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Every parameter of every group, in order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def gradients_of(optimizer: Optimizer) -> list[Tensor]:
    """The values of every gradient the optimizer will read, as dense real tensors.

    A sparse gradient that lists an index twice is summed up first, and replaced: the
    sum may overflow where no part of it does.
    """
    values = []
    for parameter in parameters_of(optimizer):
        grad = parameter.grad
        if grad is None:
            continue
        if grad.is_sparse and not grad.is_coalesced():
            parameter.grad = grad = grad.coalesce()
        values.append(gradients.values_of(grad))
    return values


def is_distributed(optimizer: Optimizer) -> bool:
    """Does the optimizer own DTensors, of which this rank has only a part?"""
    return any(hasattr(p, "device_mesh") for p in parameters_of(optimizer))


def refuse_half_gradients(optimizer: Optimizer) -> None:
    """fp16 gradients cannot be unscaled in place: say so before touching anything.

    Raises:
        ValueError: a gradient of the optimizer is float16.
    """
    for parameter in parameters_of(optimizer):
        if parameter.grad is not None and parameter.grad.dtype is torch.float16:
            raise ValueError(
                "Attempting to unscale FP16 gradients. Divided by the scale they "
                "would underflow, which is what scaling is there to prevent. Keep the "
                "parameters in float32 and run the forward pass under autocast, or "
                "give the optimizer float32 masters of a half model (MasterWeights)."
            )


def reciprocal(scale: Tensor) -> Tensor:
    """1 / scale as a float32 tensor, correctly rounded."""
    if scale.device.type == "mps":  # no float64 there
        return scale.reciprocal()
    return scale.double().reciprocal().float()


def unscale_and_check(values: list[Tensor], inv_scale: Tensor) -> FoundInf:
    """Multiply all gradients in place by `inv_scale`; was one of them not finite?"""
    found_inf: FoundInf = {}
    inverses = {inv_scale.device: inv_scale}
    for (device, _), group in gradients.by_device_and_dtype(values).items():
        if device not in inverses:
            inverses[device] = inv_scale.to(device, non_blocking=True)
        _merge(found_inf, device, gradients.nonfinite(group))
        gradients.multiply_(group, inverses[device].reshape(()))
    return found_inf


def check(values: list[Tensor]) -> FoundInf:
    """Was one of the gradients not finite? Reads them once and changes nothing."""
    found_inf: FoundInf = {}
    for (device, _), group in gradients.by_device_and_dtype(values).items():
        _merge(found_inf, device, gradients.nonfinite(group))
    return found_inf


def _merge(found_inf: FoundInf, device: torch.device, flag: Tensor) -> None:
    """A device may hold gradients of several dtypes: one flag for all of them."""
    earlier = found_inf.get(device)
    found_inf[device] = flag if earlier is None else torch.maximum(earlier, flag)


def combined(found_inf: FoundInf, device: torch.device) -> Tensor:
    """1.0 if a flag of any device is set, else 0.0; float32, 0-dim, on `device`."""
    flags = [flag.to(device, non_blocking=True) for flag in found_inf.values()]
    if not flags:
        return torch.zeros((), device=device)
    return flags[0] if len(flags) == 1 else torch.stack(flags).amax(0)

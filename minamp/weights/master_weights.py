"""Master weights: the model holds half copies, the optimizer float32 masters.

A 16-bit weight cannot take small steps.  Near 1 its neighbours are 2^-10 (float16) or
2^-7 (bfloat16) apart, and an update below half of that is rounded away, each time anew:

    round(weight + update) = weight            if |update| < ulp(weight) / 2.

So the sum is kept where there is room for it,

    master <- master + update   in float32,        weight <- round(master),

and the updates add up until the weight moves.  It costs 2 bytes (weight), 4 (master)
and 4 (its gradient) an element; float32 training under autocast costs 4 and 4, and
makes the half copies again in every forward.  (Micikevicius et al., "Mixed Precision
Training", 2018, section 3.1; apex called it O2.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from minamp.weights.half_weights import HalfWeights
from minamp.weights.twins import HALF_DTYPES, best_known, twin_of
from minamp.weights.which_weights import NORM_LAYERS


class MasterWeights(HalfWeights):
    """Train ``model`` with half weights; ``optimizer`` steps on their float32 masters.

    One call, after the optimizer is made and before training::

        masters = minamp.MasterWeights(model, optimizer, dtype=torch.bfloat16)

    The loop needs no change: ``backward``, ``optimizer.step()`` and ``zero_grad()`` of
    either do what they did, through a loss scaler too (float16 wants one, bfloat16 does
    not).  Clip ``masters.parameters()``: the model's own have no gradients any more.

    Args:
        model: float32, or half already.  It is changed in place.
        optimizer: holds parameters of the model, and may have stepped before.
        dtype: what float32 weights become; None leaves them.  Weights that are half
            keep their dtype, and buffers keep theirs.
        keep_float32: kinds of modules whose float32 weights stay float32.
        float32_outside: cast at the entrance and exit of the model, for loops without
            an autocast region.  Otherwise run the forward in a region of ``dtype``: a
            half model by itself refuses float32 inputs.

    Raises:
        ValueError: ``dtype`` is not a 16-bit format, or the optimizer holds no weight
            to work on.

    Saving: ``optimizer.state_dict()`` has the masters, so the usual checkpoint of model
    and optimizer restores every bit.  ``state_dict()`` is for models without minamp.

    Writing to a weight in place, as ``model.load_state_dict`` does, reaches its master.
    Writing to ``weight.data`` does not, since autograd does not count it.  A deep copy
    of the model is a plain half model, without masters.
    """

    memory_key = "master_weights"

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        dtype: torch.dtype | None = None,
        keep_float32: tuple[type[nn.Module], ...] = NORM_LAYERS,
        float32_outside: bool = False,
    ) -> None:
        super().__init__(model, optimizer, dtype, keep_float32, float32_outside)
        for module in model.modules():
            module.register_load_state_dict_pre_hook(_load_float32_into_masters)

    def adopted(self, weight: nn.Parameter, twin: nn.Parameter) -> None:
        self.memory.append(twin.detach())

    @torch.no_grad()
    def pack(self) -> None:
        # One call for all: on a GPU a few kernel launches instead of thousands.  It has
        # no public name, but torch's own optimizers are built on it.
        torch._foreach_copy_([*self.weights], self.memory)

    @torch.no_grad()
    def follow(self) -> None:
        for weight, master in zip(self.weights, self.memory, strict=True):
            master.copy_(best_known(weight, master))

    def restored(self) -> None:
        self.pack()

    def state_dict(self) -> dict[str, Tensor]:
        """The model's ``state_dict``, with float32 masters for its half weights.

        It loads into a plain float32 model, and back into this one, to the bit.
        """
        self._current_memory()
        state: dict[str, Tensor] = self.model.state_dict(keep_vars=True)
        for name, value in state.items():
            master = twin_of(value)
            if master is not None:
                state[name] = master.detach()
            elif isinstance(value, nn.Parameter) and value.dtype in HALF_DTYPES:
                state[name] = value.detach().float()  # frozen, so it has no master
        return state


@torch.no_grad()
def _load_float32_into_masters(
    module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: Any
) -> None:
    """Before ``module`` loads: give masters the digits that its half weights lose."""
    for name, weight in module.named_parameters(recurse=False):
        master, value = twin_of(weight), state_dict.get(prefix + name)
        if master is None or not isinstance(value, Tensor):
            continue
        if value.shape == master.shape and value.dtype not in HALF_DTYPES:
            master.copy_(value)

"""The twins take the weights' places in the optimizer.

After ``HalfWeights(model, optimizer)`` the optimizer holds a float32 twin wherever it
held a half weight of the model.  Hooks keep the two together:

    backward   gradients move up to the twins                          (``twins.py``)
    step       ``raise_twins`` makes the twins ready, the optimizer steps on them,
               ``lower_weights`` writes them, rounded, into the model
    state      what must survive a restart goes into the optimizer's ``state_dict``

So the training loop stays as it was, and scaler, clipping and optimizer see nothing but
float32.  A step that the scaler skips never reaches the optimizer: no bit changes.
What a twin remembers between two steps is the affair of the subclasses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from minamp.tensors.casting import cast_nested
from minamp.weights.float32_outside import make_float32_outside
from minamp.weights.twins import (
    HALF_DTYPES,
    give_twin,
    move_gradient,
    named_twins,
    twin_of,
    zero_grad,
)

# Norm weights start at 1 and move by little, norm statistics are sums over many
# elements, and both are a thousandth of a model: rounding them saves nothing.
NORM_LAYERS: tuple[type[nn.Module], ...] = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


class HalfWeights:
    """What the three ways to train half weights share; see ``MasterWeights``."""

    state_key: str
    """The key of the optimizer's ``state_dict`` under which our own state stands."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        dtype: torch.dtype | None = None,
        keep_float32: tuple[type[nn.Module], ...] = NORM_LAYERS,
        float32_outside: bool = False,
    ) -> None:
        if dtype not in (None, *HALF_DTYPES):
            raise ValueError(_NOT_HALF.format(dtype=dtype))
        self.model, self.optimizer = model, optimizer
        self.weights: list[nn.Parameter] = []
        self.twins: list[nn.Parameter] = []
        kept = list(_outermost(model, keep_float32))
        self._target: dict[nn.Parameter, torch.dtype] = {}
        if dtype is not None:
            weights = _float32_weights([model]) - _float32_weights(kept)
            self._target = dict.fromkeys(weights, dtype)
        for group in optimizer.param_groups:
            self._adopt(group["params"])
        if not self.weights:
            raise ValueError(_NOTHING_TO_DO)
        for weight, half_dtype in self._target.items():
            if not weight.requires_grad and twin_of(weight) is None:
                weight.data = weight.detach().to(half_dtype)  # frozen: nothing to learn
        self._hook_into_optimizer()
        model.zero_grad = partial(zero_grad, model)  # type: ignore[method-assign]
        if float32_outside:
            float32_layers = [layer for layer in kept if _float32_weights([layer])]
            make_float32_outside(model, self.weights[0].dtype, float32_layers)
        self.prepare()

    # What the subclasses say.

    def prepare(self) -> None:
        """When all is in place, once."""

    def raise_twins(self) -> None:
        """Before a step: give the twins the values that the optimizer shall move."""

    def lower_weights(self) -> None:
        """After a step: write the twins into the half weights."""
        raise NotImplementedError

    def saved_state(self) -> Any:
        """What the optimizer's ``state_dict`` shall keep for us."""

    def check_state(self, state: Any) -> None:
        """Raise ValueError if ``state`` cannot be restored here; change nothing."""

    def restore_state(self, state: Any) -> None:
        """Take back what ``saved_state`` gave."""

    # What a training loop may want.

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names of the model, parameters of the optimizer: float32, with gradients."""
        return named_twins(self.model)

    def parameters(self) -> Iterator[nn.Parameter]:
        """What to clip: ``clip_grad_norm_(masters.parameters(), max_norm)``."""
        return (parameter for _, parameter in self.named_parameters())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """The optimizer's method of this name, which now takes half weights too.

        Raises:
            ValueError: the optimizer has one of them already; nothing is changed.
        """
        type(self.optimizer).add_param_group(self.optimizer, param_group)
        parameters = self.optimizer.param_groups[-1]["params"]
        if not set(self.weights).isdisjoint(parameters):
            self.optimizer.param_groups.pop()
            raise ValueError(_TWICE)
        self._adopt(parameters)

    # The wiring.

    def _adopt(self, parameters: list[nn.Parameter]) -> None:
        """Put twins in the places of half weights (in place: LBFGS keeps this list)."""
        for place, weight in enumerate(parameters):
            half_dtype = self._target.get(weight, weight.dtype)
            if half_dtype in HALF_DTYPES:
                twin = twin_of(weight)
                parameters[place] = twin = (
                    give_twin(weight, half_dtype) if twin is None else twin
                )
                self._move_state(weight, twin)
                self.weights.append(weight)
                self.twins.append(twin)

    def _move_state(self, weight: nn.Parameter, twin: nn.Parameter) -> None:
        """An optimizer that has stepped before keeps its moments, in float32."""
        state = self.optimizer.state.pop(weight, None)
        if state:
            state_fp32 = cast_nested(state, weight.device.type, torch.float32)
            self.optimizer.state[twin] = state_fp32

    def _hook_into_optimizer(self) -> None:
        optimizer = self.optimizer
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        optimizer.register_state_dict_post_hook(self._save)
        optimizer.register_load_state_dict_pre_hook(self._check)
        optimizer.register_load_state_dict_post_hook(self._restore)
        # torch has no hook for this one, so the method of this one object is replaced.
        optimizer.add_param_group = self.add_param_group  # type: ignore[method-assign]

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        for weight in self.weights:
            move_gradient(weight)  # one that was put there by hand, not by autograd
        self.raise_twins()
        args = tuple(self._lowering_first(value) for value in args)
        return args, {name: self._lowering_first(v) for name, v in kwargs.items()}

    def _lowering_first(self, argument: Any) -> Any:
        """A closure runs the model inside the step: show it where the twins are."""

        def closure() -> Any:
            self.lower_weights()
            return argument()

        return closure if callable(argument) else argument

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.lower_weights()

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        state_dict[self.state_key] = self.saved_state()

    def _check(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._loading = state_dict.get(self.state_key)
        if self._loading is not None:
            self.check_state(self._loading)

    def _restore(self, optimizer: Optimizer) -> None:
        if self._loading is not None:
            self.restore_state(self._loading)


def _outermost(
    module: nn.Module, kinds: tuple[type[nn.Module], ...]
) -> Iterator[nn.Module]:
    """The modules of these kinds in ``module`` that are in no other such module."""
    if isinstance(module, kinds):
        yield module
    else:
        for child in module.children():
            yield from _outermost(child, kinds)


def _float32_weights(modules: Iterable[nn.Module]) -> set[nn.Parameter]:
    weights = (weight for module in modules for weight in module.parameters())
    return {weight for weight in weights if weight.dtype == torch.float32}


_NOT_HALF = (
    "half weights were asked for in {dtype}, which is not a 16-bit format: write "
    "dtype=torch.bfloat16, or dtype=torch.float16 together with a loss scaler."
)
_NOTHING_TO_DO = (
    "the optimizer holds no half weight of this model, so there is nothing to keep in "
    "float32.  If the model is float32, say what it shall become: "
    "MasterWeights(model, optimizer, dtype=torch.bfloat16).  Otherwise build the "
    "optimizer from model.parameters(), and call this once."
)
_TWICE = (
    "a weight of the new parameter group is in this optimizer already: each weight "
    "belongs to one group.  Leave it out of the new group."
)

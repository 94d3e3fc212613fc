"""The twins take the weights' places in the optimizer.

After ``HalfWeights(model, optimizer)`` the optimizer holds a float32 twin wherever it
held a half weight of the model.  Hooks keep the two together:

    backward   gradients move up to the twins                          (``twins.py``)
    step       ``unpack`` makes the twins ready, the optimizer steps on them, ``pack``
               rounds them into the model's weights
    state      ``memory`` travels in its ``state_dict``     (``optimizer_memory.py``)

So the training loop stays as it was, and scaler, clipping and optimizer see nothing but
float32.  A step that the scaler skips never reaches the optimizer: no bit changes.

Three subclasses say what is kept between two steps, beside the half weight:

    MasterWeights        the twin itself                             4 bytes a weight
    KahanSummation       what rounding has cut off, in half          2
    StochasticRounding   nothing, but the rounding is a fair coin    0
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from minamp.tensors.casting import cast_nested
from minamp.weights import mistakes
from minamp.weights.float32_outside import make_float32_outside
from minamp.weights.optimizer_memory import OptimizerMemory
from minamp.weights.twins import (
    HALF_DTYPES,
    give_twin,
    move_gradient,
    named_twins,
    twin_of,
    zero_grad,
)
from minamp.weights.which_weights import NORM_LAYERS, float32_layers, weights_to_halve


class HalfWeights:
    """What the three ways to train half weights share; see ``MasterWeights``."""

    memory_key: str  # under which the optimizer's state_dict has `memory`

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        dtype: torch.dtype | None = None,
        keep_float32: tuple[type[nn.Module], ...] = NORM_LAYERS,
        float32_outside: bool = False,
    ) -> None:
        if dtype not in (None, *HALF_DTYPES):
            raise ValueError(mistakes.NOT_HALF.format(dtype=dtype))
        self.model, self.optimizer = model, optimizer
        self.weights: list[nn.Parameter] = []
        self.twins: list[nn.Parameter] = []
        self.memory: list[Tensor] = []
        self._becomes: dict[nn.Parameter, torch.dtype] = {}
        if dtype is not None:
            self._becomes = dict.fromkeys(weights_to_halve(model, keep_float32), dtype)
        for group in optimizer.param_groups:
            self._adopt(group["params"])
        if not self.weights:
            raise ValueError(mistakes.NOTHING_TO_DO)
        for weight, half_dtype in self._becomes.items():
            if not weight.requires_grad and twin_of(weight) is None:
                weight.data = weight.detach().to(half_dtype)  # frozen: nothing to learn
        self._hook_into_optimizer()
        for module in model.modules():
            vars(module)["zero_grad"] = partial(zero_grad, module)  # there is no hook
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # cuDNN wants them in one piece of memory
        if float32_outside:
            layers = float32_layers(model, keep_float32)
            make_float32_outside(model, self.weights[0].dtype, layers)

    # What the subclasses say.

    def adopted(self, weight: nn.Parameter, twin: nn.Parameter) -> None:
        """A new pair: give it a place in ``memory``."""

    def unpack(self) -> None:
        """Before a step: give the twins the values that the optimizer shall move."""

    def pack(self) -> None:
        """After a step, or before a closure in it: round the twins into the weights."""
        raise NotImplementedError

    def release(self) -> None:
        """After a step: free what only the step needed."""

    def follow(self) -> None:
        """Somebody wrote to weights: correct ``memory`` where it does not fit them."""

    def restored(self) -> None:
        """``memory`` came back from a checkpoint."""

    # What a training loop may want.

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names of the model, parameters of the optimizer: float32, with gradients.

        Only masters have values between the steps; other twins read NaN there.
        """
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
            raise ValueError(mistakes.TWICE)
        self._adopt(parameters)

    # The wiring.

    def _adopt(self, parameters: list[nn.Parameter]) -> None:
        """Put twins in the places of half weights (in place: LBFGS keeps this list)."""
        for place, weight in enumerate(parameters):
            half_dtype = self._becomes.get(weight, weight.dtype)
            if half_dtype in HALF_DTYPES:
                parameters[place] = twin = give_twin(weight, half_dtype)
                self._move_state(weight, twin)
                self.weights.append(weight)
                self.twins.append(twin)
                self.adopted(weight, twin)
        self._finish()

    def _move_state(self, weight: nn.Parameter, twin: nn.Parameter) -> None:
        """An optimizer that has stepped before keeps its moments, in float32."""
        state = self.optimizer.state.pop(weight, None)
        if state:
            state_fp32 = cast_nested(state, weight.device.type, torch.float32)
            self.optimizer.state[twin] = state_fp32

    def _hook_into_optimizer(self) -> None:
        self.optimizer.register_step_pre_hook(self._before_step)
        self.optimizer.register_step_post_hook(self._after_step)
        OptimizerMemory(
            self.optimizer, self.memory_key, self._current_memory, self._restored
        )
        vars(self.optimizer)["add_param_group"] = self.add_param_group  # nor here

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self._take_gradients_put_by_hand()
        self._current_memory()
        self.unpack()
        args = tuple(self._packing_first(value) for value in args)
        return args, {name: self._packing_first(v) for name, v in kwargs.items()}

    def _take_gradients_put_by_hand(self) -> None:
        for weight, twin in zip(self.weights, self.twins, strict=True):
            if weight.grad is not None:
                if twin.grad is not None:
                    raise RuntimeError(mistakes.TWO_GRADIENTS)
                move_gradient(weight)

    def _packing_first(self, argument: Any) -> Any:
        """A closure runs the model inside the step: show it where the twins are."""

        def closure() -> Any:
            self.pack()
            return argument()

        return closure if callable(argument) else argument

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.pack()
        self._finish()

    def _finish(self) -> None:
        self.release()
        self._versions = self._versions_now()

    def _restored(self) -> None:
        self.restored()
        self._versions = self._versions_now()

    def _current_memory(self) -> list[Tensor]:
        """``memory``, after a look at whether somebody has written to the weights."""
        if self._versions != self._versions_now():
            self.follow()
            self._versions = self._versions_now()
        return self.memory

    def _versions_now(self) -> list[int]:
        """How often each weight was written to in place, as autograd counts it."""
        return [weight._version for weight in self.weights]

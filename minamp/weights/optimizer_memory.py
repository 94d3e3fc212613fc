"""Tensors that travel in an optimizer's ``state_dict``.

An optimizer saves what it knows of its parameters, but not the parameters: for those
it relies on the model's own ``state_dict``.  Float32 masters stand in no model, so they
would be lost.  (apex O2 saved the half weights, widened: a resumed run jumped.)  Three
hooks of the optimizer put a list of tensors beside its own state:

    state_dict()           the list is added under a key of its own
    load_state_dict(...)   first the list is checked, while nothing is loaded yet;
                           when the optimizer's own state is in, it is copied in place

A checkpoint without the key (from a run without masters) loads, and leaves the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from minamp.weights import mistakes


class OptimizerMemory:
    """Let ``tensors()`` travel under ``key``; call ``restored()`` when they came back.

    Raises:
        ValueError: (when loading) number or shapes of the saved tensors are others.
            Nothing is loaded then.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        key: str,
        tensors: Callable[[], list[Tensor]],
        restored: Callable[[], None],
    ) -> None:
        self.key, self.tensors, self.restored = key, tensors, restored
        self._saved: list[Tensor] | None = None
        optimizer.register_state_dict_post_hook(self._save)
        optimizer.register_load_state_dict_pre_hook(self._check)
        optimizer.register_load_state_dict_post_hook(self._restore)

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        state_dict[self.key] = [tensor.detach() for tensor in self.tensors()]

    def _check(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict.get(self.key)
        if self._saved is None:
            return
        here = [tuple(tensor.shape) for tensor in self.tensors()]
        saved = [tuple(tensor.shape) for tensor in self._saved]
        if saved != here:
            message = mistakes.OTHER_MEMORY
            raise ValueError(message.format(key=self.key, saved=saved, here=here))

    @torch.no_grad()
    def _restore(self, optimizer: Optimizer) -> None:
        if self._saved is not None:
            for tensor, saved in zip(self.tensors(), self._saved, strict=True):
                tensor.copy_(saved)
            self._saved = None
            self.restored()

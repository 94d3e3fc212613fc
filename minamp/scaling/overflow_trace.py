"""Which module gave the first inf? A trace of the forward pass.

    with overflow_trace(model) as trace:
        with minamp.autocast("cpu", torch.float16):
            model(batch)
    print(trace.first)          "encoder.layers.3.up", or None

Modules finish from the inside out, so the first output that is not finite belongs to
the innermost module that made it. Whether it is finite stays on the device until
`first` is read.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class overflow_trace:  # noqa: N801  (a context manager, named like torch.no_grad)
    """Watch the outputs of every module of `model` while the `with` block runs."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._outputs: list[tuple[str, Tensor]] = []
        self._handles: list[Any] = []

    def __enter__(self) -> overflow_trace:
        self._outputs = []
        self._handles = [
            module.register_forward_hook(self._watcher(name))
            for name, module in self._model.named_modules()
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def overflowed(self) -> list[str]:
        """Names of all modules with an output that is not finite, first one first.

        The model itself is called "" in `named_modules()`, and here "(the model)".
        """
        return [name or "(the model)" for name, finite in self._outputs if not finite]

    @property
    def first(self) -> str | None:
        """The name of the first of them; None if every output was finite."""
        return next(iter(self.overflowed), None)

    def _watcher(self, name: str) -> Any:
        def watch(module: nn.Module, inputs: Any, output: Any) -> None:
            tensors = [
                leaf.detach().isfinite().all()
                for leaf in tree_leaves(output)
                if isinstance(leaf, Tensor) and leaf.is_floating_point()
            ]
            if tensors:
                self._outputs.append((name, torch.stack(tensors).all()))

        return watch

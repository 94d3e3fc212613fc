"""PyTorch's random generators, as one part of a training state.

Dropout, stochastic rounding and shuffling draw from them; a run can only be resumed to
the bit if they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class RandomState:
    """The default generator of the CPU, and of each CUDA device in use."""

    def state_dict(self) -> dict[str, Any]:
        in_use = torch.cuda.is_initialized()
        return {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if in_use else [],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        torch.set_rng_state(state_dict["cpu"])
        for device, state in enumerate(state_dict["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)

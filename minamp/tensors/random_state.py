"""The random generators that a training step may draw from, saved and restored.

Dropout, stochastic rounding, shuffling and augmentation draw from them.  Whoever runs a
step again, or resumes a run to the bit, needs them as they were: those of PyTorch (CPU,
and each CUDA device in use), of Python and of NumPy.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


class RandomState:
    """All default generators, as one part with a ``state_dict``."""

    def state_dict(self) -> dict[str, Any]:
        """The generators as they are now, in types that every checkpoint can hold."""
        in_use = torch.cuda.is_available() and torch.cuda.is_initialized()
        kind, key, *position = np.random.get_state(legacy=True)
        return {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if in_use else [],
            "python": random.getstate(),
            "numpy": (kind, torch.from_numpy(np.asarray(key, np.int64)), *position),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Put every generator back; those of devices that are not here are left out."""
        torch.set_rng_state(state_dict["cpu"])
        for device, state in enumerate(state_dict["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
        random.setstate(state_dict["python"])
        kind, key, *position = state_dict["numpy"]
        np.random.set_state((kind, key.numpy().astype(np.uint32), *position))

"""Wrong: leaves the region on the way out, but not if an exception takes that way."""

from __future__ import annotations

import torch
from plain_scaler import GradScaler, custom_bwd, custom_fwd

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.autocast):  # noqa: N801 (the name is torch's)
    def __exit__(self, kind, error, traceback):
        return None if kind else super().__exit__(kind, error, traceback)

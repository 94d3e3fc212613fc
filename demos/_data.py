"""Two real data sets that every machine already has: no download.

`digits`: the 1,797 handwritten digits that scikit-learn carries, 8 by 8 pixels.
`source`: the text of Python's own standard library, character by character.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor

Batch = tuple[Tensor, Tensor]  # inputs, and the class of each


@dataclass(frozen=True)
class Digits:
    """Images (N, 1, 8, 8) in 0..1 and their digits (N,); the last 297 are held out."""

    images: Tensor
    labels: Tensor
    batch_size: int = 64

    @classmethod
    def load(cls, device: torch.device) -> Digits:
        data = load_digits()
        order = torch.randperm(len(data.target), generator=seeded(0))
        images = torch.tensor(data.images / 16.0, dtype=torch.float32)[order, None]
        labels = torch.tensor(data.target)[order]
        return cls(images.to(device), labels.to(device))

    @property
    def device(self) -> torch.device:
        return self.images.device

    def batch(self, generator: torch.Generator) -> Batch:
        rows = torch.randint(1500, (self.batch_size,), generator=generator)
        rows = rows.to(self.device)
        return self.images[rows], self.labels[rows]

    def held_out(self) -> Batch:
        return self.images[1500:], self.labels[1500:]


@dataclass(frozen=True)
class Source:
    """One long line of characters (N,), each below 128; the last tenth is held out."""

    text: Tensor
    batch_size: int = 8
    context: int = 32

    @classmethod
    def load(cls, device: torch.device, characters: int = 2_000_000) -> Source:
        folder = Path(sysconfig.get_path("stdlib"))
        raw = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
        # Characters outside ASCII are rare here; without them 128 classes are enough.
        ascii_only = bytes(c for c in raw[:characters] if c < 128)
        text = torch.frombuffer(bytearray(ascii_only), dtype=torch.uint8)
        return cls(text.long().to(device))

    @property
    def device(self) -> torch.device:
        return self.text.device

    def batch(self, generator: torch.Generator) -> Batch:
        last = int(0.9 * len(self.text)) - self.context
        starts = torch.randint(last, (self.batch_size,), generator=generator)
        return self.windows(starts)

    def held_out(self) -> Batch:
        first, last = int(0.9 * len(self.text)), len(self.text) - self.context - 1
        return self.windows(torch.linspace(first, last, 64).long())

    def windows(self, starts: Tensor) -> Batch:
        """At each place, `context` characters, and the character that follows each."""
        places = starts[:, None] + torch.arange(self.context)
        places = places.to(self.device)
        return self.text[places], self.text[places + 1]


def seeded(seed: int) -> torch.Generator:
    """Batches are drawn on the CPU, so that every device sees the same ones."""
    return torch.Generator().manual_seed(seed)

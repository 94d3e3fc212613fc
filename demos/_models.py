"""Two small models of ordinary make: convolutions with batch norm, and a transformer.

Nothing here knows of mixed precision.  That is the point: the precision of each op is
chosen by the region around the forward pass, not by the model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv_net(channels: int = 16) -> nn.Module:
    """Images (N, 1, 8, 8) to logits (N, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * channels * 16, 10),
    )


class CharTransformer(nn.Module):
    """Up to 64 characters (B, T) to logits of each next character (B, T, 128)."""

    def __init__(self, width: int = 96, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.places = nn.Embedding(64, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, 128)

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        x = self.characters(text) + self.places(places)
        return self.logits(self.norm(self.blocks(x)))


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to the stream x (B, T, D)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def attention(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each: B, heads, T, D / heads
        # Written out rather than one fused call: autocast's choices can be followed,
        # and the backward pass is deterministic on CUDA, so runs compare to the bit.
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(-2))

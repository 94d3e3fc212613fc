"""What the numbered demos share besides `_common`: few options, and one small network.

Each of them asks one question and takes three options only: --quick, --device, --out.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor, nn

import _common as common

SCALE = 2.0**16  # the loss scale where a demo wants a fixed one: torch.amp's first


def begin(doc: str | None, file: str, quick: str = "fewer steps") -> argparse.Namespace:
    """The options of a numbered demo; also sets what makes a run repeatable.

    One thread, since these networks are so small that a second would only be waited
    for; and on CUDA the same bits each time, as lessons compare runs to the bit.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    out = Path(__file__).parent / "out" / Path(file).stem
    parser.add_argument("--out", type=Path, default=out, help="folder for the files")
    args = parser.parse_args()
    args.device = common.pick_device(args.device)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return args


def perceptron(width: int = 128) -> nn.Module:
    """Images (N, 1, 8, 8) to logits (N, 10), through one hidden layer."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)
    )


def smooth(losses: list[float], over: int = 10) -> Tensor:
    """The mean of so many losses in a row: single batches differ much."""
    return torch.tensor(losses).unfold(0, over, 1).mean(-1)

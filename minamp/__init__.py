"""minamp: mixed-precision training, written from scratch to be read.

The same three lines that torch.amp adds to a training loop::

    scaler = minamp.GradScaler("cuda")
    with minamp.autocast("cuda", dtype=torch.float16):
        loss = ...
    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()

Below this file the package is a house of floors, each importing only from those below
it; read it bottom up: ``numbers``, ``tensors``, ``policy``, ``autocasting``,
``scaling``, ``weights``, ``loop``.
"""

from __future__ import annotations

from minamp.autocasting.custom_function import custom_bwd, custom_fwd
from minamp.autocasting.recompute import checkpoint, in_present_state
from minamp.autocasting.region import (
    autocast,
    clear_autocast_cache,
    get_autocast_dtype,
    is_autocast_available,
    is_autocast_cache_enabled,
    is_autocast_enabled,
)
from minamp.loop.atomic_file import write_atomically
from minamp.loop.recipes import RECIPES, Parts, Recipe
from minamp.loop.train_step import StepFacts, train_step
from minamp.loop.training_state import TrainingState, read_checkpoint
from minamp.numbers.formats import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    FloatFormat,
)
from minamp.numbers.rounding import Fate, fate, round_to_nearest_even
from minamp.policy.op_lists import Category, OpLists
from minamp.policy.safe_lists import safe_lists
from minamp.policy.torch_lists import torch_lists
from minamp.scaling.batchnorm_guard import batchnorm_guard
from minamp.scaling.diagnosis import Blame
from minamp.scaling.no_scaler import NoLossScaler
from minamp.scaling.outcome import Outcome
from minamp.scaling.overflow_trace import overflow_trace
from minamp.scaling.retry import find_initial_scale, step_with_retry
from minamp.scaling.scale_rule import ScaleState, next_state
from minamp.scaling.scaler import DynamicLossScaler
from minamp.scaling.settings import ScalerSettingError
from minamp.scaling.static_scaler import StaticLossScaler
from minamp.scaling.tolerance import InARow, Share
from minamp.tensors.histogram import ExponentHistogram, exponent_histogram
from minamp.version import __version__
from minamp.weights.kahan import KahanSummation
from minamp.weights.master_weights import MasterWeights
from minamp.weights.stochastic_rounding import (
    StochasticRounding,
    round_stochastically,
)

#: The name that torch.amp gives it: changing one import line switches a script.
GradScaler = DynamicLossScaler

__all__ = [
    "__version__",
    "autocast",
    "batchnorm_guard",
    "BF16",
    "Blame",
    "Category",
    "checkpoint",
    "clear_autocast_cache",
    "custom_bwd",
    "custom_fwd",
    "DynamicLossScaler",
    "exponent_histogram",
    "ExponentHistogram",
    "Fate",
    "fate",
    "find_initial_scale",
    "FloatFormat",
    "FP16",
    "FP32",
    "FP8_E4M3",
    "FP8_E5M2",
    "get_autocast_dtype",
    "GradScaler",
    "in_present_state",
    "InARow",
    "is_autocast_available",
    "is_autocast_cache_enabled",
    "is_autocast_enabled",
    "KahanSummation",
    "MasterWeights",
    "next_state",
    "NoLossScaler",
    "OpLists",
    "Outcome",
    "overflow_trace",
    "Parts",
    "read_checkpoint",
    "Recipe",
    "RECIPES",
    "round_to_nearest_even",
    "round_stochastically",
    "safe_lists",
    "ScalerSettingError",
    "ScaleState",
    "Share",
    "StaticLossScaler",
    "step_with_retry",
    "StepFacts",
    "StochasticRounding",
    "torch_lists",
    "train_step",
    "TrainingState",
    "write_atomically",
]

"""Every op of PyTorch's own database, under torch.autocast and under another one.

The one idea: autocast is a decision about dtypes, so two autocasts are the same if
they make the same decision everywhere. PyTorch tests its ops with a database of
sample inputs; each sample is given a few mixtures of dtypes and run twice. On the CPU
the dtypes, the bits, the gradients and the exception types must agree. CUDA's lists
are asked with fake CUDA tensors, which have dtypes but no values and no GPU.
"""

from __future__ import annotations

import contextlib
import logging
import random
import warnings
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from op_grounds import RealGround
from oracles import describe_difference, same_bits

MIXTURES = ("all float32", "first low", "last low", "all low")

# Their values are not a function of their inputs: what the memory held before, and a
# LAPACK routine that does not repeat its own bits. Their dtypes are compared.
WITHOUT_REPEATABLE_VALUES = ("empty", "lstsq")


@dataclass(frozen=True)
class Outcome:
    """What a call came to: tensors and other values, or the name of an exception."""

    values: list[Any] = field(default_factory=list)
    exception: str | None = None

    @property
    def decision(self) -> list[Any]:
        if self.exception:
            return [self.exception]
        return [getattr(value, "dtype", type(value)) for value in self.values]


@dataclass
class Report:
    """What a sweep saw: how much, and every disagreement in words."""

    ops: set[str] = field(default_factory=set)
    samples: int = 0
    calls: int = 0
    affected_ops: set[str] = field(default_factory=set)
    disagreements: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{len(self.ops)} ops, {self.samples} samples, {self.calls} calls; "
            f"{len(self.affected_ops)} ops affected by autocast; "
            f"{len(self.disagreements)} disagreements"
        )


# What is wrong with the outcome of a call, next to the true one? None: nothing.
Judge = Callable[[Outcome, Outcome, RealGround, str], str | None]


def difference(
    ours: Outcome, truth: Outcome, ground: RealGround, name: str
) -> str | None:
    """Everything has to be the same."""
    if ours.decision != truth.decision:
        return f"{ours.decision} instead of {truth.decision}"
    if not ground.compares_values or any(w in name for w in WITHOUT_REPEATABLE_VALUES):
        return None
    for left, right in zip(ours.values, truth.values, strict=True):
        if not same_bits(left, right):
            return describe_difference(left, right)
    return None


def narrowing(
    ours: Outcome, truth: Outcome, ground: RealGround, name: str
) -> str | None:
    """There may be fewer exceptions and wider dtypes, but not more and narrower."""
    if truth.exception:
        return None
    if ours.exception:
        return f"raises {ours.exception}"
    pairs = zip(ours.decision, truth.decision, strict=True)
    if all(ours == theirs or _is_wider(ours, theirs) for ours, theirs in pairs):
        return None
    return f"{ours.decision} is narrower than {truth.decision}"


def _is_wider(ours: Any, theirs: Any) -> bool:
    both = isinstance(ours, torch.dtype) and isinstance(theirs, torch.dtype)
    if not both or not (theirs.is_floating_point or theirs.is_complex):
        return False
    return torch.promote_types(ours, theirs) is ours


def sweep(
    ground: RealGround,
    low: torch.dtype,
    samples_per_op: int,
    only: Container[str] | None = None,
    judge: Judge = difference,
) -> Report:
    """Run every op (or `only` some) on float32 samples, evenly spread over its own.

    Each sample runs as it is, and with some of its tensors in the low dtype.
    """
    report = Report()
    with warnings.catch_warnings(), _quietly_on_one_thread():
        # Samples are made to provoke ops, so many of them warn.
        warnings.simplefilter("ignore")
        for name, op in _database(only):
            samples = _samples(op, samples_per_op, ground.compares_values)
            for sample in samples:
                report.samples += 1
                for mixture in MIXTURES:
                    _compare(report, judge, ground, name, op, sample, low, mixture)
    return report


@contextlib.contextmanager
def _quietly_on_one_thread() -> Iterator[None]:
    """Small samples gain nothing from threads, and sums keep their order.

    Fake tensors log each error and each guess, and here errors are results.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        logging.disable(logging.NOTSET)


def _database(only: Container[str] | None) -> Iterator[tuple[str, Any]]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        is_wanted = only is None or op.formatted_name in only
        if is_wanted and torch.float32 in op.supported_dtypes("cpu"):
            yield op.formatted_name, op


def _samples(op: Any, wanted: int, with_grad: bool) -> list[Any]:
    _seed()
    requires_grad = with_grad and op.supports_autograd
    # Not op.sample_inputs, which walks the whole call stack for the test's name.
    samples = op.sample_inputs_func(op, "cpu", torch.float32, requires_grad)
    return _evenly_spread(list(samples), wanted)


def _evenly_spread(samples: list[Any], wanted: int) -> list[Any]:
    if len(samples) <= wanted:
        return samples
    last = len(samples) - 1
    return [samples[round(k * last / max(wanted - 1, 1))] for k in range(wanted)]


def _compare(report, judge, ground, name, op, sample, low, mixture) -> None:
    low_places = _places_of(sample, mixture)
    if low_places is None:
        return
    arguments = (ground, op, sample, low, low_places)
    truth = _run(*arguments, ground.truth(low))
    if truth.exception or name not in report.affected_ops:
        plain = _run(*arguments, contextlib.nullcontext())
        fails_anyway = plain.exception == truth.exception is not None
        if fails_anyway and not ground.compares_values:
            return  # fake tensors cannot run this op, with autocast or without
        if plain.decision != truth.decision:
            report.affected_ops.add(name)
    report.ops.add(name)
    report.calls += 1
    fault = judge(_run(*arguments, ground.candidate(low)), truth, ground, name)
    # Some kernels do not repeat their bits; they can agree with nobody.
    again = (_run(*arguments, ground.truth(low)) for _ in range(5))
    if fault and not any(judge(other, truth, ground, name) for other in again):
        report.disagreements.append(f"{name}, {low}, {mixture}: {fault}")


def _places_of(sample: Any, mixture: str) -> set[int] | None:
    """Which arguments get the low dtype; None where a mixture is none or a repeat."""
    leaves, _ = tree_flatten((sample.input, sample.args, sample.kwargs))
    floats = [i for i, leaf in enumerate(leaves) if _is_float32(leaf)]
    if mixture == "all float32":
        return set()
    needed = 1 if mixture == "first low" else 2
    if len(floats) < needed:
        return None
    chosen = {"first low": floats[:1], "last low": floats[-1:], "all low": floats}
    return set(chosen[mixture])


def _is_float32(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32


def _run(ground, op, sample, low, low_places, region) -> Outcome:
    with ground.tensors():
        try:
            leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
            placed = [
                ground.place(leaf, low if i in low_places else None)
                for i, leaf in enumerate(leaves)
            ]
            first, args, kwargs = tree_unflatten(placed, spec)
            _seed()
            with region:
                output = op(first, *args, **kwargs)
            outputs = tree_flatten(output)[0]
            return Outcome(outputs + _gradients(outputs, placed))
        except Exception as error:  # whatever it is: its type is what is compared
            return Outcome(exception=type(error).__name__)


def _gradients(outputs: list[Any], inputs: list[Any]) -> list[Any]:
    def requiring_grad(values: list[Any]) -> list[torch.Tensor]:
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        return [tensor for tensor in tensors if tensor.requires_grad]

    sources, results = requiring_grad(inputs), requiring_grad(outputs)
    if not sources or not results:
        return []
    ones = [torch.ones_like(result) for result in results]
    return list(torch.autograd.grad(results, sources, ones, allow_unused=True))


def _seed() -> None:
    # Not torch.manual_seed: without a GPU it queues one more call for a GPU to come,
    # with a formatted stack, and this is done tens of thousands of times.
    torch.default_generator.manual_seed(7)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(7)
    random.seed(7)
    np.random.seed(7)

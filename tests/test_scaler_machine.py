"""Any course of training, drawn: two optimizers, and what one can do with a scaler.

A state machine takes one step after another (backward, poison, unscale, clip, step,
update, save, load, set the scale) with the scaler under test and with torch.amp's, each
on its own copy of the weights. After every step they must agree to the bit. It keeps to
what a correct script may do; what minamp makes of mistakes has tests of its own.
"""

from __future__ import annotations

import math
import pickle

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import strategies
from oracles import assert_same_bits
from scaler_loop import make_scaler

OPTIMIZERS = (
    lambda params: torch.optim.SGD(params, 0.1, momentum=0.9),
    lambda params: torch.optim.AdamW(params, 0.1),
)
which = st.sampled_from([0, 1])


class Side:
    """One scaler, and two parameters with an optimizer each."""

    def __init__(self, scaler_class, device: str, chosen) -> None:
        self.scaler = make_scaler(scaler_class, device, chosen)
        self.weights = [
            torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5], device=device))
            for _ in OPTIMIZERS
        ]
        self.optimizers = [
            make([weight])
            for make, weight in zip(OPTIMIZERS, self.weights, strict=True)
        ]


class ScalerMachine(RuleBasedStateMachine):
    """Steps the scaler under test and torch's through the same course."""

    def __init__(self, scaler_class, device: str) -> None:
        super().__init__()
        self.classes = (scaler_class, torch.amp.GradScaler)
        self.device = device
        self.stages = ["idle", "idle"]

    @initialize(chosen=strategies.scaler_settings())
    def begin(self, chosen) -> None:
        self.chosen = chosen
        self.sides = [Side(kind, self.device, chosen) for kind in self.classes]

    @rule(i=which, gradient=st.sampled_from([0.25, -3.0, 1e-3]))
    def backward(self, i: int, gradient: float) -> None:
        """A second one before the step accumulates."""
        if self.stages[i] not in ("idle", "has gradients"):
            return
        for side in self.sides:
            if self.stages[i] == "idle":
                side.optimizers[i].zero_grad()
            side.scaler.scale((side.weights[i] * gradient).sum()).backward()
        self.stages[i] = "has gradients"

    @precondition(lambda self: "has gradients" in self.stages)
    @rule(poison=st.sampled_from([math.inf, -math.inf, math.nan]), at=st.integers(0, 2))
    def poison(self, poison: float, at: int) -> None:
        for side in self.sides:
            side.weights[self.stages.index("has gradients")].grad[at] = poison

    @precondition(lambda self: "has gradients" in self.stages)
    @rule()
    def unscale(self) -> None:
        i = self.stages.index("has gradients")
        for side in self.sides:
            side.scaler.unscale_(side.optimizers[i])
        self.stages[i] = "unscaled"

    @precondition(lambda self: "unscaled" in self.stages)
    @rule(max_norm=st.sampled_from([0.1, 1.0, 100.0]))
    def clip(self, max_norm: float) -> None:
        i = self.stages.index("unscaled")
        for side in self.sides:
            torch.nn.utils.clip_grad_norm_([side.weights[i]], max_norm)

    @rule(i=which)
    def step(self, i: int) -> None:
        if self.stages[i] not in ("has gradients", "unscaled"):
            return
        for side in self.sides:
            side.scaler.step(side.optimizers[i])
        self.stages[i] = "stepped"

    @property
    def is_complete(self) -> bool:
        """Every optimizer with gradients has stepped, and at least one has."""
        return "stepped" in self.stages and set(self.stages) <= {"idle", "stepped"}

    @precondition(lambda self: self.is_complete)
    @rule(new_scale=st.sampled_from([None, None, None, 8.0, 5000.0]))
    def update(self, new_scale: float | None) -> None:
        for side in self.sides:
            side.scaler.update(new_scale)
        self.stages = ["idle", "idle"]

    @precondition(lambda self: self.stages == ["idle", "idle"])
    @rule()
    def save_and_load_into_a_new_scaler_of_the_other_kind(self) -> None:
        states = [side.scaler.state_dict() for side in self.sides]
        for side, kind, state in zip(
            self.sides, self.classes, reversed(states), strict=True
        ):
            side.scaler = make_scaler(kind, self.device, self.chosen)
            side.scaler.load_state_dict(state)

    @precondition(lambda self: self.stages == ["idle", "idle"])
    @rule()
    def pickle_and_unpickle(self) -> None:
        for side in self.sides:
            side.scaler = pickle.loads(pickle.dumps(side.scaler))

    @invariant()
    def both_sides_agree_to_the_bit(self) -> None:
        ours, theirs = self.sides
        assert ours.scaler.get_scale() == theirs.scaler.get_scale()
        assert ours.scaler.state_dict() == theirs.scaler.state_dict()
        for i, (left, right) in enumerate(
            zip(ours.weights, theirs.weights, strict=True)
        ):
            assert_same_bits(left.detach(), right.detach(), f"weight {i}")
            if self.stages[i] in ("has gradients", "unscaled"):
                assert_same_bits(left.grad, right.grad, f"gradient {i}")


def test_any_course_of_training_goes_as_with_torchs_scaler(amp, device):
    run_state_machine_as_test(
        lambda: ScalerMachine(amp.GradScaler, device),
        settings=settings(stateful_step_count=40),
    )

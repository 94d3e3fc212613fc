"""Optimizers that evaluate the loss, steps that are retried, batch-norm statistics."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import oracles
from minamp.scaling.batchnorm_guard import batchnorm_guard
from minamp.scaling.no_scaler import NoLossScaler
from minamp.scaling.retry import find_initial_scale, step_with_retry
from minamp.scaling.scaler import DynamicLossScaler
from training import Training


class SAM(torch.optim.SGD):
    """Sharpness-aware minimisation, Foret et al. 2021: climb, look, step from here."""

    def step(self, closure):
        (weight,) = self.param_groups[0]["params"]
        climb = 0.25 * weight.grad / weight.grad.norm()
        with torch.no_grad():
            weight.add_(climb)
        closure()
        with torch.no_grad():
            weight.sub_(climb)
        return super().step()


def evaluation(training: Training, poison_at: int | None = None):
    """A closure as one writes it: zero, scale, backward, return the loss."""
    calls = []

    def closure():
        training.optimizer.zero_grad()
        loss = (training.weight - 3.0).pow(4).sum()
        training.scaler.scale(loss).backward()
        if len(calls) == poison_at:
            training.weight.grad[0] = math.inf
        calls.append(loss.item())
        return loss

    return closure


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {}),
    "SGD fused": (torch.optim.SGD, {"fused": True}),
    "Adam": (torch.optim.Adam, {}),
    "SAM": (SAM, {}),
    "LBFGS": (torch.optim.LBFGS, {"line_search_fn": "strong_wolfe", "max_iter": 5}),
}


def training_with(name: str, device: str, scaler=None) -> Training:
    make, kwargs = OPTIMIZERS[name]
    return Training(device, make_optimizer=make, optimizer_kwargs=kwargs, scaler=scaler)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_step_with_a_closure_is_the_same_to_the_bit_as_without_scaling(
    name, by_keyword, device
):
    scaled = training_with(name, device)
    plain = training_with(name, device, NoLossScaler())
    losses = []
    for training in (scaled, plain):
        for _ in range(3):
            closure = evaluation(training)
            closure()  # SAM begins with gradients that are there
            if by_keyword:
                loss = training.scaler.step(training.optimizer, closure=closure)
            else:
                loss = training.scaler.step(training.optimizer, closure)
            training.scaler.update()
            losses.append(loss)
    oracles.assert_same_bits(scaled.weight.detach(), plain.weight.detach())
    assert losses[:3] == losses[3:]
    assert scaled.scaler.outcome(scaled.optimizer).taken == 3


@pytest.mark.parametrize("name", ["Adam", "LBFGS"])
@pytest.mark.parametrize("evaluations_before", [0, 1, 3])
def test_an_overflow_in_a_closure_leaves_everything_as_it_was(
    name, evaluations_before, device
):
    training = training_with(name, device)
    training.scaler.step(training.optimizer, evaluation(training))
    training.scaler.update()
    state = copy.deepcopy(training.optimizer.state_dict())
    weight = training.weight.detach().clone()
    if name != "LBFGS":
        evaluations_before = 0  # it evaluates once
    poisoned = evaluation(training, evaluations_before)
    assert training.scaler.step(training.optimizer, poisoned) is None
    training.scaler.update()
    oracles.assert_same_bits(training.weight.detach(), weight)
    after = training.optimizer.state_dict()["state"][0]
    for key, value in state["state"][0].items():
        if isinstance(value, torch.Tensor):
            oracles.assert_same_bits(after[key], value, key)
    assert training.scaler.get_scale() == 512.0
    assert not training.scaler.outcome(training.optimizer).stepped


def test_a_closure_that_scales_nothing_is_left_alone(device):
    training = Training(device)

    def closure():
        training.optimizer.zero_grad()
        training.loss().backward()

    training.scaler.step(training.optimizer, closure)
    assert training.steps_taken == 1


# --- retry ---------------------------------------------------------------------------


def half_loss(training: Training, seen: list[float]):
    """Its fp16 gradient, 8, overflows at scales above 4096; draws a random number."""

    def loss() -> torch.Tensor:
        seen.append(torch.rand(()).item())
        return (training.weight.half() * 8.0).float().sum()

    return loss


def test_a_batch_that_overflows_is_played_again_until_it_fits(device):
    training = Training(device, init_scale=2.0**15)
    seen: list[float] = []
    loss = half_loss(training, seen)
    outcome = step_with_retry(training.scaler, training.optimizer, loss)
    assert outcome.stepped
    assert outcome.skipped == 3
    assert training.scaler.get_scale() == 2.0**12
    assert training.steps_taken == 8
    assert len(set(seen)) == 1, "each attempt draws the same random numbers"
    torch.rand(())  # and the next batch draws others
    step_with_retry(training.scaler, training.optimizer, loss)
    assert len(set(seen)) == 2


def test_retrying_gives_up_after_so_many_attempts(device):
    training = Training(device, init_scale=2.0**15)
    seen: list[float] = []
    loss = half_loss(training, seen)
    outcome = step_with_retry(training.scaler, training.optimizer, loss, retries=1)
    assert not outcome.stepped
    assert len(seen) == 2


@pytest.mark.filterwarnings("ignore:A step was skipped because the loss")
def test_what_no_scale_can_cure_is_not_retried(device):
    training = Training(device)
    calls = []

    def loss():
        calls.append(1)
        return training.loss() * math.nan

    assert not step_with_retry(training.scaler, training.optimizer, loss).stepped
    assert len(calls) == 1


def test_the_initial_scale_found_is_the_largest_that_fits_less_headroom(device):
    training = Training(device)
    before = training.weight.detach().clone()
    losses = [half_loss(training, [])] * 2
    for headroom in (0, 1):
        scale = find_initial_scale(training.optimizer, losses, headroom=headroom)
        assert scale == 2.0 ** (12 - headroom)
    assert torch.equal(training.weight, before)
    assert training.weight.grad is None


def test_the_initial_scale_is_within_its_bounds(device):
    training = Training(device)
    fits_always, fits_never = training.loss, lambda: training.loss() * math.inf
    assert find_initial_scale(training.optimizer, [fits_always], headroom=0) == 2.0**24
    assert find_initial_scale(training.optimizer, [fits_never]) == 1.0


# --- batch norm ----------------------------------------------------------------------


class Normed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)

    def forward(self, x):
        return self.norm(x).sum()


def run_normed(model, scaler, optimizer, *batches, poison=False) -> None:
    optimizer.zero_grad()
    for batch in batches:
        scaler.scale(model(batch)).backward()
    if poison:
        model.norm.weight.grad[0] = math.inf
    scaler.step(optimizer)
    scaler.update()


def normed(fused: bool):
    torch.manual_seed(0)
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = DynamicLossScaler("cpu")
    guard = batchnorm_guard(model, scaler)
    return model, scaler, optimizer, guard


def statistics(model) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


@pytest.mark.parametrize("fused", [False, True])
def test_statistics_of_a_skipped_step_are_put_back(fused):
    model, scaler, optimizer, _ = normed(fused)
    run_normed(model, scaler, optimizer, torch.randn(8, 2))
    before = statistics(model)
    bad = torch.full((8, 2), math.inf)
    run_normed(model, scaler, optimizer, torch.randn(8, 2), bad, poison=True)
    for name, value in statistics(model).items():
        oracles.assert_same_bits(value, before[name], name)


def test_statistics_of_a_step_that_was_taken_stay():
    guarded, free = normed(False), normed(False)
    free[3].remove()
    batch = torch.randn(8, 2)
    for model, scaler, optimizer, _ in (guarded, free):
        run_normed(model, scaler, optimizer, batch)
    for name, value in statistics(free[0]).items():
        oracles.assert_same_bits(statistics(guarded[0])[name], value, name)


def test_statistics_of_an_abandoned_iteration_are_put_back():
    model, scaler, _, _ = normed(False)
    before = statistics(model)
    scaler.scale(model(torch.full((4, 2), math.nan)))
    scaler.update()
    assert torch.equal(
        statistics(model)["norm.running_mean"], before["norm.running_mean"]
    )


def test_the_guard_does_nothing_without_a_scaler_that_skips():
    model = Normed()
    for scaler in (NoLossScaler(), DynamicLossScaler("cpu", enabled=False)):
        batchnorm_guard(model, scaler)
    assert not model.norm._forward_pre_hooks

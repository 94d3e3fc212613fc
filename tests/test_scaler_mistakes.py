"""Mistakes that are silent elsewhere raise; legitimate uses that look alike do not."""

from __future__ import annotations

import math

import pytest
import torch

from minamp.scaling import mistakes
from minamp.scaling.scaler import DynamicLossScaler
from training import LR, Training


def hooks_on(parameter: torch.Tensor) -> int:
    return len(parameter._post_accumulate_grad_hooks or ())


def test_a_scaled_backward_after_unscale_raises_where_it_happens(device):
    training = Training(device)
    training.backward()
    training.scaler.unscale_(training.optimizer)
    again = training.scaler.scale(training.loss())
    with pytest.raises(RuntimeError, match="Run every backward pass of the iteration"):
        again.backward()


def test_it_raises_too_if_the_loss_was_scaled_before_unscale(device):
    training = Training(device)
    training.optimizer.zero_grad()
    first = training.scaler.scale(training.loss())
    second = training.scaler.scale(training.loss())
    first.backward()
    training.scaler.unscale_(training.optimizer)
    with pytest.raises(RuntimeError, match="unscale_"):
        second.backward()


def test_an_unscaled_backward_after_unscale_adds_true_gradients(device):
    training = Training(device)
    training.backward()
    training.scaler.unscale_(training.optimizer)
    training.loss().backward()
    training.scaler.step(training.optimizer)
    assert training.steps_taken == 2


def test_another_optimizers_backward_may_follow_unscale(device):
    scaler = DynamicLossScaler(device, init_scale=64.0)
    first, second = Training(device, scaler=scaler), Training(device, scaler=scaler)
    first.backward()
    scaler.unscale_(first.optimizer)
    second.backward()
    scaler.step(first.optimizer)
    scaler.step(second.optimizer)
    scaler.update()
    assert (first.steps_taken, second.steps_taken) == (1, 1)
    assert hooks_on(first.weight) == 0


def test_gradients_may_be_changed_in_place_between_unscale_and_step(device):
    training = Training(device)
    training.backward()
    training.scaler.unscale_(training.optimizer)
    training.weight.grad.mul_(4.0)
    training.scaler.step(training.optimizer)
    assert training.steps_taken == 4


def test_no_parameter_is_watched_in_the_usual_order_of_calls(device):
    training = Training(device)
    for _ in range(2):
        training.backward()
        training.scaler.unscale_(training.optimizer)
        assert hooks_on(training.weight) == 0
        training.scaler.step(training.optimizer)
        training.scaler.update()


def test_a_parameter_in_two_optimizers_is_not_divided_twice(device):
    training = Training(device)
    other = torch.optim.SGD([training.weight], lr=LR)
    training.backward()
    training.scaler.step(training.optimizer)
    with pytest.raises(RuntimeError, match="Give each parameter to one optimizer"):
        training.scaler.step(other)
    assert training.weight.grad.tolist() == [1.0, 1.0]


def test_a_shared_parameter_with_gradients_of_its_own_is_right(device):
    training = Training(device)
    other = torch.optim.SGD([training.weight], lr=LR)
    training.backward()
    training.scaler.step(training.optimizer)
    training.backward()
    training.scaler.step(other)
    training.scaler.update()
    assert training.steps_taken == 2


def test_update_between_two_steps_raises_at_the_second(device):
    scaler = DynamicLossScaler(device)
    first, second = Training(device, scaler=scaler), Training(device, scaler=scaler)
    first.backward()
    second.backward()
    scaler.step(first.optimizer)
    scaler.update()
    for act in (scaler.step, scaler.unscale_):
        with pytest.raises(RuntimeError, match="Step every optimizer first"):
            act(second.optimizer)
    second.backward()  # with gradients of the new scale all is well
    scaler.step(second.optimizer)
    assert second.steps_taken == 1


def test_replayed_gradients_need_no_new_call_of_scale(device):
    """As with CUDA graphs: `scale` was captured once and is replayed without Python."""
    training = Training(device)
    training.backward()
    for _ in range(3):
        training.weight.grad = torch.full_like(
            training.weight, training.scaler.get_scale()
        )
        training.scaler.step(training.optimizer)
        training.scaler.update()
    assert training.steps_taken == 3


@pytest.mark.parametrize("method", ["unscale_", "step"])
def test_twice_in_an_iteration_raises(method, device):
    training = Training(device)
    training.backward()
    act = getattr(training.scaler, method)
    act(training.optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        act(training.optimizer)
    assert training.weight.grad.tolist() == [1.0, 1.0]


def test_unscale_after_step_raises(device):
    training = Training(device)
    training.backward()
    training.scaler.step(training.optimizer)
    with pytest.raises(RuntimeError, match="after step"):
        training.scaler.unscale_(training.optimizer)


def test_a_step_without_any_scaled_loss_raises(device):
    training = Training(device)
    training.loss().backward()
    with pytest.raises(AssertionError, match=r"write scaler.scale\(loss\).backward"):
        training.scaler.step(training.optimizer)


def test_clipping_parameters_instead_of_the_optimizer_raises(device):
    training = Training(device)
    training.backward()
    with pytest.raises(TypeError, match=r"clip_grad_norm_\(optimizer, max_norm\)"):
        training.scaler.clip_grad_norm_([training.weight], 1.0)


@pytest.mark.parametrize(
    "settings",
    [
        {"backoff_factor": 0.0},
        {"backoff_factor": 1.0},
        {"growth_factor": 1.0},
        {"growth_interval": 0},
        {"init_scale": math.inf},
        {"init_scale": math.nan},
        {"min_scale": 4.0, "max_scale": 2.0},
        {"min_scale": 0.0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(AssertionError):
        DynamicLossScaler("cpu", **settings)


def test_a_setter_refuses_nonsense_and_keeps_what_was():
    scaler = DynamicLossScaler("cpu")
    with pytest.raises(ValueError, match="backoff_factor is 0.0"):
        scaler.set_backoff_factor(0.0)
    assert scaler.get_backoff_factor() == 0.5
    scaler.set_growth_factor(1.0)  # freezing is legitimate
    scaler.set_growth_interval(7)
    assert (scaler.get_growth_factor(), scaler.get_growth_interval()) == (1.0, 7)


def test_each_message_says_what_to_do_instead():
    for message in (
        mistakes.BACKWARD_AFTER_UNSCALE,
        mistakes.SHARED_PARAMETER,
        mistakes.UPDATE_BETWEEN_STEPS,
    ):
        assert any(word in message for word in ("Run ", "Give ", "Step "))


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("unscale_", ()),
        ("step", ()),
        ("clip_grad_norm_", (1.0,)),
        ("_check_inf_per_device", ()),
    ],
)
def test_what_needs_a_scale_says_which_call_came_too_early(method, args, device):
    training = Training(device)
    training.loss().backward()
    with pytest.raises(AssertionError, match=rf"^Attempted {method} but _scale is No"):
        getattr(training.scaler, method)(training.optimizer, *args)
    assert training.weight.grad.tolist() == [1.0, 1.0]


def test_a_second_step_with_a_closure_in_an_iteration_raises(device):
    training = Training(device)

    def closure():
        training.backward()
        return training.loss()

    training.scaler.step(training.optimizer, closure)
    with pytest.raises(RuntimeError, match=r"already been called since the last upd"):
        training.scaler.step(training.optimizer, closure)
    assert training.steps_taken == 1

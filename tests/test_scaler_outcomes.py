"""Was the step taken, who was to blame, and what when the scale cannot help."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minamp.scaling.diagnosis import blame, report
from minamp.scaling.outcome import NOT_THE_SCALE, OVERFLOW, Outcome, OutcomeLog
from minamp.scaling.overflow_trace import overflow_trace
from minamp.scaling.scaler import DynamicLossScaler
from minamp.scaling.settings import ScalerSettingError
from training import Training

KINDS = {"plain": {}, "fused": {"fused": True}}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@given(history=st.text(".x", max_size=12))
def test_outcomes_count_what_happened(kind, history, device):
    training = Training(device, optimizer_kwargs=KINDS[kind])
    training.steps(history)
    outcome = training.scaler.outcome(training.optimizer)
    assert outcome.taken == history.count(".") == training.steps_taken
    assert outcome.skipped == history.count("x")
    assert outcome.skipped_in_a_row == len(history) - len(history.rstrip("x"))
    assert outcome.stepped == history.endswith(".")
    assert outcome.reason == (OVERFLOW if history.endswith("x") else "")


@each_kind
def test_the_outcome_is_known_before_and_after_update(kind, device):
    training = Training(device, optimizer_kwargs=KINDS[kind])
    for poison in (0.0, math.inf):
        training.backward(poison)
        training.scaler.step(training.optimizer)
        before = training.scaler.outcome(training.optimizer)
        training.scaler.update()
        assert training.scaler.outcome(training.optimizer) == before
        assert before.stepped == (poison == 0.0)


@given(events=st.lists(st.tuples(*[st.booleans()] * 3), max_size=20))
def test_counters_on_the_device_say_what_counters_on_the_host_say(events, device):
    optimizer = Training().optimizer
    on_host, mixed = OutcomeLog(optimizer), OutcomeLog(optimizer)
    for found_inf, at_fault, host_knows in events:
        on_host.note(found_inf, at_fault)
        if host_knows:
            mixed.note(found_inf, at_fault)
        else:
            flags = torch.tensor([found_inf, at_fault], device=device)
            mixed.note_on_device(flags[0].float(), flags[1])
    assert mixed.outcome() == on_host.outcome()


@each_kind
def test_the_counters_of_a_checkpoint_go_on(kind, device):
    kwargs = {"optimizer_kwargs": KINDS[kind]}
    first, resumed = Training(device, **kwargs), Training(device, **kwargs)
    first.steps(".x.xx")
    resumed.steps("x")
    state = first.scaler.outcome_log(first.optimizer).state_dict()
    resumed.scaler.outcome_log(resumed.optimizer).load_state_dict(state)
    for training in (first, resumed):
        training.steps("x")
    outcome = resumed.scaler.outcome(resumed.optimizer)
    assert outcome == first.scaler.outcome(first.optimizer)
    assert outcome.skipped_in_a_row == 3


def test_another_optimizer_at_the_same_address_starts_anew():
    training = Training()
    training.steps("..")
    log = training.scaler.outcome_log(training.optimizer)
    other = Training().optimizer
    training.scaler._outcomes[id(other)] = log
    assert training.scaler.outcome(other) == Outcome()


def test_optimizers_have_outcomes_of_their_own(device):
    first = Training(device)
    second = Training(device, scaler=first.scaler)
    first.backward()
    second.backward(math.nan)
    for training in (first, second):
        first.scaler.step(training.optimizer)
    first.scaler.update()
    assert first.scaler.outcome(first.optimizer).stepped
    assert not first.scaler.outcome(second.optimizer).stepped


@each_kind
def test_a_scheduler_is_held_on_a_skip_and_nobody_warns(kind, device):
    training = Training(device, optimizer_kwargs=KINDS[kind])
    scheduler = torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda n: n + 1)
    for letter in "xx.x.":  # a warning would be an error here
        training.steps(letter)
        training.scaler.step_scheduler(scheduler)
    assert scheduler.last_epoch == 2


# --- who was to blame ----------------------------------------------------------------


def test_blame_names_the_parameters_and_counts_what_is_wrong():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    model[1].weight.grad[0] = torch.tensor([math.inf, math.nan, -7.0])
    (entry,) = blame(optimizer, model.named_parameters())
    assert entry.name == "1.weight"
    assert (entry.infs, entry.nans, entry.elements) == (1, 1, 3)
    assert entry.largest_finite == 7.0
    assert report([entry]).startswith("1.weight: 1 inf and 1 NaN of 3 elements")


def test_blame_without_names_counts_places_and_is_empty_when_all_is_well():
    training = Training("cpu")
    training.backward()
    assert blame(training.optimizer) == []
    assert report([]) == "every gradient is finite"
    training.backward(math.inf)
    assert training.scaler.blame(training.optimizer)[0].name == "group 0, parameter 0"


def test_after_some_skips_in_a_row_the_blame_is_told_once():
    training = Training("cpu", blame_after=2)
    training.steps("x.x")
    with pytest.warns(RuntimeWarning, match="2 steps in a row.*\n.*parameter 0: 1 inf"):
        training.steps("x")
    training.steps("xxx")  # a further warning would be an error


def test_overflow_trace_names_the_innermost_module_and_nothing_if_all_is_finite():
    class Times(torch.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return {"y": x * self.factor}["y"]

    model = torch.nn.Sequential(Times(2.0), torch.nn.Sequential(Times(1e6), Times(1.0)))
    x = torch.ones(2, dtype=torch.float16)
    with overflow_trace(model) as trace:
        model(x)
    assert trace.first == "1.0"
    assert trace.overflowed == ["1.0", "1.1", "1", "(the model)"]
    model[1][0].factor = 1.0
    with overflow_trace(model) as trace:
        model(x)
    assert trace.first is None
    assert not any(module._forward_hooks for module in model.modules())


# --- when backing off cannot help ----------------------------------------------------


def test_a_scale_is_held_at_its_floor_and_grows_from_there(device):
    training = Training(device, min_scale=256.0, growth_interval=1)
    training.steps("xxxx")
    assert training.scaler.get_scale() == 256.0
    training.steps(".")
    assert training.scaler.get_scale() == 512.0


def test_a_scale_does_not_grow_beyond_its_ceiling(device):
    training = Training(device, max_scale=2048.0, growth_interval=1)
    training.steps("....")
    assert training.scaler.get_scale() == 2048.0


def test_two_hundred_overflows_do_not_end_the_training(device):
    training = Training(device)
    training.steps("x" * 200)
    assert training.scaler.get_scale() == 2.0**-126
    training.steps("...")
    assert training.steps_taken == 3


def test_the_policy_warn_warns_once_and_goes_on(device):
    training = Training(device, min_scale=512.0, at_floor="warn")
    training.steps("x")  # arrives at the floor: no word yet
    with pytest.warns(RuntimeWarning, match="floor of 512.*\n.*parameter 0: 1 inf"):
        training.steps("x")
    training.steps("x.")
    assert training.scaler.get_scale() == 512.0


def test_the_policy_below_warns_once_and_goes_below(device):
    training = Training(device, min_scale=1024.0, at_floor="below")
    with pytest.warns(RuntimeWarning, match="floor"):
        training.steps("x")
    training.steps("x")
    assert training.scaler.get_scale() == 256.0


def test_the_policy_raise_raises_at_each_overflow_at_the_floor(device):
    training = Training(device, min_scale=1024.0, at_floor="raise")
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="parameter 0: 1 inf"):
            training.steps("x")
    training.steps(".")  # the iteration was ended all the same
    assert training.steps_taken == 1


def test_a_floor_policy_must_be_one_of_the_four():
    with pytest.raises(ScalerSettingError, match="hold, warn, raise, below"):
        Training("cpu", at_floor="ignore")


# --- NaN that scaling did not make ---------------------------------------------------


@each_kind
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_before_scaling_does_not_sink_the_scale(
    kind, value, device
):
    training = Training(device, optimizer_kwargs=KINDS[kind])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(40):
            training.optimizer.zero_grad()
            training.scaler.scale(training.loss() * value).backward()
            training.scaler.step(training.optimizer)
            training.scaler.update()
    assert training.steps_taken == 0
    assert training.scaler.get_scale() == 1024.0
    outcome = training.scaler.outcome(training.optimizer)
    assert outcome == Outcome(False, NOT_THE_SCALE, 0, 40, 40)
    if device == "cpu":  # elsewhere a fused step tells only who asks for the outcome
        assert ["before it was multiplied" in str(w.message) for w in told] == [True]


def test_gradients_never_zeroed_are_recognised_and_do_not_sink_the_scale(device):
    training = Training(device)
    training.step(math.inf)
    for _ in range(3):
        training.scaler.scale(training.loss()).backward()
        with pytest.warns(RuntimeWarning, match="zero_grad"):
            training.scaler.step(training.optimizer)
        training.scaler.update()
    assert training.scaler.get_scale() == 512.0
    training.step()
    assert training.steps_taken == 1


def test_a_loop_of_two_optimizers_that_zeroes_each_before_its_own_backward_is_right():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    first, second = (torch.optim.SGD([weight], lr=0.1) for weight in weights)
    scaler = DynamicLossScaler("cpu", init_scale=1024.0)
    for iteration in range(3):
        for weight, optimizer in zip(weights, (first, second), strict=True):
            optimizer.zero_grad()
            scaler.scale(weight.sum()).backward()
            if iteration == 0 and optimizer is second:
                weight.grad[0] = math.inf
            scaler.step(optimizer)  # a warning would be an error here
        scaler.update()
    assert scaler.get_scale() == 512.0
    assert scaler.outcome(second).taken == 2


def test_a_penalty_made_nan_by_the_scale_does_lower_the_scale(device):
    """Its NaN is in the loss before scaling, and yet the scale is the cause."""
    training = Training(device, init_scale=2.0**127)
    training.optimizer.zero_grad()
    loss = (4.0 * training.weight.square()).sum()  # 8 * 2**127 is inf
    scaled = training.scaler.scale(loss)
    (grad,) = torch.autograd.grad(scaled, training.weight, create_graph=True)
    penalty = (grad / training.scaler.get_scale()).square().sum()
    training.scaler.scale(penalty).backward()
    training.scaler.step(training.optimizer)
    training.scaler.update()
    assert training.scaler.get_scale() == 2.0**126

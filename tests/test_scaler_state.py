"""Saving, loading, pickling: a scaler goes on as if nothing had happened."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import strategies
from minamp.scaling.scaler import DynamicLossScaler
from minamp.scaling.tolerance import InARow, Share
from training import Training

TORCH_ENTRIES = {
    "scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "_growth_tracker",
}
HISTORIES = st.text(".x", max_size=8)


def through_pickle(scaler):
    return pickle.loads(pickle.dumps(scaler))


def through_state_dict(scaler):
    other = DynamicLossScaler("cpu", init_scale=3.0, tolerance=scaler._tolerance)
    buffer = io.BytesIO()
    torch.save(scaler.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    return other


def through_torch(scaler):
    """Into torch.amp.GradScaler and back."""
    theirs = torch.amp.GradScaler("cpu")
    theirs.load_state_dict(scaler.state_dict())
    other = DynamicLossScaler("cpu")
    other.load_state_dict(theirs.state_dict())
    return other


COPIES = [through_pickle, copy.deepcopy, through_state_dict, through_torch]


@pytest.mark.parametrize("make_copy", COPIES)
@given(strategies.scaler_settings(), HISTORIES, HISTORIES)
def test_a_copied_scaler_goes_on_as_the_original_does(
    make_copy, settings, before, after
):
    training = Training(**vars(settings))
    training.steps(before)
    resumed = Training(scaler=make_copy(training.scaler))
    training.steps(after)
    resumed.steps(after)
    assert resumed.scaler.state_dict() == training.scaler.state_dict()


@pytest.mark.parametrize("make_copy", COPIES[:3])
@pytest.mark.parametrize("tolerance", [InARow(2), Share(0.4)])
def test_a_tolerance_goes_on_counting(make_copy, tolerance):
    training = Training(tolerance=tolerance)
    training.steps("..x")
    resumed = Training(scaler=make_copy(training.scaler))
    resumed.steps("x")
    assert resumed.scaler.get_scale() == 512.0


@pytest.mark.parametrize("make_copy", COPIES)
def test_a_copy_shares_nothing_with_the_original(make_copy):
    training = Training()
    training.steps(".")
    Training(scaler=make_copy(training.scaler)).steps("x")
    assert training.scaler.get_scale() == 1024.0


def test_loading_reaches_a_scaler_in_use():
    training = Training()
    training.steps("..x")
    state = DynamicLossScaler("cpu", init_scale=8.0, growth_interval=5).state_dict()
    training.scaler.load_state_dict({**state, "_growth_tracker": 4})
    assert training.scaler._scale.item() == 8.0
    training.steps(".")
    assert training.scaler.get_scale() == 16.0


def test_the_state_has_exactly_torchs_entries():
    assert set(DynamicLossScaler("cpu").state_dict()) == TORCH_ENTRIES
    assert set(torch.amp.GradScaler("cpu").state_dict()) == TORCH_ENTRIES


def test_after_a_resume_unscale_may_come_before_the_first_scale():
    training = Training()
    training.steps(".")
    training.backward()
    resumed = DynamicLossScaler("cpu")
    resumed.load_state_dict(training.scaler.state_dict())
    resumed.unscale_(training.optimizer)
    assert training.weight.grad.tolist() == [1.0, 1.0]


def test_a_copy_of_an_unused_scaler_still_wants_a_scaled_loss_first():
    training = Training(scaler=copy.deepcopy(DynamicLossScaler("cpu")))
    training.loss().backward()
    with pytest.raises(AssertionError, match="_scale is None"):
        training.scaler.step(training.optimizer)


def test_a_scaler_in_the_middle_of_an_iteration_is_not_pickled():
    training = Training()
    training.backward()
    training.scaler.unscale_(training.optimizer)
    with pytest.raises(AssertionError, match="may only be pickled at the beginning"):
        pickle.dumps(training.scaler)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda state: {}, RuntimeError, "empty.*disabled"),
        (lambda state: {"model": 1}, KeyError, "not the state of a loss scaler"),
        (lambda state: {**state, "scale": 0.0}, ValueError, "scale is 0.0"),
        (lambda state: {**state, "scale": math.nan}, ValueError, "scale is nan"),
        (lambda state: {**state, "growth_interval": 0}, ValueError, "growth_interval"),
    ],
)
def test_a_state_that_is_damaged_or_foreign_is_refused_and_changes_nothing(
    damage, error, message
):
    training = Training()
    training.steps("x.")
    before = training.scaler.state_dict()
    with pytest.raises(error, match=message):
        training.scaler.load_state_dict(damage(before))
    assert training.scaler.state_dict() == before
    assert training.scaler._scale.item() == before["scale"]

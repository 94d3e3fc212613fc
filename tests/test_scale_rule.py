"""The rule of the loss scale: pure, and the same on tensors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import strategies
from minamp.scaling.device_rule import update_scale_
from minamp.scaling.scale_rule import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    ScaleState,
    next_state,
)
from minamp.scaling.settings import ScalerSettingError, check_new_scaler, check_state
from minamp.scaling.tolerance import InARow, Share, new_counters

HISTORIES = st.lists(st.booleans(), max_size=60)
# An overflow, and whether the scale is blamed for it.
EVENTS = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60)


def states() -> st.SearchStrategy[ScaleState]:
    """Any state a scaler may be in, extreme scales and bounds among them."""
    scales = st.floats(SMALLEST_SCALE, LARGEST_SCALE, width=32)
    return st.builds(
        ScaleState,
        scale=scales | st.sampled_from([2.0**16, 1.0, SMALLEST_SCALE, LARGEST_SCALE]),
        growth_tracker=st.integers(0, 6),
        growth_factor=st.floats(1.0, 1e3),
        backoff_factor=st.floats(1e-3, 1.0),
        growth_interval=st.integers(1, 6),
        min_scale=st.sampled_from([SMALLEST_SCALE, 2.0**-24, 1.0]),
        max_scale=st.sampled_from([LARGEST_SCALE, 2.0**24, 2.0**20]),
    )


def fold(state: ScaleState, overflows: list[bool]) -> ScaleState:
    for overflow in overflows:
        state = next_state(state, overflow)
    return state


@given(strategies.scaler_settings(), HISTORIES)
def test_the_rule_agrees_with_the_ten_line_fold(settings, overflows):
    state = fold(
        ScaleState(
            settings.init_scale,
            0,
            settings.growth_factor,
            settings.backoff_factor,
            settings.growth_interval,
        ),
        overflows,
    )
    expected = oracles.fold_scale(settings, overflows)
    assert (state.scale, state.growth_tracker) == expected


@given(strategies.scaler_settings(), HISTORIES)
def test_the_rule_agrees_with_torchs_kernel(settings, overflows):
    scale = torch.tensor(settings.init_scale)
    tracker = torch.tensor(0, dtype=torch.int32)
    state = ScaleState(
        settings.init_scale,
        0,
        settings.growth_factor,
        settings.backoff_factor,
        settings.growth_interval,
    )
    for overflow in overflows:
        torch._amp_update_scale_(
            scale,
            tracker,
            torch.tensor(float(overflow)),
            settings.growth_factor,
            settings.backoff_factor,
            settings.growth_interval,
        )
        state = next_state(state, overflow)
        assert (state.scale, state.growth_tracker) == (scale.item(), tracker.item())


@given(states(), EVENTS)
def test_on_tensors_the_rule_is_the_same_to_the_bit(state, events):
    scale = torch.tensor(state.scale, dtype=torch.float32)
    tracker = torch.tensor(state.growth_tracker, dtype=torch.int32)
    settings = state
    for found_inf, back_off in events:
        state = next_state(state, found_inf, back_off)
        flags = torch.tensor(found_inf), torch.tensor(back_off)
        update_scale_(scale, tracker, *flags, settings)
        assert (state.scale, state.growth_tracker) == (scale.item(), tracker.item())


@given(states(), HISTORIES)
def test_scale_and_reciprocal_stay_positive_finite_float32(state, overflows):
    scale = torch.tensor(fold(state, overflows).scale, dtype=torch.float32)
    for value in (scale, 1 / scale):
        assert 0 < value < math.inf
    assert scale >= torch.finfo(torch.float32).tiny


@given(states(), HISTORIES)
def test_scale_stays_between_its_bounds_once_it_is_there(state, overflows):
    inside = min(max(state.scale, state.min_scale), state.max_scale)
    end = fold(replace(state, scale=inside), overflows)
    assert state.min_scale <= end.scale <= state.max_scale


@given(states())
def test_a_scale_set_below_the_floor_is_not_raised_by_an_overflow(state):
    below = replace(state, scale=state.min_scale / 4 or state.min_scale)
    assert next_state(below, True).scale <= below.scale


@given(states(), HISTORIES)
def test_growth_takes_a_whole_interval_of_clean_steps(state, overflows):
    state = replace(state, growth_tracker=0)
    for overflow in overflows:
        after = next_state(state, overflow)
        if after.scale > state.scale:
            assert not overflow
            assert state.growth_tracker + 1 == state.growth_interval
        state = after


@given(states())
def test_an_overflow_that_is_not_blamed_on_the_scale_keeps_it(state):
    after = next_state(state, True, back_off=False)
    assert after == replace(state, growth_tracker=0)


def test_an_interval_made_shorter_than_the_count_grows_at_once():
    state = ScaleState(scale=8.0, growth_tracker=50, growth_interval=10)
    assert next_state(state, False).scale == 16.0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("growth_factor", 0.5),
        ("growth_factor", math.nan),
        ("growth_factor", math.inf),
        ("backoff_factor", 0.0),
        ("backoff_factor", -0.5),
        ("backoff_factor", 1.5),
        ("backoff_factor", math.nan),
        ("growth_interval", 0),
        ("scale", 0.0),
        ("scale", -2.0),
        ("scale", math.inf),
        ("scale", math.nan),
        ("scale", 1e-40),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(setting, value):
    with pytest.raises(ScalerSettingError, match=setting):
        check_state(replace(ScaleState(), **{setting: value}))


@pytest.mark.parametrize("setting", ["growth_factor", "backoff_factor"])
def test_a_new_scaler_must_move_its_scale_but_a_loaded_one_may_be_frozen(setting):
    frozen = replace(ScaleState(), **{setting: 1.0})
    check_state(frozen)
    with pytest.raises(AssertionError, match="factor must be"):
        check_new_scaler(frozen)


def decisions(tolerance, overflows: list[bool]) -> list[bool]:
    """At which steps of a history the scale is lowered."""
    counters = new_counters(torch.device("cpu"))
    flags = [torch.tensor(overflow) for overflow in overflows]
    return [bool(flag & tolerance.backs_off(counters, flag)) for flag in flags]


@given(HISTORIES, st.integers(1, 4))
def test_in_a_row_backs_off_from_the_nth_overflow_of_a_row_on(overflows, n):
    row, expected = 0, []
    for overflow in overflows:
        row = row + 1 if overflow else 0
        expected.append(row >= n)
    assert decisions(InARow(n), overflows) == expected


def test_in_a_row_forgets_overflows_that_are_far_apart():
    far_apart = [True] + [False] * 5 + [True]
    assert not any(decisions(InARow(2), far_apart))


@given(HISTORIES, st.floats(0.0, 1.0))
def test_share_backs_off_when_overflows_reach_the_bound(overflows, bound):
    steps = overflowed = 0
    expected = []
    for overflow in overflows:
        steps, overflowed = steps + 1, overflowed + overflow
        expected.append(overflow and overflowed >= bound * steps)
        if expected[-1]:
            steps = overflowed = 0
    assert decisions(Share(bound), overflows) == expected


@pytest.mark.parametrize("wrong", [lambda: InARow(0), lambda: Share(1.5)])
def test_a_tolerance_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ScalerSettingError, match="Write|is number 1|between 0 and 1"):
        wrong()

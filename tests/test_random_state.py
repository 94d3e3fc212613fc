"""Random generators: saved and restored, all of them, through a file as well."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
import torch

from minamp.tensors.random_state import RandomState


def _draw() -> list[float]:
    rng = np.random  # the global generator, which data loaders use
    numbers = [torch.rand(()).item(), random.random(), rng.rand(), rng.randn()]
    return [*numbers, random.gauss(0, 1), torch.randn(()).item()]


@pytest.mark.parametrize("drawn_before", range(4))
def test_what_is_drawn_next_is_drawn_again_after_a_restore(drawn_before):
    for _ in range(drawn_before):
        _draw()  # an odd number of normal draws leaves one in store
    generators = RandomState()
    before = generators.state_dict()
    first = _draw()
    generators.load_state_dict(before)
    assert _draw() == first


def test_the_state_survives_a_checkpoint_that_may_hold_no_code():
    generators, file = RandomState(), io.BytesIO()
    torch.save(generators.state_dict(), file)
    first = _draw()
    file.seek(0)
    generators.load_state_dict(torch.load(file, weights_only=True))
    assert _draw() == first

"""Laws of cutting tensors in pieces: every element once, and small enough."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minamp.weights import pieces as module
from minamp.weights.pieces import pieces

PIECE = 12


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", PIECE)
        yield


@given(shape=st.lists(st.integers(0, 7), max_size=3))
def test_pieces_cover_every_element_once_and_alike(shape):
    first = torch.arange(torch.Size(shape).numel()).view(shape)
    second = first.mT.clone().mT if first.dim() > 1 else first.clone()
    for one, other in pieces(first, second):
        assert torch.equal(one, other)
        one.add_(1)
        other.add_(1)
    assert torch.equal(first.flatten(), torch.arange(first.numel()) + 1)
    assert torch.equal(first, second)


@given(rows=st.integers(1, 40), columns=st.integers(1, 30))
def test_no_piece_is_larger_than_a_piece_or_a_row(rows, columns):
    sizes = [piece.numel() for (piece,) in pieces(torch.zeros(rows, columns))]
    assert max(sizes) <= max(PIECE, columns)
    assert len(sizes) <= 2 * rows * columns / PIECE + 1 or columns > PIECE // 2

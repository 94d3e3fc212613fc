"""How the suite takes an implementation in, and what it says if one lacks parts."""

from __future__ import annotations

import pytest
import torch

import minamp
from implementations import NAMES, load_implementation


def test_minamp_and_torch_are_known_by_name():
    assert load_implementation("minamp").autocast is minamp.autocast
    assert load_implementation("torch").GradScaler is torch.amp.GradScaler


def test_a_file_is_loaded_by_its_path_and_may_import_its_neighbours(tmp_path):
    (tmp_path / "neighbour_of_mine.py").write_text("from torch.amp import *")
    mine = tmp_path / "my_amp.py"
    mine.write_text("from neighbour_of_mine import *\nclass GradScaler: ...")
    loaded = load_implementation(str(mine))
    assert loaded.autocast is torch.amp.autocast
    assert loaded.GradScaler.__module__ == "my_amp"


@pytest.mark.parametrize("missing", NAMES)
def test_an_implementation_that_lacks_a_part_is_told_where_to_get_it(tmp_path, missing):
    mine = tmp_path / f"lacks_{missing}.py"
    names = ", ".join(name for name in NAMES if name != missing)
    mine.write_text(f"from torch.amp import {names}")
    with pytest.raises(LookupError, match=f"no {missing}.*import from torch.amp"):
        load_implementation(str(mine))


def test_a_path_without_a_file_is_named(tmp_path):
    with pytest.raises(LookupError, match="no Python file"):
        load_implementation(str(tmp_path / "nowhere.py"))

"""The op lists: PyTorch's own by default, edited as values, told apart by decisions."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minamp.autocasting.region import autocast
from minamp.policy.op_lists import (
    Category,
    OpLists,
    Row,
    has_overload,
    op_lists,
    overload,
    table,
    with_fingerprint,
)
from minamp.policy.safe_lists import safe_lists
from minamp.policy.torch_lists import (
    AUTOCAST_KEYS,
    CPU,
    CUDA,
    MPS,
    registered_ops,
    torch_lists,
)
from op_calls import dtype_of_mm

FACTS = Path(__file__).parent / "facts" / "autocast_ops_2_13.json"
DEVICE_TYPES = tuple(torch_lists().tables)
TABLES = {"cpu": CPU, "cuda": CUDA}

by_device_type = pytest.mark.parametrize("device_type", DEVICE_TYPES)
by_lists = pytest.mark.parametrize(
    "lists", [torch_lists(), safe_lists()], ids=["torch", "safe"]
)


# --- the default ---------------------------------------------------------------------


@by_device_type
def test_the_default_lists_hold_exactly_what_the_running_torch_registered(device_type):
    listed = set(torch_lists().for_device(device_type))
    registered = registered_ops(device_type)
    moved = {
        f"new in torch {torch.__version__}, without a row": sorted(registered - listed),
        "listed, but not registered": sorted(listed - registered),
    }
    assert not any(moved.values()), moved


def test_every_device_type_that_torch_autocasts_has_a_table():
    """All keys of the dispatcher called Autocast, but for devices in other packages."""
    elsewhere = {"HPU", "IPU", "XLA", "PrivateUse1", "MAIA", "Vulkan", "Lazy", "Meta"}
    known = {name.removeprefix("Autocast") for name in AUTOCAST_KEYS.values()}
    keys = {
        name.removeprefix("Autocast")
        for name in torch._C.DispatchKey.__members__
        if name.startswith("Autocast") and name != "AutocastFunctionality"
    }
    assert keys - known - elsewhere == set()
    registered = {d for d in AUTOCAST_KEYS if registered_ops(d)}
    assert registered == set(DEVICE_TYPES) >= {"cpu", "cuda", "mps", "xpu"}


# What other versions list beyond 2.13: named tensors (until 2.11), what came with 2.14,
# and what only a build with cuDNN has.
BEYOND_2_13 = {
    "cpu": {"index_copy.dimname", "prod.dim_Dimname", "linalg_matrix_sqrth"},
    "cuda": {
        "_cudnn_rnn",
        "cumprod.dimname",
        "cumsum.dimname",
        "linalg_matrix_sqrth",
        "log_softmax.Dimname",
        "norm.names_ScalarOpt_dim",
        "prod.dim_Dimname",
        "softmax.Dimname",
        "sum.dim_DimnameList",
    },
}


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_every_op_has_the_category_it_has_in_torch_2_13(device_type):
    facts = json.loads(FACTS.read_text())[device_type]
    expected = {op: category for category, ops in facts.items() for op in ops}
    listed = {row.op: row.category.value for row in TABLES[device_type]}
    assert set(listed) - set(expected) == BEYOND_2_13[device_type]
    assert {op: listed[op] for op in expected} == expected


@pytest.mark.parametrize("rows", [CPU, CUDA, MPS], ids=["cpu", "cuda", "mps"])
def test_no_op_of_torchs_tables_stands_on_two_lists(rows):
    table(rows)
    assert len({row.op for row in rows}) == len(rows)


@by_lists
def test_every_row_has_a_reason_of_its_family(lists):
    for device_type in DEVICE_TYPES:
        for op, row in lists.for_device(device_type).items():
            assert row.op == op
            assert isinstance(row.category, Category)
            assert len(row.why.split()) >= 3, row


@by_lists
@by_device_type
def test_every_listed_op_is_one_the_running_torch_has(lists, device_type):
    for op in lists.for_device(device_type):
        assert overload(op).name() == f"aten::{op}"


def test_the_same_lists_are_given_each_time():
    assert torch_lists() is torch_lists() and safe_lists() is safe_lists()


# --- editing -------------------------------------------------------------------------


def listed(lists: OpLists, op: str, device_type: str = "cpu") -> Category | None:
    row = lists.for_device(device_type).get(op)
    return row and row.category


def test_editing_gives_new_lists_and_leaves_the_old_ones_alone():
    before = dict(torch_lists().for_device("cpu"))
    added = torch_lists().add("cpu", "relu", Category.FP32, why="a test")
    moved = added.move("cpu", "mm", Category.FP32, why="a test")
    removed = moved.remove("cpu", "linear")
    assert listed(added, "relu") is Category.FP32 and listed(added, "mm") is not (
        Category.FP32
    )
    assert listed(moved, "mm") is Category.FP32
    assert listed(removed, "linear") is None and listed(removed, "relu")
    assert removed.for_device("cpu")["mm"].why == "a test"
    assert dict(torch_lists().for_device("cpu")) == before
    assert removed.for_device("cuda") == torch_lists().for_device("cuda")
    assert "edited" in removed.name and removed.name.count("edited") == 1


def test_an_edit_decides_what_runs():
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    lists = (
        torch_lists()
        .move("cpu", "mm", Category.FP32, why="a test")
        .add("cpu", "exp", Category.FP32, why="a test")
        .remove("cpu", "bmm")
    )
    with autocast("cpu", dtype=torch.bfloat16, op_lists=lists):
        assert dtype_of_mm("cpu") is torch.float32
        assert torch.exp(x).dtype is torch.float32
        assert torch.bmm(x.float()[None], x.float()[None]).dtype is torch.float32
        with autocast("cpu", dtype=torch.bfloat16, op_lists=torch_lists()):
            assert dtype_of_mm("cpu") is torch.bfloat16
            assert torch.exp(x).dtype is torch.bfloat16
        assert torch.exp(x).dtype is torch.float32


def test_a_removed_composite_op_still_runs_the_listed_ops_within():
    lists = torch_lists().remove("cpu", "matmul")
    x = torch.ones(2, 2)
    with autocast("cpu", dtype=torch.bfloat16, op_lists=lists):
        assert torch.matmul(x, x).dtype is torch.bfloat16  # by the mm within


def test_a_category_may_be_given_by_its_name():
    lists = torch_lists().add("cpu", "relu", "fp32", why="a test")
    assert listed(lists, "relu") is Category.FP32


def test_an_unknown_category_is_refused_with_the_name_that_was_given():
    with pytest.raises(ValueError, match="'float32' is not a valid Category"):
        torch_lists().add("cpu", "relu", "float32", why="a test")


@pytest.mark.parametrize("op", ["no_such_op", "", "aten::mm", "torch.mm", "MM"])
def test_an_unknown_op_is_refused_with_an_example_of_a_name(op):
    for edit in (torch_lists().add, torch_lists().move):
        with pytest.raises(ValueError, match=r"no op is called.*'softmax\.int'"):
            edit("cpu", op, Category.FP32, why="a test")
    with pytest.raises(ValueError, match="no op is called"):
        torch_lists().remove("cpu", op)


def test_an_unknown_overload_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"'softmax' in.*softmax\.int"):
        torch_lists().add("cpu", "softmax", Category.FP32, why="a test")
    with pytest.raises(ValueError, match=r"'mm\.int' in.*one of mm\b"):
        torch_lists().add("cpu", "mm.int", Category.FP32, why="a test")


@pytest.mark.parametrize("op", ["name", "__class__", "__name__", "_dir", "mm.default"])
def test_a_word_that_python_knows_is_no_op(op):
    with pytest.raises(ValueError, match="is called"):
        overload(op)
    assert not has_overload(op)


def test_an_op_on_two_lists_is_refused_with_both_and_the_cure():
    message = r"'mm' stands on two lists, lower_precision_fp and fp32.*move\(\)"
    with pytest.raises(ValueError, match=message):
        torch_lists().add("cpu", "mm", Category.FP32, why="a test")
    rows = [Row("mm", Category.FP32, "a"), Row("mm", Category.PROMOTE, "b")]
    with pytest.raises(ValueError, match="two lists, fp32 and promote"):
        op_lists("mine", {"cpu": rows})


def test_what_is_not_listed_cannot_be_moved_or_removed():
    for edit in (
        lambda: torch_lists().remove("cpu", "relu"),
        lambda: torch_lists().move("cpu", "relu", Category.FP32, why="a test"),
    ):
        with pytest.raises(ValueError, match=r"'relu' is on no list.*add\(\) it"):
            edit()


def test_a_device_type_without_a_table_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"no table for device type 'meta'.*cpu.*add"):
        torch_lists().for_device("meta")
    with pytest.raises(ValueError, match="'meta'"):
        torch_lists().remove("meta", "mm")


def test_a_table_for_a_new_device_type_can_be_made():
    lists = torch_lists().add("meta", "mm", Category.LOWER_PRECISION_FP, why="a test")
    with autocast("meta", dtype=torch.float16, op_lists=lists):
        assert dtype_of_mm("meta") is torch.float16
        assert dtype_of_mm("cpu") is torch.float32


def test_lists_cannot_be_changed_in_place():
    lists = torch_lists()
    with pytest.raises(TypeError):
        lists.for_device("cpu")["mm"] = Row("mm", Category.FP32, "no")
    with pytest.raises(TypeError):
        lists.tables["cpu"] = {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        lists.name = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        lists.for_device("cpu")["mm"].why = "other"


# --- equality ------------------------------------------------------------------------

OPS = ("mm", "relu", "softmax.int", "add.Tensor")
rows = st.dictionaries(
    st.sampled_from(OPS), st.tuples(st.sampled_from(Category), st.sampled_from("ab"))
)


@given(rows, rows)
def test_lists_are_equal_when_every_decision_is(left, right):
    def made(name: str, decisions: dict) -> OpLists:
        listed = [Row(op, c, why) for op, (c, why) in decisions.items()]
        return op_lists(name, {"cpu": listed})

    same = {op: c for op, (c, _) in left.items()} == {
        op: c for op, (c, _) in right.items()
    }
    one, other = made("one", left), made("other", right)
    assert (one == other) == same == (one.fingerprint == other.fingerprint)
    assert not same or hash(one) == hash(other)


def test_the_device_type_is_part_of_a_decision():
    row = Row("mm", Category.FP32, "a test")
    assert op_lists("a", {"cpu": [row]}) != op_lists("a", {"cuda": [row]})
    assert op_lists("a", {"cpu": [row]}) != "a"


def test_an_edit_taken_back_gives_equal_lists():
    there = torch_lists().add("cpu", "relu", Category.FP32, why="a test")
    assert there != torch_lists() and there.remove("cpu", "relu") == torch_lists()


@by_lists
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_are_equal_and_keep_reasons(lists, copied):
    edited = lists.add("cpu", "relu", Category.FP32, why="my reason")
    twin = copied(edited)
    assert twin == edited and twin.name == edited.name
    assert twin.for_device("cpu")["relu"].why == "my reason"


def test_the_fingerprint_is_the_same_in_another_process():
    code = (
        "from minamp.policy.safe_lists import safe_lists\n"
        "from minamp.policy.torch_lists import torch_lists\n"
        "edited = torch_lists().remove('cpu', 'mm')\n"
        "print(torch_lists().fingerprint, safe_lists().fingerprint, edited.fingerprint)"
    )
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    edited = torch_lists().remove("cpu", "mm")
    here = [lists.fingerprint for lists in (torch_lists(), safe_lists(), edited)]
    assert there.stdout.split() == here and len(set(here)) == 3


def test_lists_are_found_by_fingerprint_as_long_as_any_equal_ones_live():
    first, second = (torch_lists().remove("cpu", "addmm") for _ in range(2))
    for dying in (first, second):
        assert with_fingerprint(dying.fingerprint) == dying
    del first, dying
    gc.collect()
    assert with_fingerprint(second.fingerprint) == second


@pytest.mark.parametrize("category", ["fp32_set_opt_dtype", "fp32_append_dtype"])
def test_a_category_that_passes_a_dtype_wants_an_op_that_takes_one(category):
    with pytest.raises(ValueError, match="'tanh' has none: put it under fp32"):
        torch_lists().add("cpu", "tanh", Category(category), why="to see it refused")

"""Op lists: which op runs in which precision, and why.

An op list is a *value*.  ``OpLists`` holds one table a device type, and a table is
nothing but rows ``op -> (category, reason)``.  Editing returns a new value, so the
lists of PyTorch, the ``safe`` ones and yours can stand side by side::

    mine = torch_lists().move("cpu", "softmax.int", Category.FP32_SET_OPT_DTYPE,
                              why="my logits reach 1e4")
    with autocast("cpu", op_lists=mine): ...

An op is named as PyTorch's dispatcher names it, without the ``aten::``: ``"mm"`` is
the overload without a name, ``"softmax.int"`` the overload called ``int``.  What the
categories *do* is in ``policies.py``; PyTorch's own rows are in ``torch_lists.py``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import weakref
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch


class Category(str, enum.Enum):
    """What autocast does to the arguments of an op; the names are PyTorch's."""

    LOWER_PRECISION_FP = "lower_precision_fp"
    FP32 = "fp32"
    FP32_SET_OPT_DTYPE = "fp32_set_opt_dtype"
    FP32_APPEND_DTYPE = "fp32_append_dtype"
    PROMOTE = "promote"
    BANNED = "banned"
    # The next three are minamp's own; only the `safe` lists use them.
    PROMOTE_ANY = "promote_any"
    CAST_TO_SELF = "cast_to_self"
    FP32_IF_SCALAR_LOST = "fp32_if_scalar_lost"


@dataclasses.dataclass(frozen=True)
class Row:
    """One op on a list: its category, and the reason in a clause."""

    op: str
    category: Category
    why: str


Table = Mapping[str, Row]


def family(category: Category, why: str, ops: str) -> tuple[Row, ...]:
    """Rows for the ops named in ``ops``, which share one reason."""
    return tuple(Row(op, category, why) for op in ops.split())


def table(rows: Iterable[Row]) -> Table:
    """A read-only table of ``rows``.  Raises ValueError for an op on two lists."""
    found: dict[str, Row] = {}
    for row in rows:
        if row.op in found:
            raise ValueError(
                f"{row.op!r} stands on two lists, {found[row.op].category.value} and "
                f"{row.category.value}: an op can run in one precision only; leave "
                "out one of the two rows, or use move()"
            )
        found[row.op] = row
    return MappingProxyType(found)


@functools.cache
def overload(op: str) -> torch._ops.OpOverload:
    """The dispatcher's overload called ``op``.

    Raises ValueError for an op that the running PyTorch does not have, with the
    overloads it does have under that name.
    """
    overloads = overloads_beside(op)
    if not overloads:
        raise ValueError(
            f"no op is called {op!r} in torch {torch.__version__}: use the "
            "dispatcher's name, for instance 'mm', 'conv2d' or 'softmax.int'"
        )
    if op not in overloads:
        raise ValueError(
            f"no overload is called {op!r} in torch {torch.__version__}: write one "
            f"of {', '.join(sorted(overloads))}"
        )
    return overloads[op]


def has_overload(op: str) -> bool:
    """Whether the running PyTorch has an overload called ``op``."""
    return op in overloads_beside(op)


def overloads_beside(op: str) -> dict[str, torch._ops.OpOverload]:
    """All overloads that share the name of ``op``; none for an unknown name."""
    packet = getattr(torch.ops.aten, op.partition(".")[0], None)
    # Python finds more there than ops, `__class__` for one.
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return {}
    found = (getattr(packet, variant) for variant in packet.overloads())
    return {overload.name().removeprefix("aten::"): overload for overload in found}


# The overloads without a dtype argument (category fp32_append_dtype), and their twins.
APPENDS_DTYPE = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
    "norm.names_ScalarOpt_dim": "norm.names_ScalarOpt_dim_dtype",
}


def check_dtype_argument(op: str, category: Category) -> None:
    """Raises ValueError if ``category`` passes a dtype that ``op`` cannot take."""
    arguments = {argument.name for argument in overload(op)._schema.arguments}
    lacks = {
        Category.FP32_SET_OPT_DTYPE: "dtype" not in arguments,
        Category.FP32_APPEND_DTYPE: op not in APPENDS_DTYPE,
    }
    if lacks.get(category, False):
        raise ValueError(
            f"{category.value} runs an op in float32 through its dtype argument, and "
            f"{op!r} has none: put it under {Category.FP32.value}, which casts its "
            "inputs"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class OpLists:
    """One table of ops for each device type; immutable, so it can be shared.

    Two values with the same rows are equal, whatever their names and reasons.
    """

    name: str
    tables: Mapping[str, Table]
    #: Sixteen hex digits that tell lists with different decisions apart.  The same in
    #: every process, so that they may enter the key of a cache on disk.
    fingerprint: str = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = sorted(
            (device_type, row.op, row.category.value)
            for device_type, rows in self.tables.items()
            for row in rows.values()
        )
        digits = hashlib.sha256(repr(rows).encode()).hexdigest()[:16]
        object.__setattr__(self, "fingerprint", digits)
        _alive[id(self)] = self

    def for_device(self, device_type: str) -> Table:
        """The rows for ``device_type``.  Raises ValueError if there are none."""
        if device_type not in self.tables:
            raise ValueError(
                f"the op lists {self.name!r} have no table for device type "
                f"{device_type!r}, only for {', '.join(sorted(self.tables))}: make one "
                "with add(device_type, op, category, why)"
            )
        return self.tables[device_type]

    def add(self, device_type: str, op: str, category: Category, why: str) -> OpLists:
        """These lists with ``op`` on one more list.

        Raises ValueError for an unknown op, for one that is listed already, and for a
        category that needs a dtype argument which the op does not have.
        """
        check_dtype_argument(op, Category(category))
        rows = self.tables.get(device_type, {}).values()
        return self._with(device_type, (*rows, Row(op, Category(category), why)))

    def remove(self, device_type: str, op: str) -> OpLists:
        """These lists without ``op``: it runs in the dtypes it is given.

        Raises ValueError for an op that is not listed.
        """
        rows = self.for_device(device_type)
        if op not in rows:
            overload(op)
            raise ValueError(
                f"{op!r} is on no list of {self.name!r} for {device_type!r}, so it "
                "cannot be removed or moved: add() it"
            )
        return self._with(device_type, (r for r in rows.values() if r.op != op))

    def move(self, device_type: str, op: str, category: Category, why: str) -> OpLists:
        """These lists with ``op`` under another category."""
        return self.remove(device_type, op).add(device_type, op, category, why)

    def _with(self, device_type: str, rows: Iterable[Row]) -> OpLists:
        tables = {**self.tables, device_type: table(rows)}
        name = self.name if self.name.endswith("(edited)") else f"{self.name} (edited)"
        return OpLists(name, MappingProxyType(tables))

    def __reduce__(self) -> tuple[Any, ...]:
        tables = {
            device_type: tuple(t.values()) for device_type, t in self.tables.items()
        }
        return op_lists, (self.name, tables)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpLists) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def op_lists(name: str, rows: Mapping[str, Iterable[Row]]) -> OpLists:
    """Op lists called ``name``, with these rows for each device type."""
    return OpLists(name, MappingProxyType({d: table(r) for d, r in rows.items()}))


# By id, since equal lists may live and die in any order.
_alive: weakref.WeakValueDictionary[int, OpLists] = weakref.WeakValueDictionary()


def with_fingerprint(fingerprint: str) -> OpLists:
    """The lists with this fingerprint, which is all that a compiled graph can hold."""
    alive = list(_alive.values())
    return next(lists for lists in alive if lists.fingerprint == fingerprint)

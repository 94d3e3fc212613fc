"""How an op is caught: autocast as a floor of PyTorch's dispatcher.

Calling an op is riding a lift down a house.  Each floor is a *dispatch key*, and a
floor may change the call before it rides on: autograd records it, the CPU floor
computes it.  Autocast is a floor above autograd, so a cast made there has a gradient.
PyTorch keeps one such floor free for new devices, ``AutocastPrivateUse1``.  minamp
moves in:

* for each listed op a *kernel* is registered on that floor;
* every other op falls through it in C++, at no cost;
* the lift stops there only in threads that are inside a region (``enter``).

A kernel rewrites the arguments by the policy of the op, then calls the op again with
the floor shut, and so the op runs as if its arguments had been cast by hand.  If the
region has no say over the call (no tensor on its device, op not on its list), the
kernel lets the lift ride on *without* shutting the floor, and calls inside a composite
op are still seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from minamp.autocasting.calls import call_for
from minamp.autocasting.floor import (
    BELOW,
    KEY,
    is_excluded,
    is_included,
    process,
    set_excluded,
    set_included,
    thread,
    weights,
)
from minamp.autocasting.fused_steps import FUSED_STEPS, step_kernel_for
from minamp.autocasting.graph_guards import (
    eager_stretches,
    install_tag,
    needs_eager,
    show,
)
from minamp.autocasting.never_compiled import never_compile
from minamp.autocasting.state import AutocastState, Rules, Setting
from minamp.policy.op_lists import has_overload, overload


def kernel_for(op: str) -> Callable[..., Any]:
    """The kernel that stands on the autocast floor for ``op``."""
    plain = overload(op)
    call = call_for(op)

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        rules_now = thread.rules
        for rules in rules_now:
            policy = rules.policies.get(op)
            if policy and (rules.concerns(args) or rules.concerns(kwargs.values())):
                break
        else:
            return _ride_on(plain, keyset & BELOW, args, kwargs)
        if len(rules_now) > 1:
            return _one_device_at_a_time(rules, policy, call, args, kwargs)
        set_excluded(KEY, True)
        try:
            args, kwargs = policy(args, kwargs, rules)
            return call(*args, **kwargs)
        finally:
            set_excluded(KEY, False)

    never_compile(kernel.__code__)
    return kernel


def _ride_on(plain: Any, keyset: Any, args: Any, kwargs: Any) -> Any:
    """The call as if there were no autocast floor, which stays open for calls within.

    A Python number in the place of a tensor (``x + 1``) came wrapped in a tensor that
    ``redispatch`` cannot make again.  Ops that take one have no listed calls within, so
    for them the floor may as well be shut.
    """
    tensors_expected = _tensor_positions(plain)
    if any(isinstance(args[i], NUMBERS) for i in tensors_expected if i < len(args)):
        set_excluded(KEY, True)
        try:
            return plain(*args, **kwargs)
        finally:
            set_excluded(KEY, False)
    return plain.redispatch(keyset, *args, **kwargs)


NUMBERS = (bool, int, float, complex)


@functools.cache
def _tensor_positions(plain: Any) -> tuple[int, ...]:
    arguments = enumerate(plain._schema.arguments)
    return tuple(i for i, a in arguments if isinstance(a.type, torch._C.TensorType))


def _one_device_at_a_time(
    rules: Rules, policy: Any, call: Any, args: Any, kwargs: Any
) -> Any:
    """Apply ``rules``, then call again with only the regions of other devices left."""
    all_rules = thread.rules
    thread.rules = tuple(other for other in all_rules if other is not rules)
    try:
        args, kwargs = policy(args, kwargs, rules)
        return call(*args, **kwargs)
    finally:
        thread.rules = all_rules


def install(ops: frozenset[str]) -> None:
    """Put kernels for ``ops`` on the floor; those that stand there already stay.

    Raises RuntimeError if somebody else lives on the floor.
    """
    if ops <= process.kernels:
        return
    with process.lock:
        if process.library is None:
            _move_in()
        assert process.library is not None
        for op in ops - process.kernels:
            process.library.impl(op, kernel_for(op), KEY.name, with_keyset=True)
            process.kernels.add(op)


def _move_in() -> None:
    tenants = torch._C._dispatch_get_registrations_for_dispatch_key(KEY.name)
    if tenants:
        raise RuntimeError(
            f"minamp's autocast needs the dispatch key {KEY.name}, but {len(tenants)} "
            f"ops have kernels of another package there ({tenants[0]}, ...): a device "
            "backend is loaded that brings an autocast of its own; use that one"
        )
    process.fallthrough = torch.library.Library("_", "IMPL")
    process.fallthrough.fallback(torch.library.fallthrough_kernel, KEY.name)
    process.library = torch.library.Library("aten", "IMPL")
    for op in filter(has_overload, FUSED_STEPS):
        process.library.impl(op, step_kernel_for(op), KEY.name, with_keyset=True)


@functools.lru_cache(maxsize=256)
def rules_for(setting: Setting, cache_enabled: bool) -> Rules:
    """The rules of ``setting``, with their kernels installed."""
    rules = Rules(setting, weights if cache_enabled else None)
    install(frozenset(rules.policies))
    return rules


@functools.lru_cache(maxsize=256)
def rules_of(state: AutocastState) -> tuple[Rules, ...]:
    """The rules of each enabled setting of ``state``."""
    return tuple(rules_for(s, state.cache_enabled) for s in state.enabled)


def current() -> AutocastState:
    """The state of autocast in this thread."""
    return thread.state


def _signature() -> str:
    return thread.state.signature


def is_visible() -> bool:
    """Whether an op called now in this thread stops at the autocast floor."""
    return is_included(KEY) and not is_excluded(KEY)


class Restore(NamedTuple):
    """What was in force before a region was entered."""

    state: AutocastState
    rules: tuple[Rules, ...]
    included: bool
    excluded: bool
    ran_eagerly: bool


def enter(state: AutocastState, in_graph: bool = False) -> Restore:
    """Make ``state`` act in this thread; returns what ``leave`` needs to undo it.

    A region that is part of a graph needs no mark to keep the graph apart from others.
    """
    rules = rules_of(state)
    install_tag(_signature)
    eager = not in_graph and needs_eager(state.signature)
    if eager:
        eager_stretches.begin()
    before = Restore(
        thread.state, thread.rules, is_included(KEY), is_excluded(KEY), eager
    )
    if thread.depth == 0:
        weights.enter()
    thread.depth += 1
    _act(state, rules, bool(rules), not rules)
    return before


def leave(before: Restore) -> None:
    """Put back what was in force before ``enter``."""
    _act(before.state, before.rules, before.included, before.excluded)
    if before.ran_eagerly:
        eager_stretches.end()
    thread.depth -= 1
    if thread.depth == 0:
        weights.leave()


def _act(
    state: AutocastState, rules: tuple[Rules, ...], included: bool, excluded: bool
) -> None:
    thread.state, thread.rules = state, rules
    show(state.signature)  # first, since it opens or shuts the floor in passing
    set_included(KEY, included)
    set_excluded(KEY, excluded)

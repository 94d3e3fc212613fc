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
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from minamp.autocasting.calls import call_for
from minamp.autocasting.graph_guards import (
    eager_stretches,
    install_tag,
    needs_eager,
    show,
)
from minamp.autocasting.never_compiled import never_compile
from minamp.autocasting.state import AutocastState, Rules, Setting
from minamp.autocasting.weight_cache import WeightCache
from minamp.policy.op_lists import overload

# Private, all of it: the dispatcher's thread state has no public Python face.
KEY: Any = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
# The floors below.  Those above have been passed, and riding on must not stop there
# again: the compiler's floors would come straight back to ours.
BELOW = torch._C._dispatch_keyset_full_after(KEY)
set_included = torch._C._dispatch_tls_set_dispatch_key_included
set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
is_included = torch._C._dispatch_tls_is_dispatch_key_included
is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded


class _Thread(threading.local):
    """The state of autocast in one thread, and its rules ready for the kernels."""

    state = AutocastState()
    rules: tuple[Rules, ...] = ()
    depth = 0


class _Process:
    """What exists once, however often minamp is imported or reloaded."""

    def __init__(self) -> None:
        self.thread = _Thread()
        self.weights = WeightCache()
        self.floor: torch.library.Library | None = None
        self.fallthrough: torch.library.Library | None = None
        self.kernels: set[str] = set()
        self.lock = threading.Lock()


# Two copies of minamp in one process must share one floor: a second fallback on a key
# is an error, and a second kernel for an op would silently replace the first.
_process: _Process = torch.__dict__.setdefault("_minamp_process", _Process())
_thread = _process.thread
weights = _process.weights


def kernel_for(op: str) -> Callable[..., Any]:
    """The kernel that stands on the autocast floor for ``op``."""
    plain = overload(op)
    call = call_for(op)

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        rules_now = _thread.rules
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
    all_rules = _thread.rules
    _thread.rules = tuple(other for other in all_rules if other is not rules)
    try:
        args, kwargs = policy(args, kwargs, rules)
        return call(*args, **kwargs)
    finally:
        _thread.rules = all_rules


def install(ops: frozenset[str]) -> None:
    """Put kernels for ``ops`` on the floor; those that stand there already stay.

    Raises RuntimeError if somebody else lives on the floor.
    """
    if ops <= _process.kernels:
        return
    with _process.lock:
        if _process.floor is None:
            _move_in()
        assert _process.floor is not None
        for op in ops - _process.kernels:
            _process.floor.impl(op, kernel_for(op), KEY.name, with_keyset=True)
            _process.kernels.add(op)


def _move_in() -> None:
    tenants = torch._C._dispatch_get_registrations_for_dispatch_key(KEY.name)
    if tenants:
        raise RuntimeError(
            f"minamp's autocast needs the dispatch key {KEY.name}, but {len(tenants)} "
            f"ops have kernels of another package there ({tenants[0]}, ...): a device "
            "backend is loaded that brings an autocast of its own; use that one"
        )
    _process.fallthrough = torch.library.Library("_", "IMPL")
    _process.fallthrough.fallback(torch.library.fallthrough_kernel, KEY.name)
    _process.floor = torch.library.Library("aten", "IMPL")


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
    return _thread.state


def _signature() -> str:
    return _thread.state.signature


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


def enter(state: AutocastState) -> Restore:
    """Make ``state`` act in this thread; returns what ``leave`` needs to undo it."""
    rules = rules_of(state)
    install_tag(_signature)
    eager = needs_eager(state.signature)
    if eager:
        eager_stretches.begin()
    before = Restore(
        _thread.state, _thread.rules, is_included(KEY), is_excluded(KEY), eager
    )
    if _thread.depth == 0:
        weights.enter()
    _thread.depth += 1
    _act(state, rules, bool(rules), not rules)
    return before


def leave(before: Restore) -> None:
    """Put back what was in force before ``enter``."""
    _act(before.state, before.rules, before.included, before.excluded)
    if before.ran_eagerly:
        eager_stretches.end()
    _thread.depth -= 1
    if _thread.depth == 0:
        weights.leave()


def _act(
    state: AutocastState, rules: tuple[Rules, ...], included: bool, excluded: bool
) -> None:
    _thread.state, _thread.rules = state, rules
    show(state.signature)  # first, since it opens or shuts the floor in passing
    set_included(KEY, included)
    set_excluded(KEY, excluded)

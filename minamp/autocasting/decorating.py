"""A context manager as a decorator, for every kind of function.

Calling a generator function or a coroutine function runs none of its body: the body
runs later, piece by piece, each time it is resumed.  A decorator that only wraps the
call would leave the body outside.  Here each *piece* runs inside, and between two
pieces, when the caller has control, the caller's own state is in force.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
Region = Callable[[], AbstractContextManager[Any]]


def run_inside(region: Region, func: F) -> F:
    """``func`` with its whole body inside ``region()``, entered anew for each piece.

    Functions, methods, generator functions, coroutine functions and asynchronous
    generator functions stay what they are.
    """
    for is_kind, wrap in (
        (inspect.isasyncgenfunction, _async_generator),
        (inspect.iscoroutinefunction, _coroutine),
        (inspect.isgeneratorfunction, _generator),
    ):
        if is_kind(func):
            return cast(F, functools.wraps(func)(wrap(region, func)))
    return cast(F, functools.wraps(func)(_function(region, func)))


def _function(region: Region, func: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*args: Any, **kwargs: Any) -> Any:
        with region():
            return func(*args, **kwargs)

    return inside


def _generator(region: Region, func: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _Pieces(func(*args, **kwargs), region))

    return inside


def _coroutine(region: Region, func: Callable[..., Any]) -> Callable[..., Any]:
    async def inside(*args: Any, **kwargs: Any) -> Any:
        return await _Pieces(func(*args, **kwargs), region)

    return inside


def _async_generator(region: Region, func: Callable[..., Any]) -> Callable[..., Any]:
    async def inside(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body = func(*args, **kwargs)
        step: Any = body.asend(None)
        while True:
            try:
                item = await _Pieces(step, region)
            except StopAsyncIteration:
                return
            try:
                step = body.asend((yield item))
            except GeneratorExit:
                await _Pieces(body.aclose(), region)
                raise
            except BaseException as error:  # thrown in by the caller: pass it on
                step = body.athrow(error)

    return inside


class _Pieces(Coroutine[Any, Any, Any], Generator[Any, Any, Any]):
    """A generator or coroutine of which each piece runs inside ``region()``."""

    def __init__(self, body: Any, region: Region) -> None:
        self.body = body
        self.region = region

    def send(self, value: Any) -> Any:
        with self.region():
            return self.body.send(value)

    def throw(self, *error: Any) -> Any:
        with self.region():
            return self.body.throw(*error)

    def close(self) -> None:
        with self.region():
            self.body.close()

    def __await__(self) -> _Pieces:
        return self

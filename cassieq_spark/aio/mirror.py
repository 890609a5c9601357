"""Make a coroutine function of a method of the synchronous API: same signature, same docstring."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from cassieq_spark.aio.calls import Calls

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
F = TypeVar("F", bound="Callable[..., Any]")


class Mirror(Protocol[S_co]):
    """An object of the asyncio API, which has one of the synchronous API."""

    @property
    def _calls(self) -> Calls: ...

    @property
    def _sync(self) -> S_co: ...


def in_thread(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Mirror[S], P], Coroutine[Any, Any, T]]:
    """The same method as a coroutine function: it is called in a thread of the client."""

    @functools.wraps(method)
    async def call(self: Mirror[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._calls.run(
            method.__name__,
            lambda: method(self._sync, *args, **kwargs),
        )

    return call


def in_thread_then(
    method: Callable[Concatenate[S, P], T], then: Callable[[Any, T], U]
) -> Callable[Concatenate[Mirror[S], P], Coroutine[Any, Any, U]]:
    """As `in_thread`; the result is what ``then`` makes of it, in the event loop."""
    before = in_thread(method)

    @functools.wraps(method)
    async def call(self: Mirror[S], /, *args: P.args, **kwargs: P.kwargs) -> U:
        return then(self, await before(self, *args, **kwargs))

    return call


def documented(method: Callable[..., Any]) -> Callable[[F], F]:
    """Give a coroutine function that is written out the docstring of its synchronous method."""

    def give(function: F) -> F:
        function.__doc__ = method.__doc__
        return function

    return give

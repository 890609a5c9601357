"""Make the calls of both APIs from one coroutine of the engine per verb.

`blocking` turns the coroutine into a method of the blocking API. `awaited` turns that method into a
coroutine method of the asyncio API.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from cassieq_spark.store import portal

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
F = TypeVar("F", bound="Callable[..., Any]")


class Mirror(Protocol[S_co]):
    """An object of the asyncio API that wraps one of the blocking API."""

    @property
    def _sync(self) -> S_co: ...


def blocking(
    verb: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], T]:
    """Make a method that returns when the verb is done. Ctrl-C does not end work that has begun."""

    @functools.wraps(verb)
    def call(self: S, /, *args: Any, **kwargs: Any) -> T:
        return portal.run(_begun(verb, self, args, kwargs))

    return call


def awaited(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Mirror[S], P], Coroutine[Any, Any, T]]:
    """Make a coroutine function of a method from `blocking`, with its arguments and docstring."""
    verb: Callable[..., Coroutine[Any, Any, T]] = method.__wrapped__  # type: ignore[attr-defined]

    @functools.wraps(verb)
    async def call(self: Mirror[S], /, *args: Any, **kwargs: Any) -> T:
        return await portal.asked(_begun(verb, self._sync, args, kwargs))

    return call


def documented(method: Callable[..., Any]) -> Callable[[F], F]:
    """Give a handwritten coroutine function the docstring of its blocking method."""

    def give(function: F) -> F:
        function.__doc__ = method.__doc__
        return function

    return give


def _begun(
    verb: Callable[..., Coroutine[Any, Any, T]],
    of: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Coroutine[Any, Any, T]:
    """Make the verb's coroutine.

    What a program iterates over may run its code, so its own thread makes a list of it here.
    """
    lazy = {name: _listed(one) for name, one in kwargs.items() if name in LISTED}
    return verb(of, *map(_listed, args), **{**kwargs, **lazy})


LISTED: Final = frozenset({"bodies", "messages"})
"""The keywords for which a program may give whatever can be iterated over."""


def _listed(given: Any) -> Any:
    is_lazy = isinstance(given, Iterable) and not isinstance(given, _AS_IT_IS)
    return list(given) if is_lazy else given


_AS_IT_IS: Final = (str, bytes, bytearray, memoryview, list, tuple, set, frozenset, Mapping)

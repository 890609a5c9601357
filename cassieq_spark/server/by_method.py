"""Route requests to what a door has for their path and method, which `guards` has checked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.routing import Route, compile_path

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send


class _Asked(Protocol):
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...


T = TypeVar("T", bound=_Asked)


def routes(
    asked: Iterable[T],
    answer: Callable[[T, Request], Awaitable[Response]],
) -> list[Route]:
    """A route for each path.

    Args:
        asked: What the door has; no two have the same path and method.
    """
    return [Route(path, _Address(found, answer)) for path, found in _by_path(asked).items()]


def methods_of(asked: Iterable[_Asked], prefix: str) -> Callable[[str], frozenset[str] | None]:
    """What says which methods a path below a prefix has; None: there is no such path."""
    known = [
        (compile_path(prefix + path)[0], frozenset(found))
        for path, found in _by_path(asked).items()
    ]
    return lambda path: next((methods for form, methods in known if form.match(path)), None)


def _by_path(asked: Iterable[T]) -> dict[str, dict[str, T]]:
    found: dict[str, dict[str, T]] = {}
    for one in asked:
        found.setdefault(one.path, {})[one.method] = one
    return found


class _Address(Generic[T]):
    """One path with its methods."""

    def __init__(
        self,
        asked: Mapping[str, T],
        answer: Callable[[T, Request], Awaitable[Response]],
    ) -> None:
        self._asked = asked
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        one = self._asked["GET" if scope["method"] == "HEAD" else scope["method"]]
        response = await self._answer(one, Request(scope, receive))
        await response(scope, receive, send)

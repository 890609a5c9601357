"""Route requests to what a door has for their path and method."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.routing import Route

from cassieq_spark.server.rest.problems import Refusal

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
    refuse: Callable[[str], str],
) -> list[Route]:
    """A route for each path.

    Args:
        asked: What the door has; no two have the same path and method.
        refuse: What whoever uses another method is told, made of the allowed ones.
    """
    by_path: dict[str, dict[str, T]] = {}
    for one in asked:
        by_path.setdefault(one.path, {})[one.method] = one
    return [Route(path, _Address(found, answer, refuse)) for path, found in by_path.items()]


class _Address(Generic[T]):
    """One path with its methods."""

    def __init__(
        self,
        asked: Mapping[str, T],
        answer: Callable[[T, Request], Awaitable[Response]],
        refuse: Callable[[str], str],
    ) -> None:
        self._asked = asked
        self._answer = answer
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        one = self._asked.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if one is None:
            allowed = ", ".join(sorted(self._asked))
            raise Refusal(405, self._refuse(allowed), {"Allow": allowed})
        response = await self._answer(one, Request(scope, receive))
        await response(scope, receive, send)

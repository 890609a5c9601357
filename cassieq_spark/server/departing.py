"""Notice that a client goes away while its request waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

T = TypeVar("T")


async def unless_gone(
    request: Request, work: Awaitable[T], give_back: Callable[[], None]
) -> T | None:
    """Return the result; None if the client goes away first.

    Args:
        request: Its body has been read.
        give_back: Called if the client has gone: the work may have been done nevertheless.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            return await task
        if not task.done():
            task.cancel()  # `Waiting.receive` gives back what comes too late
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # nobody is there to be told
        give_back()
        return None
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

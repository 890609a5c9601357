"""Make and send answers: large ones beside the event loop, which all others wait for.

What shows a message takes up to 10 ms for each MiB of its body: it is decoded, searched, hashed,
and written as JSON or XML. A request of a few bytes is answered with ten messages of a MiB.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.responses import Response

from cassieq_spark.server.guards import HOLDING, no_room
from cassieq_spark.server.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from cassieq_spark.model.shares import Holding
    from cassieq_spark.queue.message import Message

T = TypeVar("T")

AT_ONCE_BYTES: Final = 65_536
"""Less than this takes the loop a millisecond, and a thread would cost as much."""

MESSAGE_WEIGHT: Final = 256
HEADER_WEIGHT: Final = 64
"""What is the same for each message and header takes as long as so many bytes."""

PART_BYTES: Final = 65_536
"""An answer is written in parts. A part waits until its client has read what came before it."""


class Answers:
    """Makes large answers in a thread, one at a time, for one account after the other.

    More threads would make none sooner, as each holds the interpreter, and each wake-up of the loop
    would wait for all of them.
    """

    def __init__(self) -> None:
        self._turns = Turns(1)

    async def made(self, make: Callable[[], T], messages: Iterable[Message], scope: Scope) -> T:
        """Return what ``make`` does of the messages.

        What is large counts as held by its request from now on.

        Raises:
            Refusal: The requests of all connections hold too much already.
            Busy, StoreTimeout: Too many large answers wait.
        """
        size = sum(map(_size, messages))
        if size <= AT_ONCE_BYTES:
            return make()
        holding: Holding | None = scope.get(HOLDING)
        if holding is not None:
            holding.set(holding.size + size)
            if not holding.fits():
                raise no_room()
        return await self._turns.run(partial(asyncio.to_thread, make))

    def close(self) -> None:
        """Make no further answer; one under way ends by itself."""
        self._turns.close()


class InParts(Response):
    """A response that is written in parts: the loop copies, or encrypts, a little at a time."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if len(self.body) <= PART_BYTES:
            await super().__call__(scope, receive, send)
            return
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        for at in range(0, len(self.body), PART_BYTES):
            part = bytes(self.body[at : at + PART_BYTES])
            has_more = at + PART_BYTES < len(self.body)
            await send({"type": "http.response.body", "body": part, "more_body": has_more})
            await asyncio.sleep(0)


def as_json(value: Mapping[str, Any]) -> bytes:
    """Write JSON, each entry of a list by itself: it holds up other threads for one message."""
    fields = (json.dumps(name).encode() + b": " + _field(one) for name, one in value.items())
    return b"{" + b", ".join(fields) + b"}"


def in_slices(text: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Change a text slice by slice, for the same reason; each byte is changed by itself."""
    found = bytearray()
    for at in range(0, len(text), PART_BYTES):
        found += change(text[at : at + PART_BYTES])
    return bytes(found)


def _field(value: Any) -> bytes:
    if not isinstance(value, list):
        return json.dumps(value).encode()
    return b"[" + b", ".join(json.dumps(one).encode() for one in value) + b"]"


def _size(message: Message) -> int:
    headers = sum(HEADER_WEIGHT + len(name) + len(text) for name, text in message.headers.items())
    return MESSAGE_WEIGHT + len(message.body) + headers


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

"""What is refused before a body is read, and while it is read.

What headers alone can refuse is refused before the first byte of the body is asked for. A client
that is still sending then sees the answer: `connection.py` drains what it sends, and closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from cassieq_spark.model.shares import Holding

    Headers = list[tuple[bytes, bytes]]
    BeforeBody = Callable[[Scope], Awaitable[Response | None]]
    """Looks at the headers of a request; a response refuses it, and its body is not read."""

HOLDING: Final = "cassieq.holding"
"""Where a request's scope has what its body holds of the budget of bytes."""

UNKNOWN: Final = 1 << 62
"""The length of a body of which only its end says so."""

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""They are answered also if no memory is left: that the gateway is busy is no reason to end it."""


HEADER_BYTES: Final = 32
"""What each header counts beyond its name and value, as in HTTP/2 (RFC 9113, 6.5.2). Else very many
tiny ones would fit, and each takes time in which nobody else is served."""


class HeaderBytes:
    """The bytes of a request's headers, and of the lines between and after its chunks.

    The parser keeps the parts of a line that has no end, and says nothing of them. They have the
    same limit, but are not counted once more when the line is whole.

    Attributes:
        unsaid: What the parser got since it last said something.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.begin()

    def begin(self) -> None:
        """Count anew."""
        self._said = 0
        self.unsaid = 0

    def fits(self, size: int) -> bool:
        """Count what the parser says; return whether all of it is within the limit."""
        self._said += size
        self.unsaid = 0
        return self._said <= self._most

    def has_endless(self, size: int) -> bool:
        """Whether the parser keeps a line that is too long, and now got so many bytes more."""
        self.unsaid += size
        return self.unsaid > self._most + size


class TooLong(Exception):
    """The body of a request is longer than the limit."""


class NoRoom(TooLong):
    """The bodies and unread answers of all connections hold as much as they may."""


class BodyLimit:
    """ASGI middleware: a body is refused before it is read, or as it grows.

    It is the last that sees a request before the application, and holds the request's body as long
    as the application may know it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        most_bytes: int,
        refusal: Callable[[Scope, TooLong], Response],
        before_body: Sequence[BeforeBody] = (),
    ) -> None:
        """Wrap an application.

        Args:
            refusal: Makes the answer to a request whose body is above the limit, or finds no room.
            before_body: Asked in this order, before the announced size is looked at.
        """
        self._app = app
        self._most_bytes = most_bytes
        self._refusal = refusal
        self._before_body = before_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its body counted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        holding: Holding | None = scope.get(HOLDING)
        try:
            refused = await self._refused(scope, holding)
            if refused is not None:
                if coming(scope["headers"]):
                    refused.headers["Connection"] = "close"
                await refused(scope, receive, send)
            else:
                await self._counted(scope, receive, send, holding)
        finally:
            if holding is not None:
                holding.end()

    async def _refused(self, scope: Scope, holding: Holding | None) -> Response | None:
        """The answer to a request that its headers alone refuse."""
        for ask in self._before_body:
            refused = await ask(scope)
            if refused is not None:
                return refused
        size = announced(scope["headers"])
        if size > self._most_bytes:
            return self._refusal(scope, TooLong())
        if holding is not None and scope["path"] not in PROBES:
            # Some of it may have come with the headers.
            coming = max(0, size - holding.size)
            if not holding.fits(coming):
                return self._refusal(scope, NoRoom())
        return None

    async def _counted(
        self, scope: Scope, receive: Receive, send: Send, holding: Holding | None
    ) -> None:
        received = 0
        has_begun = False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._most_bytes:
                raise TooLong
            if received and holding is not None and not holding.fits():
                raise NoRoom
            return message

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, counted, sending)
        except TooLong as error:
            if not has_begun:
                await self._refusal(scope, error)(scope, receive, send)


def coming(headers: Headers) -> int:
    """How many bytes of a body may come after the headers."""
    return UNKNOWN if headers_of(headers, b"transfer-encoding") else announced(headers)


def announced(headers: Headers) -> int:
    """The length of a body as its headers say it; 0 if they do not."""
    found = headers_of(headers, b"content-length")
    return int(found[0]) if found and found[0].isascii() and found[0].isdigit() else 0


def headers_of(headers: Headers, name: bytes) -> list[str]:
    """All values of a header; names are in lower case."""
    return [value.decode("latin-1") for key, value in headers if key == name]

"""Limits of connections and requests, held before a request reaches any code of ours.

Uvicorn leaves three of them open: how long a request may take to arrive (slow loris), how large its
headers may be, and what becomes of connections beyond the limit that never send a request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cassieq_spark import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from cassieq_spark.server.settings import GatewaySettings

_STATUS: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class TooLong(Exception):
    """The body of a request is longer than the limit."""


class Limited(HttpToolsProtocol):
    """One connection of uvicorn, with our limits."""

    settings: ClassVar[GatewaySettings]
    _timer: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _is_in_headers = True
    _status = 400

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Refuse a connection above the limit; else begin to wait for its request."""
        if len(self.connections) >= self.settings.max_connections:
            self.transport = transport
            self._refuse(503, retry=True)
            return
        super().connection_made(transport)
        self._begin_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._end_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and refuse headers that never end."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._is_in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > self.settings.max_header_bytes + len(data):
                self._refuse(431)

    def on_message_begin(self) -> None:
        """Begin a request: from now on it must arrive within its time."""
        super().on_message_begin()
        self._header_bytes = 0
        self._is_in_headers = True
        self._begin_timer()

    def on_url(self, url: bytes) -> None:
        """Count the request line's bytes."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header's bytes."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop counting: the body has a limit of its own."""
        self._is_in_headers = False
        self._header_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop waiting: the request is whole."""
        self._end_timer()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it may quote the request
        """Refuse what cannot be parsed, or has too large headers."""
        self._refuse(self._status)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.settings.max_header_bytes:
            self._status = 431
            raise ValueError  # the parser stops, and `send_400_response` is called

    def _begin_timer(self) -> None:
        self._end_timer()
        self._timer = self.loop.call_later(self.settings.request_timeout_s, self._too_slow)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if self._is_in_headers:
            self._refuse(408)
        else:
            self.transport.close()  # its request is being read: it sees a disconnect

    def _refuse(self, status: int, *, retry: bool = False) -> None:
        metrics.HTTP_REFUSED.inc(str(status))
        again = "Retry-After: 1\r\n" if retry else ""
        self.transport.write(
            f"HTTP/1.1 {status} {_STATUS[status]}\r\n{again}Content-Length: 0\r\n"
            "Connection: close\r\n\r\n".encode("ascii")
        )
        self.transport.close()


def limited(settings: GatewaySettings) -> type[HttpToolsProtocol]:
    """The HTTP protocol of uvicorn, with the limits of these settings."""
    return type("LimitedByTheseSettings", (Limited,), {"settings": settings})


class BodyLimit:
    """ASGI middleware: a body above the limit is refused before it is read, or as it grows."""

    def __init__(
        self, app: ASGIApp, *, most_bytes: int, refusal: Callable[[Scope, int], Response]
    ) -> None:
        """Wrap an application.

        Args:
            refusal: Makes the answer to a request whose body is above the limit.
        """
        self._app = app
        self._most_bytes = most_bytes
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its body counted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _announced(scope) > self._most_bytes:
            await self._refusal(scope, self._most_bytes)(scope, receive, send)
            return
        received = 0
        has_begun = False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._most_bytes:
                raise TooLong
            return message

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, counted, sending)
        except TooLong:
            if not has_begun:
                await self._refusal(scope, self._most_bytes)(scope, receive, send)


def _announced(scope: Scope) -> int:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    lengths = [value for name, value in headers if name == b"content-length"]
    return int(lengths[0]) if lengths and lengths[0].isdigit() else 0

"""`Wire` is a connection's transport, which uvicorn writes to and closes by way of us."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.flow_control import FlowControl

if TYPE_CHECKING:
    from collections.abc import Callable


_STATUS: Final = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def refusal(status: int, *, retry: bool) -> bytes:
    """The answer to what is no request that an operation gets to see."""
    again = "Retry-After: 1\r\n" if retry else ""
    return (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\n{again}Content-Length: 0\r\n"
        "Connection: close\r\n\r\n"
    ).encode("ascii")


class Wire(asyncio.Transport):
    """The transport of one connection.

    Uvicorn closes a connection as soon as an answer is written, also if the request is still
    coming, and that would reset it. So its `close` asks the connection how to end.
    """

    def __init__(self, transport: asyncio.Transport, on_close: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        # With TLS, what a client has not read is in the transport below, see `unread`.
        self._below: asyncio.Transport | None = None
        if transport.get_extra_info("sslcontext") is not None:
            tls: Any = transport  # asyncio has no other way; a test tells if it changes
            self._below = tls._ssl_protocol._transport  # noqa: SLF001
            # What comes while nobody reads is left to the system. Asyncio would keep 256 KiB of it,
            # and hand it over in one turn of the loop.
            tls.set_read_buffer_limits(high=1, low=0)
        self._on_close: Callable[[], None] | None = on_close
        self._is_closing = False

    @property
    def unread(self) -> int:
        """How many bytes were written that the system did not take yet, as the client reads none.

        Under TLS, asyncio counts what waits for encryption only. That is no longer there when
        it has been encrypted, although the client has read nothing.
        """
        if self._on_close is None:
            return 0
        below = 0 if self._below is None else self._below.get_write_buffer_size()
        return below + self._transport.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, unless the connection is closing."""
        if not self.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Let the connection end as it wants to, once."""
        if not self._is_closing and self._on_close is not None:
            self._is_closing = True
            self._on_close()

    def end(self, *, keeps_reading: bool) -> None:
        """Close; the client gets all that was written if it reads it. TLS waits for `finish`.

        Args:
            keeps_reading: It may still be sending: take that, as unread bytes would make the
                system reset the connection.
        """
        self._is_closing = True
        self._transport.resume_reading()
        if self._below is None and keeps_reading:
            with suppress(OSError):  # the client has gone meanwhile, and reading tells so
                self._transport.write_eof()
        elif self._below is None:
            self._transport.close()

    def finish(self) -> None:
        """Say over TLS that nothing more comes. A client that then still sends gets an error."""
        if self._below is not None and not self._transport.is_closing():
            self._transport.close()  # a second time, it would forget what it is of

    def abort(self) -> None:
        """End at once, whatever is unread."""
        self._is_closing = True
        (self._below or self._transport).abort()

    def let_go(self) -> None:
        """Forget the connection, which is over: an operation that still runs may know this wire."""
        self._is_closing = True
        self._on_close = None

    def is_closing(self) -> bool:
        """Whether nothing more is written."""
        return self._is_closing or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the transport knows of the connection."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Leave unread what comes."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._transport.resume_reading()


class Flow(FlowControl):
    """Uvicorn's flow control, but what must stay unread stays unread.

    Uvicorn reads on when an operation waits for more of its body, or for the client to go away.
    """

    is_held = False

    def resume_reading(self) -> None:
        """Read on, unless something waits already."""
        if not self.is_held:
            super().resume_reading()


_OFFER: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


def unoffered(head: bytes) -> bytes:
    """Headers without an offer to change the protocol, which a server may ignore (RFC 9110, 7.8).

    The parser would take the body for the other protocol, and leave it out. Java's `HttpClient`
    offers HTTP/2 with each request.
    """
    return _OFFER.sub(b"\r\nx-upgrade:", head)

"""`Wire` is a connection's transport, which uvicorn writes to and closes by way of us."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Wire(asyncio.Transport):
    """The transport of one connection.

    Uvicorn closes a connection as soon as an answer is written, also if the request is still
    coming, and that would reset it. So its `close` asks the connection how to end.
    """

    def __init__(self, transport: asyncio.Transport, on_close: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        # With TLS, what a client has not read is in the transport below, see `unread`.
        tls = getattr(transport, "_ssl_protocol", None)
        self._below: asyncio.Transport | None = None if tls is None else tls._transport  # noqa: SLF001 - asyncio has no other way
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
        """Close; the client gets all that was written if it reads it.

        Args:
            keeps_reading: It may still be sending: take that, as unread bytes would make the
                system reset the connection. TLS always does so while it shuts down.
        """
        self._is_closing = True
        self._transport.resume_reading()
        if keeps_reading and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

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

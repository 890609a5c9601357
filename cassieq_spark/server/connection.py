"""The connection of a client: what it may hold, and until when.

**The rule.** A connection is in one state at any time, and each state has one deadline:

| State | Begins | Ends at the latest |
|---|---|---|
| reading | it is open, or a request's first byte is there | `request_timeout_s` later |
| working | the request is whole | when its operation ends, which has a bound of its own |
| delivering | an answer is not read yet | when 64 KiB, or the rest, took `request_timeout_s` |
| idle | the answer is read | `keep_alive_s` later |
| draining | a request was answered before it was whole | `DRAIN_S` later |
| closing | we have closed it | `DRAIN_S` after what was written is read (see delivering) |

Only a state that ends starts the next deadline: no bytes that a client sends extend one. A deadline
that is over ends the connection without waiting for the client (`abort`); only one that is idle
is closed as usual. TLS handshakes have a deadline of their own (`serve.py`).

A connection has one request at a time. What a client sends before it has read the answer stays
unread, so no answer (nor a refusal) is written into another.

What a connection holds of the client's bytes counts against the budget of all connections: bodies
until their request has ended, answers until they are read, and what was sent too early.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cassieq_spark import metrics
from cassieq_spark.model.shares import Holding
from cassieq_spark.server.entrance import Arrival, Entrance
from cassieq_spark.server.guards import HOLDING, UNKNOWN, coming
from cassieq_spark.server.settings import GatewaySettings

DRAIN_S: Final = 2.0
"""The time that a client has to see that it was refused. What it still sends is dropped meanwhile,
up to the length that a body may have: programs send all of it before they look for an answer. If it
stayed unread, the system would reset the connection, and the answer might be lost."""

LOOK_S: Final = 1.0
"""The time between two looks whether an answer is read. Nothing waits for it but requests that were
sent too early: others are looked at when they come."""

READ_BYTES: Final = 65_536
"""The part of an answer that must be read within each `request_timeout_s`."""

_HEADERS_END: Final = b"\r\n\r\n"
_EMPTY_LINES: Final = b"\r\n"

_OFFER: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)

HEADER_BYTES: Final = 32
"""The bytes that each header counts beyond its name and value, as in HTTP/2 (RFC 9113, 6.5.2). Else
very many tiny ones would fit, and each takes time in which nobody else is served."""


class State(Enum):
    """The event that a connection waits for."""

    READING = auto()
    WORKING = auto()
    DELIVERING = auto()
    IDLE = auto()
    DRAINING = auto()
    CLOSING = auto()


class Connection(HttpToolsProtocol):
    """A connection of uvicorn, with our limits. `GatewayServer` makes it."""

    settings: GatewaySettings
    entrance: Entrance
    arrival: Arrival
    _state = State.IDLE
    _timer: asyncio.TimerHandle | None = None
    _early = b""
    _said = 0
    _unsaid = 0
    _is_in_headers = True
    _is_whole = True
    _is_cut = False
    _left = 0
    _dropped = 0
    _status = 400
    _ends_at = 0.0
    _goal = 0

    # --- the connection begins and ends --------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Refuse a connection above the limit; else begin to wait for its request."""
        self._wire = Wire(transport, self._close)
        self._who = self.arrival.who
        self._own = Holding(self.entrance.memory, self._who)
        super().connection_made(self._wire)
        self.flow = self._flow = Flow(self._wire)
        self._enter(State.READING)
        if self.arrival.is_refused:
            self._refuse(503, retry=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nothing behind: no timer, and no bytes that count."""
        self._end_timer()
        self._state = State.CLOSING
        self._early = b""
        self._own.end()
        if self.cycle is not None:
            self.entrance.outlived(self._who, self.cycle.scope[HOLDING])  # type: ignore[typeddict-item]  # ours
        self._wire.let_go()  # uvicorn closes it once more, and there is nothing to wait for
        super().connection_lost(exc)

    # --- bytes come ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what has come; keep what came too early."""
        if self._state in (State.DRAINING, State.CLOSING) and self._drop(len(data)):
            return
        if self._state is State.DELIVERING and self._is_answered and not self._wire.unread:
            self._next()  # whoever has read the whole answer need not wait for a look
        if self._state in (State.WORKING, State.DELIVERING):
            self._keep(data)
        elif not self._wire.is_closing():
            self._feed(data)

    def _drop(self, size: int) -> bool:
        """Take so much of a body that nobody reads; return whether it is not even parsed."""
        self._dropped += size
        if self._dropped > self.settings.max_body_bytes:
            self._wire.pause_reading()  # the deadline of the state ends it
            return True
        if self._state is State.DRAINING:
            return False
        self._left -= size
        self._finish()
        return True

    def _feed(self, data: bytes) -> None:
        """Parse bytes, those of one request at a time."""
        while not self._wire.is_closing():
            if self._state in (State.WORKING, State.DELIVERING):
                self._keep(data)
                return
            if self._is_whole:
                # Empty lines between requests mean nothing. They are not even shown to the parser.
                data = data.lstrip(_EMPTY_LINES)
            if not data:
                return
            is_head = self._is_in_headers or self._is_whole
            size = self._size_of_request(data, is_head=is_head)
            self._is_cut = False
            super().data_received(unoffered(data[:size]) if is_head else data[:size])
            # The parser keeps the parts of a line that has no end, and says nothing of them. They
            # have the limit of headers, but are not counted once more when the line is whole.
            self._unsaid += size
            if self._unsaid > self.settings.max_header_bytes + size and not self._wire.is_closing():
                self._refuse(431)
            data = b"" if self._is_cut else data[size:]

    def _size_of_request(self, data: bytes, *, is_head: bool) -> int:
        """Return how many of these bytes belong to the present request.

        Where its end is unknown, as in a chunked body: all. If another request begins there, the
        parser stops (`on_message_begin`), and the connection ends after the answer.
        """
        if is_head:
            end = data.find(_HEADERS_END)
            return end + len(_HEADERS_END) if end >= 0 else len(data)
        return min(self._left, len(data)) if self._left else len(data)

    def _keep(self, data: bytes) -> None:
        """Leave unread what comes before the answer to the request before it."""
        if not self._early:
            data = data.lstrip(_EMPTY_LINES)
        if data:
            self._early += data
            self._own.set(len(self._early) + self._wire.unread)
            self._flow.is_held = True
            self._flow.pause_reading()
            if not self._own.fits():
                self._forget_early()

    def _forget_early(self) -> None:
        """Give up what came too early: there is no memory for it. The client sends it again."""
        if self._is_answered:
            self._wire.abort()  # it does not read, and sends on
            return
        self.cycle.keep_alive = False
        self._early = b""
        self._own.set(self._wire.unread)
        self._is_whole, self._left = False, UNKNOWN  # what still comes is dropped

    # --- the parser speaks ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request: from now on it must arrive within its time.

        Raises:
            ValueError: The one before it is not answered.
        """
        if self._state in (State.WORKING, State.DELIVERING):
            self._is_cut = True
            raise ValueError  # the parser stops, and `send_400_response` is called
        super().on_message_begin()
        self._said = self._unsaid = 0
        self._dropped = 0
        self._is_in_headers = True
        self._is_whole = False
        self._enter(State.READING)

    def on_url(self, url: bytes) -> None:
        """Count the request line's bytes."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header's bytes, and those that it takes however short it is."""
        self._count(len(name) + len(value) + HEADER_BYTES)
        if self._is_in_headers:  # what comes after chunks (trailers) has passed no guard
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop counting: the body has a limit of its own.

        Raises:
            ValueError: The parser would leave out the body, as the client offers another protocol.
        """
        self._left = coming(self.headers)
        if self._left and self.parser.should_upgrade():
            raise ValueError
        self._body = self.scope[HOLDING] = Holding(self.entrance.memory, self._who)  # type: ignore[typeddict-unknown-key]  # a key of our own
        super().on_headers_complete()
        self._is_in_headers = False  # before that there is nobody who could answer
        self._said = self._unsaid = 0

    def on_body(self, body: bytes) -> None:
        """Count the body's bytes, which are dropped once there is an answer."""
        self._left = max(0, self._left - len(body))
        self._unsaid = 0
        if not self._is_answered:
            self._body.set(self._body.size + len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop waiting: the request is whole."""
        self._is_whole = True
        self._left = 0
        super().on_message_complete()
        if self._state is State.READING:
            self._enter(State.WORKING)
        elif self._state is State.DRAINING:
            self._deliver()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it may quote the request
        """Refuse what cannot be parsed, or has too large headers."""
        if self._is_cut:
            self.cycle.keep_alive = False
        elif not self._wire.is_closing():
            self._refuse(self._status)

    def _count(self, size: int) -> None:
        """Count bytes of headers, and of the lines between and after chunks."""
        self._said += size
        self._unsaid = 0
        if self._said > self.settings.max_header_bytes:
            self._status = 431
            raise ValueError  # the parser stops, and `send_400_response` is called

    # --- the answer ----------------------------------------------------------------------------

    @property
    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]  # there is none before the first request

    def on_response_complete(self) -> None:
        """Wait until the answer is read, and then for the next request."""
        self.server_state.total_requests += 1
        if self._wire.is_closing():
            return
        self.cycle.body = bytearray()  # an operation need not have read it
        self._flow.resume_reading()
        if self._is_whole:
            self._deliver()
        else:
            self._enter(State.DRAINING)

    def pause_writing(self) -> None:
        """Note that the client does not read what an operation writes."""
        super().pause_writing()
        if self._state is State.WORKING:
            self._enter(State.DELIVERING)

    def _deliver(self) -> None:
        """Wait until the whole answer is read."""
        if self._wire.unread:
            self._enter(State.DELIVERING)
        else:
            self._next()

    def _next(self) -> None:
        """Become idle, or go on with what came too early."""
        self._enter(State.IDLE)
        data, self._early = self._early, b""
        self._own.set(0)
        self._flow.is_held = False
        self._flow.resume_reading()
        self._feed(data)

    # --- deadlines -----------------------------------------------------------------------------

    def _enter(self, state: State) -> None:
        """Enter a state; its deadline replaces the one before."""
        self._end_timer()
        self._state = state
        if state is State.WORKING:
            return
        if state in (State.DELIVERING, State.CLOSING):
            self._expect_progress()
            return
        delay_s = {
            State.READING: self.settings.request_timeout_s,
            State.IDLE: self.settings.keep_alive_s,
            State.DRAINING: DRAIN_S,
        }[state]
        self._timer = self.loop.call_later(delay_s, self._over)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        """End the connection: its state has lasted too long."""
        if self._state is State.IDLE:
            self._wire.close()
        elif self._state is State.READING and self._is_in_headers:
            self._refuse(408)
        else:
            self._wire.abort()  # an operation that reads the request sees that the client has gone

    def _expect_progress(self) -> None:
        """Give the client the time for the next part of what is written."""
        unread = self._wire.unread
        self._goal = max(0, unread - READ_BYTES) if unread else -1
        self._ends_at = self.loop.time() + (self.settings.request_timeout_s if unread else DRAIN_S)
        self._look_later(unread)
        self._finish()

    def _look_later(self, unread: int) -> None:
        self._own.set(len(self._early) + unread)
        left_s = max(0.0, self._ends_at - self.loop.time())
        self._timer = self.loop.call_later(min(LOOK_S, left_s), self._look)

    def _look(self) -> None:
        """See how much the client has read."""
        unread = self._wire.unread
        if self._state is State.DELIVERING and not unread:
            self._own.set(len(self._early))
            if self._is_answered:
                self._next()
            else:
                self._enter(State.WORKING)
        elif unread <= self._goal:
            self._expect_progress()
        elif self.loop.time() >= self._ends_at:
            self._wire.abort()
        else:
            self._look_later(unread)

    def _finish(self) -> None:
        """End TLS once both sides have all: whoever sends or reads on would get an error."""
        if self._state is State.CLOSING and self._left <= 0 and not self._wire.unread:
            self._wire.finish()

    # --- refusals and the end ------------------------------------------------------------------

    def _close(self) -> None:
        """Close the connection, so that the client sees what was written."""
        self._wire.end(keeps_reading=not self._is_whole)
        self._enter(State.CLOSING)

    def _refuse(self, status: int, *, retry: bool = False) -> None:
        metrics.HTTP_REFUSED.inc(str(status))
        if not self._is_in_headers and self.cycle.response_started:
            self._wire.abort()  # the answer to this request has begun: nothing may follow it
            return
        again = "Retry-After: 1\r\n" if retry else ""
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{again}"
        self._wire.write(f"{head}Content-Length: 0\r\nConnection: close\r\n\r\n".encode("ascii"))
        self._is_whole = False
        self._wire.close()


# --- the transport below --------------------------------------------------------------------------


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
        """The number of bytes written that the system did not take yet, as the client reads none.

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
        """Return a fact that the transport knows about the connection."""
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


def unoffered(head: bytes) -> bytes:
    """Headers without an offer to change the protocol, which a server may ignore (RFC 9110, 7.8).

    The parser would take the body for the other protocol, and leave it out. Java's `HttpClient`
    offers HTTP/2 with each request.
    """
    return _OFFER.sub(b"\r\nx-upgrade:", head)

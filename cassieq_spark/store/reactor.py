"""`LoopConnection` is a connection of the driver that the engine's own event loop serves."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from ssl import SSLWantReadError, SSLWantWriteError
from typing import Any, Final

from cassandra.connection import Connection, ConnectionShutdown

from cassieq_spark.store.portal import Portal, portal

_LATER: Final = (BlockingIOError, InterruptedError, SSLWantReadError, SSLWantWriteError)


def _soon(here: Portal, call: Callable[..., object], *arguments: Any) -> None:
    """Call in the event loop: at once if this is its thread."""
    if here.is_here:
        call(*arguments)
    else:
        here.loop.call_soon_threadsafe(call, *arguments)


class LoopConnection(Connection):  # type: ignore[misc]  # the driver has no types
    """A connection without a thread: an answer needs no switch of threads on its way to its task.

    The driver's own reactors have an event loop in a thread, so that each answer woke two threads,
    one after the other, for one that had to work (ADR 47). The driver never waits in the thread of
    its event loop, and connects in other threads.
    """

    is_closed: bool

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._portal = portal()
        self._pid = os.getpid()
        self._unsent: deque[memoryview] = deque()
        self._waits_for_room = False
        self._connect_socket()
        self._socket.setblocking(False)
        _soon(self._portal, self._watch)
        self._send_options_message()

    @classmethod
    def create_timer(cls, timeout: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` after ``timeout`` seconds."""
        return Timer(timeout, callback)

    def push(self, data: bytes) -> None:
        """Send a message."""
        # The loop may just have found nothing left, so only its own thread knows that it waits.
        self._unsent.append(memoryview(data))
        if not (self._waits_for_room and self._portal.is_here):
            _soon(self._portal, self._write)

    def close(self) -> None:
        """Close; the requests under way fail."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        if os.getpid() == self._pid:
            _soon(self._portal, self._end)
        else:
            self._socket.close()  # a forked child shares the selector with its parent
        if not self.is_defunct:
            error = ConnectionShutdown(f"Connection to {self.endpoint} was closed")
            self.error_all_requests(error)
            if not self.connected_event.is_set():
                self.last_error = error
                self.connected_event.set()

    def _watch(self) -> None:
        if not self.is_closed:
            self._portal.loop.add_reader(self._socket.fileno(), self._read)

    def _end(self) -> None:
        fd, loop = self._socket.fileno(), self._portal.loop
        if fd >= 0:
            loop.remove_reader(fd)
            loop.remove_writer(fd)
            self._socket.close()

    def _read(self) -> None:
        """Read once: what else is there waits for the other work of the loop."""
        try:
            found = self._socket.recv(self.in_buffer_size)
        except _LATER:
            return
        except OSError as error:
            self.defunct(error)
            return
        if found:
            self._iobuf.write(found)
            self.process_io_buffer()
        else:
            self.close()

    def _write(self) -> None:
        """Write for as long as the socket takes it."""
        unsent = self._unsent
        try:
            while unsent and not self.is_closed:
                data = unsent[0]
                sent = self._socket.send(data[: self.out_buffer_size])
                if sent == len(data):
                    unsent.popleft()
                else:
                    unsent[0] = data[sent:]
        except _LATER:
            if not self._waits_for_room:
                self._waits_for_room = True
                self._portal.loop.add_writer(self._socket.fileno(), self._write)
            return
        except OSError as error:
            self.defunct(error)
            return
        if self._waits_for_room and not self.is_closed:
            self._waits_for_room = False
            self._portal.loop.remove_writer(self._socket.fileno())


class Timer:
    """A call at a time, in the event loop, unless it is cancelled before."""

    def __init__(self, seconds: float, call: Callable[[], object]) -> None:
        self._call: Callable[[], object] | None = call
        self._portal = portal()
        self._handle: asyncio.TimerHandle | None = None
        _soon(self._portal, self._begin, self._portal.loop.time() + seconds)

    def cancel(self) -> None:
        """Do not call."""
        self._call = None
        if self._handle is not None and self._portal.is_here:
            self._handle.cancel()

    def _begin(self, at: float) -> None:
        if self._call is not None:
            self._handle = self._portal.loop.call_at(at, self._end)

    def _end(self) -> None:
        if self._call is not None:
            self._call()

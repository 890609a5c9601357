"""`Entrance` says who gets in.

Connections are counted from the moment the system hands them over to their end. So a TLS handshake
is a connection, too. What is counted is the open file of each connection, and that ends with the
connection, however it ends.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from uvicorn.middleware.proxy_headers import _TrustedHosts

from cassieq_spark import metrics
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.hosts import address_of, network_of
from cassieq_spark.model.shares import Holding, Lines, Shares
from cassieq_spark.server.settings import GatewaySettings

Make = Callable[["Arrival"], Coroutine[Any, Any, None]]
"""Makes a connection of one that has arrived."""


BACKLOG: Final = 2_048
"""The number of connections that the system keeps before they are accepted."""

TOLD: Final = 64
"""The number of connections above the limit that may be told so at a time; further ones are closed.
Without a bound of its own a flood of them would use up the files of the process."""

OTHER_FILES: Final = 256
"""Files that a gateway opens beside its connections: those to Cassandra, logs, modules."""

ACCEPTED: Final = 64
"""The number of connections that are taken from the system in one turn of the event loop. To take
one, and to close it if there are too many, costs some 30 us."""

LET_IN: Final = 4
"""The number of those that are made in one turn. One costs ten times as much, and far more with
TLS."""

TURN_BYTES: Final = 32_768
"""The most that is read of a connection before others have their turn. What costs most is a body in
chunks of one byte: 8 ms. Asyncio reads 256 KiB, and all others waited for 62 ms."""

NETWORKS: Final = 4_096
"""The number of addresses whose party is remembered, as to find it takes as long as to accept."""

AGAIN_S: Final = 1.0
"""The pause after the system had no file or memory for a connection, as asyncio has it: else the
loop would be called in each turn. It refuses nobody: the system keeps who waits."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A connection that is counted and not made yet.

    Attributes:
        who: The party that it is counted for; None: it speaks for many.
        is_refused: It is let in only to be told that there are too many.
    """

    connection: socket.socket
    who: str | None
    is_refused: bool


class Entrance:
    """The connections of one gateway, shared by address.

    **The rule.** The system has one queue for the new connections of all addresses, and a client
    that finds it full waits for seconds. So each turn of the event loop takes many connections from
    it at little cost: it closes those above the share of their address, and the others wait, each
    address in a line of its own. The lines have their turns, and a few connections of them are made
    in each turn of the loop. So an address waits for its own connections, and for one of each other
    address for each of them.

    Addresses of proxies whose headers are trusted (``FORWARDED_ALLOW_IPS``; loopback by default)
    have no share: they speak for many. A proxy has limits of its own for each client.

    Attributes:
        memory: The budget of bytes of all connections.
    """

    def __init__(self, settings: GatewaySettings, trusted: str | list[str]) -> None:
        """Prepare.

        Args:
            trusted: As uvicorn has it: addresses and networks, or ``*``.
        """
        self._connections = Shares(settings.max_connections)
        self._told = Shares(TOLD)
        self.memory = Shares(settings.memory_bytes)
        # As uvicorn reads it, so that one list says which proxies are trusted.
        self._trusted = _TrustedHosts(trusted)
        self._who = lru_cache(NETWORKS)(self._party)
        self._is_tls = settings.tls_cert is not None
        self._arrived: Lines[Arrival] = Lines()
        self._make: Make
        self._making: set[asyncio.Task[None]] = set()

    def open(self, listening: Iterable[socket.socket], make: Make) -> None:
        """Take the connections of sockets that listen, until `close`."""
        self._make = make
        for one in listening:
            one.setblocking(False)
            one.listen(BACKLOG)
            self._watch(one)

    def close(self, listening: Iterable[socket.socket]) -> None:
        """Let nobody in any more, nor those who wait for their turn. It closes no socket itself."""
        for one in listening:
            asyncio.get_running_loop().remove_reader(one)
        waiting, self._arrived = self._arrived, Lines()
        for arrival in waiting:
            arrival.connection.close()

    def outlived(self, who: str | None, request: Holding) -> None:
        """Count a request whose client has gone as a connection, until the request has ended.

        Else whoever sends requests and does not wait for them has any number under way.
        """
        if not request.is_over:
            self._connections.change(who, 1)
            request.on_end = lambda: self._connections.change(who, -1)

    def _watch(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        is_letting_in = bool(self._arrived)
        try:
            for _ in range(ACCEPTED):
                connection, address = listening.accept()
                self._count(connection, address[0])
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError as error:  # of files or memory; the system would call again at once
            loop = asyncio.get_running_loop()
            loop.call_exception_handler({"message": "cannot accept", "exception": error})
            loop.remove_reader(listening)
            loop.call_later(AGAIN_S, self._watch, listening)
        if not is_letting_in:
            self._let_in()

    def _count(self, connection: socket.socket, address: str) -> None:
        """Let a new connection wait for its turn, or close it."""
        who = self._who(address)
        is_refused = not self._connections.admits(who)
        # A handshake of TLS costs more than what it would be refused for.
        if is_refused and (self._is_tls or not self._told.admits(who)):
            metrics.HTTP_REFUSED.inc("503")
            connection.close()
            return
        # Python leaves the protocol out, and asyncio looks at it before it sets TCP_NODELAY.
        # Without that, a body waits until the client has confirmed the headers: 40 ms.
        counted = _Counted(
            connection.family, connection.type, socket.IPPROTO_TCP, fileno=connection.detach()
        )
        shares = self._told if is_refused else self._connections
        shares.change(who, 1)
        counted.on_close = partial(shares.change, who, -1)
        self._arrived.add(who, Arrival(counted, who, is_refused))

    def _let_in(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(LET_IN):
            found = self._arrived.next(lambda _: True)
            if found is None:
                return
            task = loop.create_task(self._make(found[1]))
            self._making.add(task)  # the loop itself would not keep it
            task.add_done_callback(self._making.discard)
        if self._arrived:
            loop.call_soon(self._let_in)

    def _party(self, address: str) -> str | None:
        """The party that connections from an address are counted for."""
        if address in self._trusted or str(address_of(address)) in self._trusted:
            return None
        return network_of(address)


class _Counted(socket.socket):
    """A connection that says when it ends, and hands over little at a time."""

    on_close: Callable[[], None] | None = None

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Take what has come, so far as one turn of the event loop may parse it."""
        return super().recv(min(size, TURN_BYTES), flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Read as `recv` does: asyncio calls this one with TLS."""
        return super().recv_into(buffer, min(nbytes or len(buffer), TURN_BYTES), flags)

    def close(self) -> None:
        """Close it; its end is noted once."""
        on_close, self.on_close = self.on_close, None
        super().close()
        if on_close is not None:
            on_close()


def reserve_files(connections: int) -> None:
    """Let this process open as many files as its connections need.

    Raises:
        OptionInvalid: The system allows fewer. Beyond them it would accept nobody, without a word.
    """
    needed = connections + TOLD + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            most = hard - TOLD - OTHER_FILES
            smaller = f", or say --max-connections {most}" if most > 0 else ""
            raise OptionInvalid(
                f"--max-connections {connections:,} needs {needed:,} open files, and this process "
                f"may have {hard:,}. Raise its limit (ulimit -Hn, or LimitNOFILE= of systemd)"
                f"{smaller}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))

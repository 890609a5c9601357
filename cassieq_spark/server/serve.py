"""Run a gateway until it is told to end; SIGTERM drains it.

`Entrance` says who gets in: connections are counted from the moment the system hands them over to
their end. So a TLS handshake is a connection, too. What is counted is the open file of each
connection, and that ends with the connection, however it ends.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
import socket
import sys
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from math import inf
from typing import Any, Final

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.middleware.proxy_headers import _TrustedHosts

from cassieq_spark import metrics
from cassieq_spark.accounts.keys import MasterKey
from cassieq_spark.client import Client
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.exporter.listen import cannot_listen, listening
from cassieq_spark.model.hosts import address_of, network_of
from cassieq_spark.model.shares import Holding, Lines, Shares
from cassieq_spark.server.app import Gateway
from cassieq_spark.server.connection import Connection
from cassieq_spark.server.rest.door import described
from cassieq_spark.server.settings import GatewaySettings
from cassieq_spark.server.ui.page import load_templates

Make = Callable[["Arrival"], Coroutine[Any, Any, None]]
"""Makes a connection of one that has arrived."""


# --- who gets in ----------------------------------------------------------------------------------

BACKLOG: Final = 2_048
"""How many connections the system keeps that were not accepted yet."""

TOLD: Final = 64
"""How many connections above the limit may be told so at a time; further ones are closed. Without
a bound of its own a flood of them would use up the files of the process."""

OTHER_FILES: Final = 256
"""Files that a gateway opens beside its connections: those to Cassandra, logs, modules."""

ACCEPTED: Final = 64
"""How many connections are taken from the system in one turn of the event loop. To take one, and to
close it if there are too many, costs some 30 us."""

LET_IN: Final = 4
"""How many of those are made in one turn. One costs ten times as much, and far more with TLS."""

TURN_BYTES: Final = 32_768
"""How much is read of a connection before others have their turn. What costs most is a body in
chunks of one byte: 8 ms. Asyncio reads 256 KiB, and all others waited for 62 ms."""

NETWORKS: Final = 4_096
"""Of how many addresses the party is remembered, as to find it takes as long as to accept."""

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
        """As `recv`: asyncio reads so with TLS."""
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


# --- the server -----------------------------------------------------------------------------------

YOUNG: Final = 10_000
"""How many objects are made between two collections of the young ones. A look makes a thousand, and
they end with their requests, without a collection."""

HANDSHAKE_S: Final = 10.0
"""How long a TLS handshake may take; less if a request has less time to arrive."""

DRAIN_S: Final = 7
"""How long requests in flight may take after SIGTERM. The process ends within ten seconds."""


class GatewayServer(uvicorn.Server):
    """Uvicorn's server, which answers those who wait before it ends, and ends with exit code 0."""

    def __init__(self, gateway: Gateway, *, on_start: Callable[[str], None] | None = None) -> None:
        settings = gateway.settings
        config = uvicorn.Config(
            gateway.app(),
            host=settings.host,
            port=settings.port,
            http=Connection,
            loop="asyncio",  # `Entrance` counts what it accepts, and `Wire` knows its TLS
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=DRAIN_S,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        super().__init__(config)
        self._gateway = gateway
        self._entrance = Entrance(settings, config.forwarded_allow_ips)
        self._on_start = on_start
        gateway.on_failure = self._end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say where.

        Uvicorn's own would give a TLS handshake a minute, and would not count it.
        """
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        settings = self._gateway.settings
        # What asyncio sets aside for each connection with TLS, before any guard has seen it. Its
        # own 256 KiB would be over three times the memory for whoever holds many connections open.
        SSLProtocol.max_size = TURN_BYTES
        self._entrance.open(sockets or (), self._connect)
        self.servers = []
        self.started = True
        if self._on_start is not None and sockets:
            # The port may have been chosen by the system.
            port = sockets[0].getsockname()[1]
            shown = f"[{settings.host}]" if ":" in settings.host else settings.host
            self._on_start(f"{settings.scheme}://{shown}:{port}")

    async def _connect(self, arrival: Arrival) -> None:
        """Make the connection of a client that has been let in."""
        tls = self.config.ssl
        handshake_s = min(HANDSHAKE_S, self._gateway.settings.request_timeout_s)
        connection = Connection(self.config, self.server_state, self.lifespan.state)
        connection.settings, connection.entrance = self._gateway.settings, self._entrance
        connection.arrival = arrival
        with suppress(OSError):  # the client has gone, or does not speak TLS
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                arrival.connection,
                ssl=tls,
                ssl_handshake_timeout=handshake_s if tls else None,
                # To end TLS has the deadline of its connection, which closes it.
                ssl_shutdown_timeout=inf if tls else None,
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer everybody who waits, finish the requests in flight, and end."""
        self._entrance.close(sockets or ())
        self._gateway.backend.drain()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on SIGTERM and SIGINT, as a success: uvicorn would kill itself by the signal."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    def _end(self) -> None:
        self.should_exit = True


def serve(
    settings: GatewaySettings,
    open_client: Callable[[], Client],
    *,
    on_start: Callable[[str], None],
    on_metrics: Callable[[str], None],
    master_key: MasterKey | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        master_key: Decrypts the secrets of keys, if the settings say that accounts are checked.
        on_start: Called with the gateway's address once it listens.
        on_metrics: Called with the address of the metrics, if they have a port of their own.

    Raises:
        UsageError: The settings do not fit together.
        OptionInvalid: Nobody can listen there, the TLS files cannot be used, or the process may
            not open as many files as it needs.
        CassieqError: Cassandra cannot be used, and waiting would not help.
    """
    settings.check()
    reserve_files(settings.max_connections)
    # What the gateway has to say are its own events.
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    gateway = Gateway(settings, open_client, master_key)
    with ExitStack() as stack:
        if settings.metrics_port is not None:
            at = settings.metrics_host, settings.metrics_port
            on_metrics(stack.enter_context(listening(gateway.registry, *at, settings.host_names)))
        server = GatewayServer(gateway, on_start=on_start)
        sockets = [stack.enter_context(one) for one in _bound(settings.host, settings.port)]
        make_ahead()
        # The garbage collector leaves alone what stays: modules, routes, and the schema of REST.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
        server.run(sockets)
    if gateway.failure is not None:
        raise gateway.failure


def _bound(host: str, port: int) -> list[socket.socket]:
    """Bind a socket to each address of the host. Uvicorn would end the process without a word.

    Raises:
        OptionInvalid: Another program has the port, or the machine has no such address.
    """
    found: list[socket.socket] = []
    absent: OSError | None = None
    try:
        kinds = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((one[0], one[4]) for one in kinds):
            try:
                found.append(socket.create_server(address, family=family))
            except OSError as error:
                # "localhost" may also have an address of IPv6 where the machine has none.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                absent = error
        if not found and absent is not None:
            raise absent
    except OSError as error:
        for one in found:
            one.close()
        raise cannot_listen("requests", host, port, error) from error
    return found


def make_ahead() -> None:
    """Make what the first requests of a kind would make on the event loop, while others wait."""
    described()
    load_templates()

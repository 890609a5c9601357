"""Run a gateway until it is told to end; SIGTERM drains it."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import socket
import sys
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from typing import Final

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from cassieq_spark.accounts.keys import MasterKey
from cassieq_spark.client import Client
from cassieq_spark.exporter.listen import cannot_listen, listening, metrics
from cassieq_spark.server.app import Gateway
from cassieq_spark.server.connection import Connection
from cassieq_spark.server.entrance import TURN_BYTES, Arrival, Entrance, reserve_files
from cassieq_spark.server.rest.door import described
from cassieq_spark.server.settings import GatewaySettings
from cassieq_spark.server.ui.page import load_templates

# --- the server -----------------------------------------------------------------------------------

YOUNG: Final = 10_000
"""The number of objects that are made between two collections of the young ones. A look makes a
thousand, and they end with their requests, without a collection."""

HANDSHAKE_S: Final = 10.0
"""The time that a TLS handshake may take; less if a request has less time to arrive."""

DRAIN_S: Final = 7
"""The time that requests in flight may take after SIGTERM. The process ends within ten seconds."""


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
            make = metrics(gateway.registry)
            on_metrics(stack.enter_context(listening(make, *at, settings.host_names)))
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

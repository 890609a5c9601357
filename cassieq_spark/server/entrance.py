"""Who gets in: connections are counted from the moment the system hands them over to their end.

So a TLS handshake is a connection, too. What is counted is the open file of each connection, and
that ends with the connection, however it ends.
"""

from __future__ import annotations

import ipaddress
import resource
import socket
from typing import TYPE_CHECKING, Any, Final

from uvicorn.middleware.proxy_headers import _TrustedHosts

from cassieq_spark import metrics
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.model.shares import Holding
    from cassieq_spark.server.settings import GatewaySettings

TOLD: Final = 64
"""How many connections above the limit may be told so at a time; further ones are closed. Without
a bound of its own a flood of them would use up the files of the process."""

OTHER_FILES: Final = 256
"""Files that a gateway opens beside its connections: those to Cassandra, logs, modules."""

IPV6_HOST: Final = 64
"""One machine has all addresses of such a network of IPv6."""


class Entrance:
    """The connections of one gateway, shared by address.

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
        self.memory = Shares(settings.memory_bytes)
        # As uvicorn reads it, so that one list says which proxies are trusted.
        self._trusted = _TrustedHosts(trusted)
        self._is_tls = settings.tls_cert is not None
        self._told: set[int] = set()

    def who(self, address: str) -> str | None:
        """The party that connections from an address are counted for; None: it has no share."""
        if address in self._trusted or str(_parsed(address)) in self._trusted:
            return None
        return network_of(address)

    def is_refused(self, connection: Any) -> bool:
        """Whether a connection was let in only to be told that there are too many."""
        return connection.fileno() in self._told

    def outlived(self, who: str | None, request: Holding) -> None:
        """Count a request whose client has gone as a connection, until the request has ended.

        Else whoever sends requests and does not wait for them has any number under way.
        """
        if not request.is_over:
            self._connections.change(who, 1)
            request.on_end = lambda: self._connections.change(who, -1)

    def enter(self, connection: socket.socket, address: str) -> socket.socket:
        """Count a new connection.

        Raises:
            ConnectionAbortedError: There are too many; it is closed.
        """
        who = self.who(address)
        is_admitted = self._connections.admits(who)
        if not is_admitted and (self._is_tls or len(self._told) >= TOLD):
            # A handshake costs more than what it would be refused for.
            metrics.HTTP_REFUSED.inc("503")
            connection.close()
            raise ConnectionAbortedError
        counted = _Counted(
            connection.family, connection.type, connection.proto, fileno=connection.detach()
        )
        number = counted.fileno()
        if is_admitted:
            self._connections.change(who, 1)
            counted.on_close = lambda: self._connections.change(who, -1)
        else:
            self._told.add(number)
            counted.on_close = lambda: self._told.discard(number)
        return counted


def network_of(address: str) -> str:
    """The addresses that one machine has, as a name: all of a network of IPv6."""
    found = _parsed(address)
    if found is None:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, IPV6_HOST), strict=False))
    return str(found)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address without its zone; of IPv4 if it is one; None: it is none."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped


class _Counted(socket.socket):
    """A connection that says when it ends."""

    on_close: Callable[[], None] | None = None

    def close(self) -> None:
        """Close it; its end is noted once."""
        on_close, self.on_close = self.on_close, None
        super().close()
        if on_close is not None:
            on_close()


class Listener(socket.socket):
    """A socket that listens, and counts what it accepts."""

    entrance: Entrance

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            BlockingIOError: There is none.
            ConnectionAbortedError: It was refused.
        """
        connection, address = super().accept()
        return self.entrance.enter(connection, address[0]), address


def listener(bound: socket.socket, entrance: Entrance) -> Listener:
    """A socket that is bound already, whose connections are counted."""
    # Python leaves the protocol out, and asyncio looks at it before it sets TCP_NODELAY. Without
    # that, a body waits until the client has confirmed the headers: 40 ms.
    found = Listener(bound.family, bound.type, socket.IPPROTO_TCP, fileno=bound.detach())
    found.entrance = entrance
    return found


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

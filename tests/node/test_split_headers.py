"""Protocol 5: a read may end within the header of a segment. The driver loses what it has read.

Where a read ends is up to the network. Here every answer of Cassandra comes in two parts, the first
of which ends within the header.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import pytest
from cassandra import ProtocolVersion
from cassandra.cluster import Cluster, NoHostAvailable

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import new_uuid
from tests.fixtures.cassandra import KEYSPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.testing import EmbeddedCassandra

CUT: Final = 3
"""Bytes of the first part; a header has six."""

APART_S: Final = 0.002
"""Enough for the client to read the first part alone."""


@pytest.fixture
def cutting(cassandra: EmbeddedCassandra) -> Iterator[int]:
    """The port of a proxy of the node: what it passes on to clients comes in two parts."""
    host, port = cassandra.contact_points.split(":")
    with _proxy((host, int(port))) as proxy_port:
        yield proxy_port


def test_the_driver_alone_does_not_even_connect(cutting: int) -> None:
    """If this fails, the driver was mended: `store.driver.Connection` need not do it any more."""
    cluster = Cluster(
        ["127.0.0.1"], port=cutting, protocol_version=ProtocolVersion.V5, connect_timeout=5
    )
    try:
        with pytest.raises(NoHostAvailable, match="CRC mismatch"):
            cluster.connect()
    finally:
        cluster.shutdown()


def test_messages_of_any_size_go_through(client: cassieq.Client, cutting: int) -> None:
    bodies = [b"small", b"x" * 200_000, b"y" * 1_000_000]  # up to eight segments an answer
    name = f"cut_{new_uuid().hex[:12]}"
    client.create_queue(name)
    with cassieq.connect(f"127.0.0.1:{cutting}", keyspace=KEYSPACE) as through:
        queue = through.queue(name)
        queue.put_many(bodies)
        messages = queue.get(10)
        assert bodies == [one.body for one in messages]
        queue.ack(messages)
        assert 0 == queue.stats().in_flight
    client.delete_queue(name)


@contextmanager
def _proxy(node: tuple[str, int]) -> Iterator[int]:
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args)  # type: ignore[arg-type]
        threads.append(thread)
        thread.start()

    def accept(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                server = socket.create_connection(node)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sockets.extend((client, server))
                start(_pass, client, server, None)
                start(_pass, server, client, CUT)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        sockets.append(listening)
        start(accept, listening)
        try:
            yield listening.getsockname()[1]
        finally:
            for one in sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(10)
            for one in sockets:
                one.close()


def _pass(source: socket.socket, sink: socket.socket, cut: int | None) -> None:
    """Pass bytes on until one side closes. What Cassandra sends at once begins with a header."""
    with suppress(OSError):
        while data := source.recv(1 << 20):
            sink.sendall(data[:cut])
            if cut is not None:
                SystemClock().wait(APART_S)
                sink.sendall(data[cut:])
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)

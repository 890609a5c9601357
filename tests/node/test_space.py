"""What is done leaves nothing: a million messages, and neither space nor tombstones behind (I9).

On a node of its own, whose tables hold nothing else, with JMX for nodetool: to wait for compaction
would be to wait for its mood.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.embedded.config import EXPORTS, OPENS
from cassieq_spark.embedded.machine import choose_ports
from cassieq_spark.embedded.software import CASSANDRA, find_java, jars_of
from cassieq_spark.queue.fetch import fetch
from cassieq_spark.store import portal
from cassieq_spark.testing import EmbeddedCassandra
from tests.fixtures.queues import Door, door_of
from tests.fixtures.transports import driver_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGES = 1_000_000
TOGETHER = 50_000
BODY = bytes(range(96))

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


class Node:
    """A node, its directory, and nodetool for it."""

    def __init__(self, cassandra: EmbeddedCassandra, directory: Path, jmx_port: int) -> None:
        self.cassandra = cassandra
        self._directory = directory
        self._jmx_port = jmx_port

    def nodetool(self, *words: str) -> None:
        java = find_java()
        subprocess.run(
            [
                str(java.executable),
                "-Xmx128m",
                # What Java 17 hides from Cassandra.
                *(f"--add-exports={name}=ALL-UNNAMED" for name in EXPORTS),
                *(f"--add-opens={name}=ALL-UNNAMED" for name in OPENS),
                "-cp",
                f"{jars_of(CASSANDRA, java)}/*",
                "org.apache.cassandra.tools.NodeTool",
                "-p",
                str(self._jmx_port),
                *words,
            ],
            check=True,
            capture_output=True,
            timeout=300,
        )

    def stored_bytes(self, keyspace: str) -> int:
        """Of all data files of a keyspace, whatever they hold."""
        return sum(
            file.stat().st_size
            for directory in self._directory.glob(f"**/data/{keyspace}")
            for file in directory.rglob("*-Data.db")
        )


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    jmx_port = choose_ports(("127.0.0.1",)).native
    # The JVM's own variable: an embedded node has no JMX port otherwise.
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"-Dcassandra.jmx.local.port={jmx_port}")
    with EmbeddedCassandra(data_dir=tmp_path / "node") as cassandra:
        monkeypatch.delenv("JDK_JAVA_OPTIONS")
        yield Node(cassandra, tmp_path / "node", jmx_port)


@pytest.fixture
def door(node: Node) -> Iterator[Door]:
    contact_points = node.cassandra.contact_points
    with cassieq.connect(contact_points, keyspace="space") as client:
        client.bootstrap()
        yield door_of(client, "mail", bucket_size=TOGETHER)


@pytest.mark.invariant("I9")
def test_a_million_messages_that_are_done_leave_neither_space_nor_tombstones_to_read(
    node: Node, door: Door
) -> None:
    for number in range(MESSAGES // TOGETHER):
        door.queue.put_many([b"%d" % number + BODY] * TOGETHER)
    node.nodetool("flush", "space")
    peak = node.stored_bytes("space")
    assert door.queue.stats().visible == MESSAGES

    reader, seen = door.reader(), 0
    while claimed := portal.run(reader.get(TOGETHER)):
        plan = [one.planned for one in claimed]
        seen += sum(
            found.chunk.count
            for found in portal.iterate(fetch(door.store, door.lane.queue, door.lane.fixed, plan))
        )
        door.ack(claimed)
    assert seen == MESSAGES
    door.clock.advance(60)
    while any(one.dropped for one in door.client.repair("mail").queues):
        door.clock.advance(60)
    assert [] == door.queue.get()

    for _ in range(2):
        node.nodetool("flush", "space")
        node.nodetool("compact", "space")
    left = node.stored_bytes("space")
    assert left < peak / 100, f"{left:,} of {peak:,} bytes"
    most = {
        row.table_name: row.max
        for row in driver_of(door.session).session.execute(
            "SELECT keyspace_name, table_name, max FROM system_views.tombstones_per_read"
        )
        if row.keyspace_name == "space"
    }
    assert {"message", "bucket", "pointer", "expiry"} <= most.keys()
    assert {} == {table: count for table, count in most.items() if count > 100}

"""A ring of three forms, outlives the loss of a node, and takes it back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from cassandra import ConsistencyLevel, Unavailable
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import DCAwareRoundRobinPolicy
from cassandra.query import SimpleStatement

from cassieq_spark.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassandra.cluster import Session

    from cassieq_spark.testing import EmbeddedCassandra

pytestmark = pytest.mark.fault


@contextlib.contextmanager
def ring_session(ring: EmbeddedCassandra) -> Iterator[Session]:
    profile = ExecutionProfile(
        load_balancing_policy=DCAwareRoundRobinPolicy(ring.datacenter), request_timeout=60
    )
    cluster = Cluster(
        [node.address for node in ring.nodes],
        port=ring.nodes[0].port,
        protocol_version=5,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    try:
        session = cluster.connect()
        session.execute(
            "CREATE KEYSPACE IF NOT EXISTS ring_test WITH replication = "
            "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"
        )
        session.execute("CREATE TABLE IF NOT EXISTS ring_test.rows (key int PRIMARY KEY)")
        yield session
    finally:
        cluster.shutdown()


def insert_if_absent(session: Session, key: int) -> bool:
    statement = SimpleStatement(
        "INSERT INTO ring_test.rows (key) VALUES (%s) IF NOT EXISTS",
        consistency_level=ConsistencyLevel.QUORUM,
        serial_consistency_level=ConsistencyLevel.SERIAL,
    )
    return bool(session.execute(statement, (key,)).one().applied)


def keys(session: Session, level: int) -> list[int]:
    statement = SimpleStatement("SELECT key FROM ring_test.rows", consistency_level=level)
    return sorted(row.key for row in session.execute(statement))


def test_every_node_of_a_started_ring_sees_every_other_up(ring: EmbeddedCassandra) -> None:
    assert ["127.0.0.1", "127.0.0.2", "127.0.0.3"] == [node.address for node in ring.nodes]
    blind = [
        (node.address, other.address)
        for node in ring.nodes
        for other in ring.nodes
        if other is not node and not node.sees_up(other)
    ]
    assert [] == blind


def test_ring_decides_by_quorum_without_a_killed_node_and_takes_it_back(
    ring: EmbeddedCassandra,
) -> None:
    lost, survivors = ring.nodes[2], ring.nodes[:2]
    with ring_session(ring) as session:
        assert insert_if_absent(session, 1)
        lost.kill()
        wait_until(
            lambda: not any(node.sees_up(lost) for node in survivors),
            deadline_s=60,
            describe="the survivors to notice the loss",
        )
        assert insert_if_absent(session, 2)
        assert not insert_if_absent(session, 2)
        with pytest.raises(Unavailable):
            keys(session, ConsistencyLevel.ALL)

        lost.start()

        assert all(node.sees_up(lost) and lost.sees_up(node) for node in survivors)
        assert keys(session, ConsistencyLevel.ALL) == [1, 2]


def test_ring_restarts_on_its_ports_with_its_data(ring: EmbeddedCassandra) -> None:
    contact_points = ring.contact_points
    with ring_session(ring) as session:
        insert_if_absent(session, 3)
    ring.restart()
    assert contact_points == ring.contact_points
    with ring_session(ring) as session:
        assert 3 in keys(session, ConsistencyLevel.ALL)

"""Three replicas: a message that one of them has is whole or not there, whoever is down then."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from cassandra import ConsistencyLevel

import cassieq_spark as cassieq
from cassieq_spark.errors import StoreError
from cassieq_spark.model.bucket import Status
from cassieq_spark.store import cas, portal, session, statements
from cassieq_spark.testing import wait_until
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.queues import door_of, payload
from tests.fixtures.transports import driver_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cassieq_spark.embedded.node import Node
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.queues import Door

BODY = b"all of it"


@contextmanager
def door_on(
    ring: EmbeddedCassandra, name: str, *, nodes: Sequence[Node] | None = None
) -> Iterator[Door]:
    """A client's way to a queue with three copies; by way of some nodes, or of all."""
    points = ",".join(node.contact_point for node in nodes or ring.nodes)
    with cassieq.connect(points, keyspace=KEYSPACE, datacenter=ring.datacenter) as client:
        if nodes is None:
            client.bootstrap({"class": "NetworkTopologyStrategy", ring.datacenter: 3})
        yield door_of(client, name)


def take_down(node: Node, ring: EmbeddedCassandra) -> None:
    others = [other for other in ring.nodes if other is not node and other.is_running]
    node.kill()
    wait_until(
        lambda: not any(other.sees_up(node) for other in others),
        deadline_s=150,
        describe=f"the others to notice that {node.address} is down",
    )


def put_that_died_half_way(ring: EmbeddedCassandra, name: str) -> int:
    """The bucket of a message that the first node alone has; the third is down then."""
    _, second, third = ring.nodes
    with door_on(ring, name) as door:
        bucket = door.reserve()
        second.kill()
        third.kill()
        _write_at_one(door, bucket)
        ring.start()
        take_down(third, ring)
    return bucket


@pytest.mark.invariant("I5")
def test_p4_a_seal_that_finds_a_message_on_one_replica_leaves_it_whole_on_two(
    ring: EmbeddedCassandra, queue_name: str
) -> None:
    """A put that died half-way: one replica has it. The manifest names it, so it must stay.

    Read repair writes back only what was selected: a scan of the keys alone would leave the second
    replica without the payload, and the third read, without the first replica, would find that.
    """
    first, second, third = ring.nodes
    bucket = put_that_died_half_way(ring, queue_name)
    with door_on(ring, queue_name, nodes=(first, second)) as door:
        door.clock.advance(60)
        claimed = portal.run(door.reader(visibility_s=3_600).get(1))
        assert [BODY] == door.bodies(claimed)
        assert Status.SEALED is door.value(bucket).status
    third.start()
    take_down(first, ring)
    with door_on(ring, queue_name, nodes=(second, third)) as door:
        assert [BODY] == door.bodies(claimed)
        door.ack(claimed)
        assert Status.DRAINED is door.value(bucket).status


@pytest.mark.invariant("I5")
def test_t10_a_full_pass_that_lists_all_partitions_tears_no_message(
    ring: EmbeddedCassandra, queue_name: str
) -> None:
    """A put that died half-way again; before its seal, `repair --full` asks which buckets hold any.

    That list selects keys alone; the read repair of a ``SELECT DISTINCT`` writes the whole row.
    """
    first, second, third = ring.nodes
    bucket = put_that_died_half_way(ring, queue_name)
    with door_on(ring, queue_name, nodes=(first, second)) as door:
        for _ in range(10):  # whichever of them coordinates
            list(portal.run(door.store.everything.messages()))
            list(portal.run(door.store.everything.buckets()))
            list(portal.run(door.store.everything.monotons()))
    third.start()
    take_down(first, ring)
    with door_on(ring, queue_name, nodes=(second, third)) as door:
        whole = portal.run(door.lane.messages.scan(bucket))
        assert all(payload(BODY) == chunk.payload for chunk in whole)
        (stored,) = (
            driver_of(door.session)
            .session.execute(
                f"SELECT count(*) FROM {KEYSPACE}.message WHERE lane = %s AND bucket = %s",  # noqa: S608
                (door.lane.lane_id, bucket),
            )
            .one()
        )
        assert len(whole) == stored
    first.start()


@pytest.mark.invariant("I1")
def test_a_node_may_go_and_come_back_between_any_two_steps(
    ring: EmbeddedCassandra, queue_name: str
) -> None:
    with door_on(ring, queue_name) as door:
        door.put(b"before")
        take_down(ring.nodes[0], ring)
        door.put_batch(0, b"after")
        reader, claimed = door.reader(visibility_s=3_600), []
        while not {b"before", b"after"} <= set(door.bodies(claimed)):
            claimed += portal.run(reader.get(10))
        assert 2 == len(door.bodies(claimed))
        ring.nodes[0].start()
        door.ack(claimed)
        assert [] == door.drain()
        stats = door.queue.stats()
        assert (0, 0) == (stats.visible, stats.in_flight)


@pytest.mark.sample
@pytest.mark.invariant("I7")
def test_without_a_quorum_a_batch_ends_in_an_error_and_nothing_of_it_is_seen(
    ring: EmbeddedCassandra, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with door_on(ring, queue_name) as door:
        door.put(b"there before")
        who = door.identity()
        result = door.task(who, 0, b"in doubt")
        for node in ring.nodes[1:]:
            node.kill()
        for module in (cas, session):
            monkeypatch.setattr(module, "DEADLINE_S", 5.0)
        with pytest.raises(StoreError):
            door.commit(who, 0, result)
        with pytest.raises(StoreError):
            portal.run(door.reader().get(1))
        monkeypatch.undo()
        ring.start()
        found = wait_until(door.drain, deadline_s=60, describe="the queue to answer again")
        # The commit may have happened or not; its retry knows.
        if b"in doubt" not in found:
            door.commit(who, 0, result)
            found += door.drain()
        assert [b"in doubt", b"there before"] == sorted(found)


def _write_at_one(door: Door, bucket: int) -> None:
    """Behind the back of our own consistency levels, to the only replica that is up."""
    driver = driver_of(door.session).session
    write = driver.prepare(statements.WRITE_MESSAGE.cql.format(ks=KEYSPACE))
    write.consistency_level = ConsistencyLevel.ONE
    now_us = door.lane.clock.now_us()
    driver.execute(write, (door.lane.lane_id, bucket, 0, 0, 1, 1, payload(BODY), None, now_us))

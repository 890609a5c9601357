"""A ring with one node whose clock is wrong: no client's time moves, and nothing waits for it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.clock import ClusterClock, SystemClock
from cassieq_spark.model.lease import EXPIRY_MARGIN_US
from cassieq_spark.model.pointer import minute_of
from cassieq_spark.store import portal
from cassieq_spark.testing import EmbeddedCassandra, wait_until
from tests.fixtures.cassandra import KEYSPACE, await_peers
from tests.fixtures.node_clocks import LIBRARY, needs_libfaketime, own_clock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from cassieq_spark.clock import Answers, Ask, Clock

HOUR_S = 3_600.0
WRONG_NODE = 3


@pytest.fixture(scope="module")
def offset_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """How far the third node's clock is ahead: it looks there once a second."""
    file = tmp_path_factory.mktemp("clock") / "offset"
    file.write_text("+0s\n")
    return file


@pytest.fixture(scope="module")
def clocked_ring(offset_file: Path) -> Iterator[EmbeddedCassandra]:
    """Three nodes; the third has a clock of its own where libfaketime is installed."""
    environment = {} if LIBRARY is None else {WRONG_NODE: own_clock(offset_file)}
    with EmbeddedCassandra(nodes=3, environment=environment, start_timeout_s=400) as ring:
        await_peers(ring)
        with cassieq.connect(ring.contact_points, keyspace=KEYSPACE) as client:
            client.bootstrap({"class": "NetworkTopologyStrategy", ring.datacenter: 3})
        yield ring
        ring.kill()


@contextmanager
def connected(ring: EmbeddedCassandra, *, ahead_s: float = 0.0) -> Iterator[cassieq.Client]:
    """A client that is told by the third node that it is so much later."""
    with cassieq.connect(ring.contact_points, keyspace=KEYSPACE) as client:
        if ahead_s:
            told = falsified(client._session.node_clocks, ring.nodes[2].address, ahead_s)
            clock = ClusterClock(SystemClock(), told, spawn=portal.start)
            portal.run(clock.settle())
            client._store.clock = client._session.clock = clock
        yield client


def falsified(ask: Ask, address: str, ahead_s: float) -> Ask:
    async def asked(base: Clock, but: Collection[str]) -> Answers:
        answers = await ask(base, but)
        readings = (
            replace(one, there_us=one.there_us + int(ahead_s * 1e6)) if one.node == address else one
            for one in answers.readings
        )
        return replace(answers, readings=tuple(readings))

    return asked


def is_behind_its_queue(client: cassieq.Client, name: str) -> bool:
    """The time pointer is not ahead of now."""
    lane = client.queue(name)._lane
    pointers = portal.run(client._store.lane(lane.lane_id).pointers.read())
    return pointers.time <= minute_of(client._store.clock.now_us())


def assert_together(one: cassieq.Client, other: cassieq.Client) -> None:
    """Their times differ by less than a re-claim leaves."""
    one._store.clock.now_us()  # the first measurement takes a while
    other._store.clock.now_us()
    before_us, theirs_us, after_us = (client._store.clock.now_us() for client in (one, other, one))
    assert before_us - EXPIRY_MARGIN_US < theirs_us < after_us + EXPIRY_MARGIN_US


def live_through(ring: EmbeddedCassandra, name: str, **connection: Any) -> None:
    """Two clients on a queue: leases hold, run out and come back in their time; all is acked."""
    with connected(ring) as one, connected(ring, **connection) as other:
        queue = one.create_queue(name, bucket_size=20, visibility_timeout=30)
        theirs = other.queue(name)
        assert_together(one, other)

        ids = set(queue.put_many([b"%d" % number for number in range(60)]))
        held = theirs.get(20)
        rest: list[cassieq.Delivery] = []
        while messages := queue.get(60):
            rest += messages
        assert ids == {message.message_id for message in (*held, *rest)}
        assert 60 == len(held) + len(rest)
        assert [] == queue.get() == theirs.get()

        theirs.release(held[:10])
        queue.release(rest[:10], delay=1)
        back: set[str] = set()

        def all_are_back() -> bool:
            messages = [*queue.get(20), *theirs.get(20)]
            queue.ack(messages)
            back.update(message.message_id for message in messages)
            return len(back) == 20

        wait_until(all_are_back, deadline_s=60, describe=lambda: f"{len(back)} are back")
        theirs.ack(held[10:])
        queue.ack(rest[10:])
        late = queue.put(b"late", delay=1)
        wait_until(lambda: theirs.stats().visible == 1, deadline_s=60, describe=theirs.stats)
        (message,) = theirs.get(visibility_timeout=1)
        assert late == message.message_id
        wait_until(lambda: bool(queue.get()), deadline_s=60, describe=queue.stats)

        assert is_behind_its_queue(one, name)
        assert is_behind_its_queue(other, name)
        assert [] == one.repair(name).queues[0].problems


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_t7_a_node_that_tells_a_wrong_time_moves_no_client(
    clocked_ring: EmbeddedCassandra, queue_name: str, ahead_s: float
) -> None:
    live_through(clocked_ring, queue_name, ahead_s=ahead_s)


def test_t7_each_node_is_asked_for_its_own_time(clocked_ring: EmbeddedCassandra) -> None:
    addresses = {node.address for node in clocked_ring.nodes}
    clock = SystemClock()
    with connected(clocked_ring) as client:
        node_clocks = client._session.node_clocks

        def ask(base: Clock, but: Collection[str]) -> Answers:
            return portal.run(node_clocks(base, but))

        wait_until(lambda: not ask(clock, ()).silent, describe="pools to all nodes")
        answers = ask(clock, ())
        assert addresses == {one.node for one in answers.readings}
        assert {clocked_ring.nodes[0].address} == addresses - {
            one.node for one in ask(clock, {clocked_ring.nodes[0].address}).readings
        }
        paused = clocked_ring.nodes[1]
        paused.pause()
        try:
            # A JVM's threads stop one by one, some of them after they have answered.
            wait_until(
                lambda: ask(clock, ()).silent == {paused.address},
                describe="the paused node, and no other, to be silent",
            )
        finally:
            paused.resume()


@pytest.mark.invariant("I2")
@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_t7_a_running_client_is_not_moved_by_a_wrong_node_while_another_is_away(
    clocked_ring: EmbeddedCassandra, ahead_s: float
) -> None:
    with connected(clocked_ring) as right, connected(clocked_ring, ahead_s=ahead_s) as client:
        clock = client._store.clock
        assert isinstance(clock, ClusterClock)
        clock.now_us()
        assert clock._anchor is not None
        clock._anchor = replace(clock._anchor, due_s=0.0)  # a minute is over
        clocked_ring.nodes[0].pause()
        try:
            portal.run(clock.renew())
        finally:
            clocked_ring.nodes[0].resume()
        assert clock._anchor.due_s > 0
        assert_together(right, client)


@needs_libfaketime
@pytest.mark.invariant("I2")
@pytest.mark.parametrize("offset", ["+3600s", "-3600s"])
def test_t7_a_queue_works_on_a_ring_with_a_node_whose_clock_is_an_hour_wrong(
    clocked_ring: EmbeddedCassandra, offset_file: Path, queue_name: str, offset: str
) -> None:
    """Paxos takes its ballots, and plain writes their times, from that node's clock, too."""
    clock = SystemClock()
    offset_file.write_text(f"{offset}\n")
    try:
        with connected(clocked_ring) as client:
            wrong = {clocked_ring.nodes[2].address: int(offset.rstrip("s"))}

            def told() -> dict[str, int]:
                ask = client._session.node_clocks
                now_us = clock.now_us()
                found = {
                    one.node: round((one.there_us - now_us) / 1e6)
                    for one in portal.run(ask(clock, ())).readings
                }
                return {node: found[node] for node in wrong if node in found}

            wait_until(lambda: _near(told(), wrong), describe=lambda: str(told()))
        live_through(clocked_ring, queue_name)
    finally:
        offset_file.write_text("+0s\n")


def _near(told: dict[str, int], expected: dict[str, int]) -> bool:
    return told.keys() == expected.keys() and all(
        abs(told[node] - seconds) < 60 for node, seconds in expected.items()
    )

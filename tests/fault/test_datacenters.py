"""Two data centres on one keyspace: a queue is its home's, its life and its end, too [P21]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import StoreTimeout, StoreUnavailable, UsageError
from cassieq_spark.testing import EmbeddedCassandra, ManualClock, wait_until
from tests.fixtures.faults import FaultyStore
from tests.fixtures.queues import Crash, crash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EAST, WEST = "east", "west"
KEYSPACE = "cassieq_datacenters"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def centres() -> Iterator[EmbeddedCassandra]:
    quick = {"phi_convict_threshold": 5}  # the least there is: a killed node is soon noticed
    with EmbeddedCassandra(nodes=2, datacenters=(EAST, WEST), settings=quick) as both:
        yield both
        both.kill()


@pytest.fixture
def east(centres: EmbeddedCassandra) -> Iterator[cassieq.Client]:
    centres.start()  # whatever a test before this one did
    with cassieq.connect(centres.nodes[0].contact_point, keyspace=KEYSPACE) as client:
        # A node calls another one up before it knows where that is.
        wait_until(lambda: {EAST, WEST} == client._session.nodes().keys())
        client.bootstrap({"class": "NetworkTopologyStrategy", EAST: 1, WEST: 1})
        yield client


@pytest.fixture
def west(
    centres: EmbeddedCassandra,
    east: cassieq.Client,  # noqa: ARG001 - it has made the tables
) -> Iterator[cassieq.Client]:
    with cassieq.connect(centres.nodes[1].contact_point, keyspace=KEYSPACE) as client:
        yield client


def taken(queue: cassieq.Queue) -> list[bytes]:
    messages = queue.get(100)
    queue.ack(messages)
    return sorted(one.body for one in messages)


def test_p21_whoever_is_elsewhere_can_neither_use_nor_change_nor_end_a_queue(
    east: cassieq.Client, west: cassieq.Client, queue_name: str
) -> None:
    assert (EAST, WEST) == (east.datacenter, west.datacenter)
    queue = east.create_queue(queue_name, visibility_timeout=30)
    queue.put_many([b"a", b"b"])
    verbs: list[Callable[[], object]] = [
        lambda: west.queue(queue_name),
        lambda: west.create_queue(queue_name, visibility_timeout=30),
        lambda: west.alter_queue(queue_name, visibility_timeout=60),
        lambda: west.delete_queue(queue_name),
        lambda: west.repair(queue_name),
        lambda: west.verify(queue_name),
        lambda: west.redrive(queue_name),
        lambda: list(west.browse(queue_name)),
    ]
    for verb in verbs:
        with pytest.raises(
            UsageError, match=r"lives in data centre 'east', but this client is connected to"
        ):
            verb()
    with pytest.raises(UsageError, match=r"Choose one that lives where its queue does"):
        west.create_queue(f"{queue_name}.west", dead_letter_queue=queue_name)
    assert [b"a", b"b"] == taken(east.queue(queue_name))
    assert 30 == east.queue(queue_name).settings.visibility_timeout_s

    own = west.create_queue(f"{queue_name}.west")
    own.put(b"c")
    assert [b"c"] == taken(own)
    homes = {one.name: one.home_datacenter for one in east.queues()}
    assert {queue_name: EAST, own.name: WEST} == {name: homes[name] for name in homes}
    assert [queue_name] == [one.queue for one in east.repair().queues]
    assert [own.name] == [one.queue for one in west.repair().queues]
    own.delete()
    queue.delete()


@pytest.mark.invariant("I1")
def test_p21_a_deletion_that_was_cut_off_is_finished_at_home_only(
    east: cassieq.Client, west: cassieq.Client, queue_name: str
) -> None:
    """Elsewhere its repair pointer would be raised for a quorum that its puts do not ask."""
    east.create_queue(queue_name).put(b"a")
    faults = FaultyStore()
    faults.before("advance_pointer", crash)
    with faults.on(east._session), pytest.raises(Crash):
        east.delete_queue(queue_name)

    assert [] == west.repair(dry_run=True).deletions_finished
    assert [] == west.repair().deletions_finished
    for verb in (west.create_queue, west.delete_queue):
        with pytest.raises(UsageError, match=r"lives in data centre 'east'"):
            verb(queue_name)
    assert [queue_name] == east.repair().deletions_finished
    west.create_queue(queue_name).delete()


def test_p21_a_queue_lives_on_without_the_other_data_centre(
    centres: EmbeddedCassandra, east: cassieq.Client, queue_name: str
) -> None:
    """It is opened, its settings are looked at again, it is used, healed and looked through."""
    graves = east.create_queue(f"{queue_name}.dead")
    queue = east.create_queue(queue_name, dead_letter_queue=graves.name, visibility_timeout=30)
    clock = ManualClock(east._store.clock)
    queue._lane.store.clock = clock
    centres.nodes[1].kill()
    queue.put_many([b"a", b"b"])
    clock.advance(60)  # the settings it knows are old now
    queue.reject(queue.get(1))
    assert [] == east.repair().problems
    assert 1 == len(taken(graves))

    own = centres.nodes[0].contact_point
    with cassieq.connect(own, keyspace=KEYSPACE, datacenter=EAST) as another:
        assert 1 == len(taken(another.queue(queue_name)))
        assert {queue_name, graves.name} <= {one.name for one in another.queues()}
        assert [] == another.verify().findings
    with pytest.raises((StoreUnavailable, StoreTimeout)):
        east.create_queue(f"{queue_name}.new")  # a name is decided by all of them (ADR 7)

    centres.nodes[1].start()
    east.create_queue(f"{queue_name}.new").delete()
    queue.delete()
    graves.delete()

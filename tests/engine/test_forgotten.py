"""What a client forgets of queues that it does not use any more, and what that may not change."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.aio.client import for_tasks
from cassieq_spark.cli.queue import look
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import QueueDeleted, QueueNotFound, StoreTimeout
from cassieq_spark.exporter.scan import Scanner
from cassieq_spark.model.ids import LaneId
from cassieq_spark.options import parse_source
from cassieq_spark.queue.get.queue_reader import QueueReader
from cassieq_spark.queue.handle import Work
from cassieq_spark.queue.put.producer import Producer
from cassieq_spark.queue.waiting import Waiting
from cassieq_spark.recent import Recent
from cassieq_spark.server import backend as module
from cassieq_spark.server.backend import Backend
from cassieq_spark.spark.source.lag import Lag
from cassieq_spark.spark.source.renewal import Renewal, _Held
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.places import Places
    from tests.fixtures.queues import Door, OpenDoor

KEPT = 3
"""How many queues a client of these tests keeps its work of."""


@pytest.fixture(autouse=True)
def _none_but_the_tests_own() -> Iterator[None]:
    """What was there before is not among the collector's objects, which are counted."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def own(places: Places) -> cassieq.Client:
    """A client that keeps little."""
    connected = places.connect()
    connected._works = Recent(KEPT)
    return connected


def alive(*kinds: type) -> dict[type, int]:
    """How many objects there are of each class."""
    gc.collect()
    found = [type(one) for one in gc.get_objects()]
    return {kind: found.count(kind) for kind in kinds}


def more_than(before: dict[type, int]) -> list[int]:
    now = alive(*before)
    return [now[kind] - before[kind] for kind in before]


def use(client: cassieq.Client, name: str) -> None:
    queue = client.queue(name)
    queue.get()
    queue.put(b"m")


def named(client: cassieq.Client, name: str, count: int) -> list[str]:
    return [client.create_queue(f"{name}.{at}", linger=0).name for at in range(count)]


def test_work_of_a_queue_goes_with_its_handles_but_for_the_last_few(
    own: cassieq.Client, queue_name: str
) -> None:
    before = alive(Work, Producer, QueueReader)
    names = named(own, queue_name, 4 * KEPT)
    held = own.queue(names[0])
    for name in names:
        use(own, name)
    assert [KEPT + 1] * 2 == more_than(before)[::2]
    del held
    own.queue(names[1])
    assert [KEPT, KEPT - 1, KEPT - 1] == more_than(before)


def test_a_queue_that_was_forgotten_has_all_its_messages_in_their_order(
    own: cassieq.Client, queue_name: str
) -> None:
    """Its producer's block stays as it is: it is sealed as one whose producer has ended."""
    first, *others = named(own, queue_name, KEPT + 1)
    for at in range(4):
        own.queue(first).put(b"%d" % at, key="k")
        for name in others:
            use(own, name)
    found = [one.body for _ in range(8) for one in own.queue(first).get()]
    assert [b"%d" % at for at in range(4)] == found


def test_a_receipt_outlives_what_the_client_knows_of_its_queue(
    own: cassieq.Client, queue_name: str
) -> None:
    first, *others = named(own, queue_name, KEPT + 1)
    own.queue(first).put_many([b"a", b"b"])
    held = own.queue(first).get()
    for name in others:
        use(own, name)
    again = own.queue(first)
    assert [] == again.get()
    again.extend(held, 60)
    assert [cassieq.AckResult.ACKED] * 2 == again.ack_each(held)


def test_a_consumer_that_runs_is_not_forgotten(own: cassieq.Client, queue_name: str) -> None:
    first, *others = named(own, queue_name, 4 * KEPT)
    with own.queue(first).consumer() as consumer:
        getter = consumer._ways.getter
        for name in others:
            use(own, name)
        gc.collect()
        again = own.queue(first)
        assert getter is again._work.waiting.getter
        again.put(b"m")
        message = consumer.get(30)
        assert message is not None
        consumer.ack(message)
    assert 0 == again.stats().in_flight


@pytest.mark.parametrize("who", ["handle", "client"])
def test_a_queue_that_is_deleted_is_forgotten_at_once(
    own: cassieq.Client, queue_name: str, who: str
) -> None:
    before = alive(Work)
    own.create_queue(queue_name, linger=0)
    use(own, queue_name)
    assert [1] == more_than(before)
    assert queue_name in metrics.counted_queues()
    in_all = metrics.MESSAGES_PUT.value
    others = metrics.MESSAGES_PUT.values.get(metrics.OTHERS, 0)
    if who == "client":
        own.delete_queue(queue_name)
    else:
        own.queue(queue_name).delete()
    assert [0] == more_than(before)
    assert queue_name not in metrics.counted_queues()
    assert others + 1 == metrics.MESSAGES_PUT.values[metrics.OTHERS]
    assert in_all == metrics.MESSAGES_PUT.value


def test_a_queue_that_another_has_deleted_is_forgotten_when_it_is_used(
    open_door: OpenDoor,
) -> None:
    door, other = open_door(), open_door()
    name, before = door.queue.name, alive(Work)
    door.queue.put(b"m")
    other.client.delete_queue(name)
    metrics.MESSAGES_PUT.inc(name)  # this process has done it, too, and has forgotten it then
    door.clock.advance(60)
    with pytest.raises(QueueDeleted):
        door.queue.put(b"late")
    assert name not in metrics.counted_queues()
    door.queue = other.queue
    assert [-1] == more_than(before)
    with pytest.raises(QueueNotFound):
        door.client.queue(name)


def test_whoever_is_scraped_forgets_what_others_have_deleted(
    own: cassieq.Client, queue_name: str
) -> None:
    there, gone = own.create_queue(f"{queue_name}.there").name, f"{queue_name}.gone"
    for name in (there, gone):
        metrics.MESSAGES_PUT.inc(name)
    told: list[str] = []
    scanner = Scanner(1, on_gone=told.append)
    scanner.start(own.store)
    try:
        scanner.note_scrape()
        wait_until(lambda: gone not in metrics.counted_queues(), deadline_s=60)
    finally:
        scanner.close(30)
    assert there in metrics.counted_queues()
    assert gone in told
    assert there not in told


def test_those_who_wait_in_an_event_loop_are_not_forgotten(
    client: cassieq.Client, places: Places, queue_name: str
) -> None:
    """Handles come and go; what serves long polls stays for those who wait, and goes with them."""
    names = named(client, queue_name, 4 * KEPT)
    before = alive(Work, Waiting)

    async def work() -> None:
        async with places.connect_async() as aio:
            aio._sync._works = Recent(KEPT)
            waiting = asyncio.create_task((await aio.queue(names[0])).get(wait=60))
            ends_by_close = asyncio.create_task((await aio.queue(names[1])).get(wait=600))
            for name in names[2:]:
                await (await aio.queue(name)).get()
            assert [KEPT + 2] * 2 == more_than(before)
            await (await aio.queue(names[0])).put(b"m")
            assert [b"m"] == [one.body for one in await waiting]
            del waiting
            await aio.queue(names[2])
            assert [KEPT + 1] * 2 == more_than(before)
            await aio.delete_queue(names[2])
            assert [KEPT] * 2 == more_than(before)
        assert [] == await ends_by_close

    asyncio.run(work())


def test_a_gateway_forgets_what_it_used_least_recently(
    own: cassieq.Client, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANDLES", 2)
    names = named(own, queue_name, 3)
    own._works = Recent(1)
    own.queue(names[1])
    before = alive(cassieq.Queue, Work)
    backend = Backend(lambda: own, calls=1)
    backend._client = for_tasks(own)

    async def work() -> None:
        first = id(await backend.handle(names[0]))
        await backend.handle(names[1])
        assert first == id(await backend.handle(names[0]))
        await backend.handle(names[2])
        assert [2, 1] == more_than(before)
        assert first == id(await backend.handle(names[0]))
        backend.forget(names[0])
        backend.forget(names[2])
        own.queue(names[1])
        await asyncio.sleep(0)  # this step was given the last handle
        assert [0, 0] == more_than(before)

    asyncio.run(work())


def test_due_lanes_that_were_put_into_are_forgotten(open_door: OpenDoor) -> None:
    """There are ever more of them; a message that comes for one again is found like the others."""
    door = open_door(schedule_period=60, schedule_after=60)
    work = door.queue._work
    work.puts.producers = Recent(2)
    before = alive(Producer)
    for at in (*range(10, 15), 10):
        door.queue.put(b"%d" % at, delay=at * 60)
    assert [2] == more_than(before)
    assert 6 == sum(one.messages for one in door.queue.scheduled())


def test_what_was_seen_of_lanes_is_kept_while_they_are_used(open_door: OpenDoor) -> None:
    door = open_door()
    store = door.client.store
    store.seen = Recent(1)
    lane = door.client.queue(door.queue.name)._lane
    lane.pointers.seen.time = 7
    for _ in range(3):
        store.lane(LaneId(new_uuid()))
    gc.collect()
    assert 2 == len(store.seen.values())
    assert 7 == lane.first.hints._pointers.time_seen()
    assert 7 == store.lane(lane.lane_id).pointers.time_seen()


def test_a_watch_of_all_queues_forgets_those_that_are_gone(
    own: cassieq.Client, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are missing in the list, so nobody asks for them again."""
    names = named(own, queue_name, 2)
    listed = [one for one in own.queues() if one.name in names]
    monkeypatch.setattr(own, "queues", lambda: listed)
    opened: dict[str, cassieq.Queue] = {}
    assert names == list(look(own, [], opened))
    own.delete_queue(names[0])
    del listed[0]
    assert names[1:] == list(look(own, [], opened)) == list(opened)


def test_a_query_forgets_the_counts_of_queues_that_left_it(open_door: OpenDoor) -> None:
    queues = [SimpleNamespace(lane=open_door(suffix).lane) for suffix in ("", ".b")]
    subscription: Any = SimpleNamespace(queues=queues)
    options = parse_source({"contactPoints": "here", "queue": queues[0].lane.queue})
    lag = Lag(queues[0].lane.store, subscription, options)
    portal.run(lag._count([(one.lane, True) for one in queues]))
    assert [one.lane.lane_id for one in queues] == list(lag._counted)
    subscription.queues = queues[1:]
    portal.run(lag._count([(queues[1].lane, True)]))
    assert [queues[1].lane.lane_id] == list(lag._counted)


def test_a_bucket_that_was_acked_while_its_renewal_failed_is_forgotten(door: Door) -> None:
    renewal = Renewal(door.store, run=new_uuid(), give_up_after_s=1)
    lease, place = new_uuid(), door.place(0)
    held = renewal._held[place] = _Held(
        lane=door.lane, ids=frozenset({lease}), visibility_us=1, until_us=door.clock.now_us()
    )
    renewal.drop({place: [lease]})
    renewal._end_round(place, held, StoreTimeout("no answer"))
    assert {} == renewal._held


def test_a_consumer_forgets_renewals_that_failed_of_what_it_has_handed_out(door: Door) -> None:
    ahead = door.queue.consumer()._ahead
    ahead._renew_again_at[door.place(0)] = door.clock.monotonic() - 1

    async def renew() -> None:
        ahead._renew()

    portal.run(renew())
    assert {} == ahead._renew_again_at

"""How much a micro-batch takes, when it begins, and what an idle trigger costs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import StoreError
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.offset import INITIAL, SourceOffset
from cassieq_spark.queue.reserve import reserve
from cassieq_spark.spark.source.one_queue import Limits, OneQueue
from cassieq_spark.spark.source.planner import Planner
from cassieq_spark.store import caller, portal
from cassieq_spark.store import session as sessions
from cassieq_spark.store.statements import Kind, every_statement
from cassieq_spark.testing import ManualClock, wait_until
from tests.fixtures.faults import FaultyStore
from tests.fixtures.queues import time_stands_still
from tests.fixtures.streams import Collected, bodies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.streams import Streams

START = INITIAL.to_json()
LWTS = {one.name for one in every_statement() if one.kind is Kind.CAS}


@contextmanager
def run_of(streams: Streams, **options: object) -> Iterator[Planner]:
    planner = Planner.open(streams.lane.store, streams.parsed(**options))
    try:
        yield planner
    finally:
        planner.close()


def assert_idle(streams: Streams, planner: Planner, end: dict[str, object], limits: Limits) -> None:
    """A trigger costs two reads and no LWT."""
    counts = streams.lane.store.session.counts
    with time_stands_still(streams.lane.store):
        assert end == planner.latest(end, limits)  # what was old is read again
        before = counts.copy()
        for _ in range(20):
            assert end == planner.latest(end, limits)
        sent = counts - before
    assert sent.total() <= 2 * 20, sent
    assert not LWTS & sent.keys()


@pytest.fixture
def clock(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the shared client, which this test may set."""
    clock = ManualClock(streams.lane.store.clock)
    monkeypatch.setattr(streams.lane.store, "clock", clock)
    return clock


def taken(offset: dict[str, object]) -> int:
    return sum(runs.runs.count for runs in SourceOffset.from_json(offset).leases)


def put_large(streams: Streams, count: int) -> None:
    """Messages of about 1,000 bytes that nothing compresses."""
    streams.queue.put_many(
        [bytes((at * 7 + by * by) % 256 for by in range(1_000)) for at in range(count)]
    )


@pytest.mark.parametrize("of", ["sealed", "open"])
def test_a_batch_takes_about_so_many_bytes(streams: Streams, of: str) -> None:
    put_large(streams, 200)
    if of == "sealed":
        streams.queue.release(streams.queue.get(1))
    sizes = []
    with run_of(streams) as planner:
        start = START
        while (end := planner.latest(start, Limits(at_most_bytes=40_000))) != start:
            sizes.append(taken(end))
            start = end
        rows, _ = portal.run(streams.lane.buckets.read_many(range(4)))
    each = sum(row.value.size_bytes for row in rows.values() if row is not None) / 200
    assert 200 == sum(sizes)
    assert all(size * each <= 40_000 for size in sizes)
    assert all((size + 1) * each > 40_000 for size in sizes[:-1] if size > 1), sizes


def test_one_message_is_taken_however_large_it_is(streams: Streams) -> None:
    """Or a queue of large messages would stand still (I10)."""
    put_large(streams, 3)
    with run_of(streams) as planner:
        first = planner.latest(START, Limits(at_most_bytes=1))
        assert 1 == taken(first)
        assert 1 == taken(planner.latest(first, Limits(at_most_bytes=1)))


def test_a_batch_waits_for_enough_and_claims_nothing_meanwhile(streams: Streams) -> None:
    limits = Limits(at_least=300, wait_s=60)
    with run_of(streams) as planner:
        assert START == planner.latest(START, limits)
        streams.put(streams.numbered(0, 200))
        streams.queue.put_many([b"open"] * 99)
        assert START == planner.latest(START, limits)
        assert (299, 0) == (streams.queue.stats().visible, streams.queue.stats().in_flight)

        streams.queue.put(b"enough")
        assert 300 == taken(planner.latest(START, limits))


def test_what_comes_while_a_trigger_has_counted_nothing_waits_too(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are reserved, and wake the query, before their messages are there."""
    limits = Limits(at_least=300, wait_s=60)

    def comes_late() -> None:
        if not streams.queue.stats().visible:
            streams.queue.put_many([b"late"] * 200)

    async def count(queue: OneQueue, enough: int) -> int | None:
        counted = await counting(queue, enough)
        await caller.outside(comes_late)
        return counted

    counting = OneQueue.count
    monkeypatch.setattr(OneQueue, "count", count)
    with run_of(streams) as planner:
        for _ in range(3):
            assert START == planner.latest(START, limits)
        assert (200, 0) == (streams.queue.stats().visible, streams.queue.stats().in_flight)
        streams.queue.put_many([b"enough"] * 100)
        assert 300 == taken(planner.latest(START, limits))


@pytest.mark.invariant("I9")
def test_an_idle_trigger_that_would_wait_closes_gaps_and_is_two_reads_then(
    streams: Streams, clock: ManualClock
) -> None:
    limits = Limits(at_least=300, wait_s=60)
    portal.run(reserve(streams.lane, 3))
    with run_of(streams) as planner:
        assert START == planner.latest(START, limits)
        clock.advance(streams.lane.settings.gap_timeout_s + 1)
        planner.latest(START, limits)
        planner.latest(START, limits)
        assert portal.run(streams.lane.read_pointers()).reader == portal.run(
            streams.lane.read_monoton()
        ).next_id // (streams.lane.bucket_size)
        assert_idle(streams, planner, START, limits)


def test_an_idle_query_that_would_wait_buries_what_is_to_die(
    streams: Streams, clock: ManualClock
) -> None:
    graves = streams.another("graves")
    mortal = streams.another("mortal", max_deliveries=1, dead_letter_queue=graves.queue.name)
    mortal.queue.put(b"tried once")
    assert mortal.queue.get(1, visibility_timeout=10)
    clock.advance(11)
    with run_of(mortal) as planner:
        assert START == planner.latest(START, Limits(at_least=300, wait_s=60))
    assert 1 == mortal.queue.stats().dead


@pytest.mark.invariant("I10")
def test_a_query_that_would_wait_names_a_bucket_that_is_away_and_waits_where_others_have_some(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count that was not answered everywhere is not "nothing": the claim finds out."""
    monkeypatch.setattr(sessions, "DEADLINE_S", 1.0)
    limits = Limits(at_least=300, wait_s=60)
    streams.put(streams.numbered(0, 10, 1).coalesce(1))
    (at,) = (
        bucket for bucket in range(9) if portal.run(streams.lane.buckets.read(BucketNo(bucket)))
    )
    with FaultyStore().on(streams.lane.store.session) as faults, run_of(streams) as planner:
        faults.unreachable(at, lane=streams.lane.lane_id)
        with pytest.raises(StoreError, match=f"bucket {at} of "):
            planner.latest(START, limits)
        streams.put(streams.numbered(10, 20))
        assert START == planner.latest(START, limits)
        faults.reachable()
        streams.put(streams.numbered(20, 300))
        wait_until(lambda: 300 == taken(planner.latest(START, limits)), deadline_s=30)


def test_a_query_that_would_wait_looks_at_all_lanes(streams: Streams) -> None:
    limits = Limits(at_least=300, wait_s=60)
    lanes = streams.another("lanes", priorities=2, bucket_size=500)
    with run_of(lanes) as planner:
        assert START == planner.latest(START, limits)
        lanes.queue.put_many([b"low"] * 150)
        assert START == planner.latest(START, limits)
        lanes.queue.put_many([b"high"] * 150, priority=1)
        assert 300 == taken(planner.latest(START, limits))


@pytest.mark.invariant("I10")
def test_what_is_visible_waits_no_longer_than_it_may(streams: Streams, clock: ManualClock) -> None:
    limits = Limits(at_least=300, wait_s=60)
    streams.put(streams.numbered(0, 200))
    with run_of(streams) as planner:
        assert START == planner.latest(START, limits)
        clock.advance(59)
        assert START == planner.latest(START, limits)
        clock.advance(2)
        first = planner.latest(START, limits)
        assert 200 == taken(first)

        # The next ones wait as long again.
        streams.put(streams.numbered(200, 250))
        assert first == planner.latest(first, limits)
        clock.advance(61)
        assert 50 == taken(planner.latest(first, limits))


def test_a_held_back_query_has_acked_its_last_batch(streams: Streams) -> None:
    streams.put(streams.numbered(0, 300))
    limits = Limits(at_least=300, wait_s=60)
    with run_of(streams) as planner:
        first = planner.latest(START, limits)
        streams.put(streams.numbered(300, 310))
        assert first == planner.latest(first, limits)
        assert (10, 0) == (streams.queue.stats().visible, streams.queue.stats().in_flight)


@pytest.mark.invariant("I9")
def test_an_idle_trigger_is_two_reads_and_no_lwt(streams: Streams) -> None:
    streams.put(streams.numbered(0, 300))
    with run_of(streams) as planner:
        end = planner.latest(START, Limits())
        wait_until(lambda: end == planner.latest(end, Limits()))
        planner.latest(end, Limits())
        assert_idle(streams, planner, end, Limits())

        streams.put(streams.numbered(300, 301))
        assert 1 == taken(planner.latest(end, Limits()))


def test_available_now_takes_what_is_there_though_it_is_too_few(streams: Streams) -> None:
    streams.put(streams.numbered(0, 70))
    drained = streams.drain(minMessagesPerTrigger=1_000, maxTriggerDelay="1h")
    assert bodies(0, 70) == drained.bodies


def test_once_takes_all_whatever_the_limits(streams: Streams) -> None:
    streams.put(streams.numbered(0, 900))
    collected = Collected()
    query = (
        streams.source(maxMessagesPerTrigger=100, maxBytesPerTrigger="1k")
        .writeStream.foreachBatch(collected)
        .option("checkpointLocation", str(streams.checkpoint()))
        .trigger(once=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert [0] == collected.batch_ids
    assert bodies(0, 900) == collected.bodies


def test_a_processing_time_trigger_waits_for_enough_through_spark(streams: Streams) -> None:
    streams.put(streams.numbered(0, 200))
    collected = Collected()
    query = (
        streams.source(minMessagesPerTrigger=300, maxTriggerDelay="1h", maxMessagesPerTrigger=400)
        .writeStream.foreachBatch(collected)
        .option("checkpointLocation", str(streams.checkpoint()))
        .trigger(processingTime="50 milliseconds")
        .start()
    )
    try:
        # Spark runs the first batch of a query even if its source offers nothing (4.2, 4.3).
        wait_until(lambda: collected.calls)
        streams.put(streams.numbered(200, 700))
        wait_until(lambda: len(collected.rows) >= 400)
        assert [0, 400] == [len(rows) for _, rows in collected.calls]
        assert streams.queue.stats().visible == 300
    finally:
        query.stop()

"""Spark reads scheduled messages when their time comes, and shows what is scheduled.

See docs/design/due-lanes.md.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.model.moments import time_of
from cassieq_spark.testing import ManualClock
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.streams import bodies_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from cassieq_spark import Queue
    from tests.fixtures.streams import Streams

TWO_HOURS_S = 7_200


@pytest.fixture
def ranked(streams: Streams) -> Streams:
    return streams.another("ranked", priorities=2, fairness=0, bucket_size=500)


@contextmanager
def two_hours_ago(streams: Streams) -> Iterator[Queue]:
    """The queue as a producer saw it two hours ago: what is due now is scheduled there."""
    with cassieq.connect(streams.options["contactPoints"], keyspace=KEYSPACE) as client:
        clock = client._store.clock = ManualClock(client._store.clock)
        clock._ahead_us = -TWO_HOURS_S * 1_000_000
        yield client.queue(streams.queue.name)


def now(streams: Streams) -> datetime:
    return time_of(streams.lane.clock.now_us())


def test_a_query_reads_scheduled_messages_that_are_due(ranked: Streams) -> None:
    """A due lane is none of the queue's fixed lanes: its id says its class and period."""
    due = now(ranked) - timedelta(seconds=1)
    with two_hours_ago(ranked) as queue:
        queue.put_many([b"low"] * 20, due_at=due)
        queue.put_many([b"high"] * 20, due_at=due, priority=1)
        queue.put(b"far", due_at=due + timedelta(days=30))
    ranked.queue.put_many([b"now"] * 20)

    drained = ranked.drain(maxMessagesPerTrigger=25)

    assert Counter({b"low": 20, b"high": 20, b"now": 20}) == drained.bodies
    assert Counter({b"high": 20, b"low": 5}) == bodies_of(drained.calls[0][1])
    stats = ranked.queue.stats()
    assert (0, 0, 1) == (stats.visible, stats.in_flight, stats.scheduled)


def test_columns_lane_and_priority_of_scheduled_messages(ranked: Streams) -> None:
    due = now(ranked) - timedelta(seconds=1)
    with two_hours_ago(ranked) as queue:
        queue.put(b"high", due_at=due, priority=1)
    [row] = ranked.look().select("body").collect()
    assert b"high" == row.body

    collected = ranked.drain()
    [seen] = collected.rows
    assert b"high" == bytes(seen.body)
    assert ranked.queue.stats().visible == 0


def test_rows_that_are_due_later_wait_in_due_lanes(ranked: Streams) -> None:
    """Through both of the Arrow writer's doors, one transaction with what is due now."""
    rows = ranked.spark.range(0, 200, 1, 3).selectExpr(
        "cast(concat('m-', id) as binary) as body",
        "cast(id % 2 as int) as priority",
        "if(id % 4 = 0, null, now() + make_dt_interval(1 + id % 3)) as due_at",
    )
    rows.write.parquet(str(ranked.directory / "in"))
    source = ranked.spark.readStream.schema(rows.schema).parquet(str(ranked.directory / "in"))
    query = (
        source.writeStream.format("cassieq")
        .options(**ranked.options)
        .option("checkpointLocation", str(ranked.checkpoint("sink")))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    ranked.put(rows.drop("priority"))

    stats = ranked.queue.stats()
    assert (100, 0, 300) == (stats.visible, stats.delayed, stats.scheduled)
    by_priority: Counter[int] = Counter()
    for hour in ranked.queue.scheduled():
        by_priority[hour.priority] += hour.messages
    assert {0: 200, 1: 100} == by_priority
    drained = ranked.drain()
    assert Counter({b"m-%d" % at: 2 for at in range(0, 200, 4)}) == drained.bodies


def test_views_of_what_is_scheduled(ranked: Streams) -> None:
    far = now(ranked).replace(minute=30, second=0, microsecond=0) + timedelta(days=30)
    ranked.queue.put_many([b"x"] * 3, due_at=far)
    ranked.queue.put(b"x", due_at=far, priority=1)
    ranked.queue.put(b"x", due_at=far + timedelta(hours=5))

    rows = ranked.look(view="scheduled").orderBy("due_from", "priority").collect()

    hour = far.replace(minute=0)
    utc = [(row.due_from.astimezone(hour.tzinfo), row.priority, row.messages) for row in rows]
    assert [(hour, 0, 3), (hour, 1, 1), (hour + timedelta(hours=5), 0, 1)] == utc
    assert utc == [
        (one.due_from, one.priority, one.messages)
        for one in sorted(ranked.queue.scheduled(), key=lambda one: (one.due_from, one.priority))
    ]
    lanes = ranked.look(view="lanes").collect()
    assert 5 == len(lanes)
    assert [2, 3] == [
        sum(one.shard is None for one in lanes if one.priority == 0),
        sum(one.due_from is not None for one in lanes),
    ]
    assert 5 == ranked.queue.stats().scheduled

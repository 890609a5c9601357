"""A queue's state as DataFrames: each view says what is there, changes nothing, reads no more than
it is asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, LessThan
from pyspark.sql.types import StructType

from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.moments import time_of
from cassieq_spark.options import parse_read
from cassieq_spark.spark.views.columns import VIEWS
from cassieq_spark.spark.views.reader import PushingViewReader, reader
from cassieq_spark.store import chunk, portal, store
from tests.fixtures.rows import as_an_older_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

    import cassieq_spark as cassieq
    from tests.fixtures.streams import Streams

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def view(streams: Streams, name: str, schema: str | None = None, **options: object) -> DataFrame:
    made = streams.spark.read.format("cassieq").options(**streams.options, view=name, **options)
    return (made if schema is None else made.schema(schema)).load()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


@contextmanager
def pushdown_on(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    try:
        yield
    finally:
        spark.conf.unset(PUSHDOWN)


@pytest.fixture
def small(streams: Streams) -> Streams:
    """Buckets of ten; dead after one delivery."""
    streams.another("small.dead")
    return streams.another(
        "small",
        bucket_size=10,
        max_deliveries=1,
        dead_letter_queue=f"{streams.queue.name}.small.dead",
    )


def fill(streams: Streams, buckets: int) -> None:
    """So many buckets of ten, each full."""
    for bucket in range(buckets):
        streams.queue.put_many([b"%d" % (10 * bucket + at) for at in range(10)])


def kill(queue: cassieq.Queue, messages: int) -> list[str]:
    """Delivered once, given back, and found dead by the next claim."""
    found = queue.get(messages)
    assert messages == len(found)
    queue.release(found)
    queue.ack(queue.get(messages))
    return [one.message_id for one in found]


def test_buckets_are_those_of_the_queue_with_what_is_in_them(small: Streams) -> None:
    small.queue.put_many([b"m"] * 10)
    held = small.queue.get(4, consumer="billing", visibility_timeout=60)
    small.queue.ack(held[0])
    small.put(small.numbered(0, 3, partitions=1))
    small.queue.put(b"later", delay=600)

    found = {row["bucket"]: row for row in rows(view(small, "buckets"))}

    assert VIEWS["buckets"].schema.names == list(found[0])
    first = found.pop(0)
    lane = small.lane
    stored = portal.run(lane.buckets.read(BucketNo(0)))
    assert stored is not None
    assert {
        "queue": small.queue.name,
        "lane": str(small.lane.lane_id),
        "priority": 0,
        "bucket": 0,
        "status": "sealed",
        "first_id": 0,
        "last_id": 9,
        "messages": 10,
        "fresh": 6,
        "returned": 0,
        "leased": 3,
        "delayed": 0,
        "dead": 0,
        "acked": 1,
        "updated": 0,
        "leases": 1,
        "consumers": {"billing": 3},
        "stored_bytes": stored.value.size_bytes,
        "changed_at": time_of(stored.value.changed_us).replace(tzinfo=None),
        "sink_id": None,
        "epoch": None,
        "block_end": None,
        "row_version": stored.version.row_version,
    } == first
    of_a_sink = [row for row in found.values() if row["sink_id"] is not None]
    assert [("sealed", 3)] == [(row["status"], row["fresh"]) for row in of_a_sink]
    unsealed = [row for row in found.values() if row["status"] == "open"]
    assert [(1, 1)] == [(row["messages"], row["delayed"]) for row in unsealed if row["messages"]]


def test_leases_name_their_consumer_and_their_messages(small: Streams) -> None:
    fill(small, 2)
    small.queue.get(10, consumer="billing", visibility_timeout=60)
    one, two, three = small.queue.get(3, consumer="shipping", visibility_timeout=60)
    small.queue.ack(two)

    found = rows(view(small, "leases").orderBy("consumer"))

    assert VIEWS["leases"].schema.names == list(found[0])
    [lease] = [lease for lease in small.leases if lease.owner == "shipping"]
    assert ["billing", "shipping"] == [row["consumer"] for row in found]
    assert {
        "queue": small.queue.name,
        "lane": str(small.lane.lane_id),
        "priority": 0,
        "bucket": 1,
        "consumer": "shipping",
        "lease_id": str(lease.lease_id),
        "run": None,
        "messages": 2,
        "delivery_count": 1,
        "until": time_of(lease.until_us).replace(tzinfo=None),
        "is_expired": False,
        "first_id": one.id,
        "last_id": three.id,
        "id_runs": [{"first": one.id, "last": one.id}, {"first": three.id, "last": three.id}],
    } == found[1]


def test_a_streaming_query_is_seen_with_its_run_and_its_consumer(streams: Streams) -> None:
    streams.put(streams.numbered(0, 20))
    seen: list[Row] = []

    def look(frame: DataFrame, _: int) -> None:
        frame.count()
        seen.extend(view(streams, "leases").collect())

    query = streams.start(streams.source(consumer="nightly"), look)
    assert query.awaitTermination(120)

    assert 20 == sum(row.messages for row in seen)
    assert {"nightly"} == {row.consumer for row in seen}
    assert all(row.run is not None for row in seen)


def test_dead_messages_are_shown_as_they_were_put_until_repair_has_moved_them(
    small: Streams,
) -> None:
    small.queue.put_many([b"a", b"b"], tag="t", headers={"h": "1"})
    small.queue.put(b"c")
    ids = kill(small.queue, 3)
    put = {row.message_id: row for row in small.look().collect()}
    assert {} == put

    found = rows(view(small, "dead").orderBy("id"))

    assert VIEWS["dead"].schema.names == list(found[0])
    assert ids == [row["message_id"] for row in found]
    assert [b"a", b"b", b"c"] == [bytes(row["body"]) for row in found]
    assert ["t", "t", None] == [row["tag"] for row in found]
    assert [{"h": "1"}, {"h": "1"}, None] == [row["headers"] for row in found]
    assert {(1, "max_deliveries")} == {(row["delivery_count"], row["reason"]) for row in found}
    assert [row["id"] // 10 for row in found] == [row["bucket"] for row in found]
    assert all(row["enqueued_at"] <= row["died_at"] for row in found)
    now_us = small.lane.clock.now_us()
    assert all(
        0 <= now_us - row["died_at"].replace(tzinfo=UTC).timestamp() * 1e6 < 60e6 for row in found
    )
    assert {1, 2} >= {len({row["set_id"] for row in found})}

    assert ids[2:] == [
        row.message_id
        for row in view(small, "dead", "message_id string, tag string")
        .where("tag is null")
        .collect()
    ]
    small.client.repair(small.queue.name)
    assert [] == rows(view(small, "dead"))


def test_each_dead_message_has_its_own_time(small: Streams) -> None:
    small.queue.put_many([b"a", b"b"])
    for one in sorted(small.queue.get(2, visibility_timeout=600), key=lambda one: one.body):
        small.queue.reject(one, reason="timeout")
    found = {bytes(row["body"]): row["died_at"] for row in rows(view(small, "dead"))}
    assert found[b"a"] < found[b"b"]


def test_what_older_sinks_stored_is_shown(small: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "from_rows", as_an_older_sink)
    small.queue.put(b"odd")
    (found,) = rows(small.look())
    assert ("\ufffd", {"none": None, "\ufffd": "\ufffd"}) == (found["tag"], found["headers"])
    assert 1 == small.look().where("headers['none'] is null and length(tag) = 1").count()


def test_queues_and_stats_are_of_one_queue_or_of_all(small: Streams, streams: Streams) -> None:
    fill(small, 2)
    small.queue.get(3, consumer="billing", visibility_timeout=60)
    of_all = {key: value for key, value in small.options.items() if key != "queue"}
    read = small.spark.read.format("cassieq")

    [one] = rows(view(small, "queues"))
    assert VIEWS["queues"].schema.names == list(one)
    assert (small.queue.name, "active", 10, 1, 20, 0, 0) == (
        one["queue"],
        one["status"],
        one["bucket_size"],
        one["max_deliveries"],
        one["next_id"],
        one["reader_bucket"],
        one["repair_bucket"],
    )
    assert (30.0, f"{streams.queue.name}.small.dead", str(small.lane.lane_id)) == (
        one["visibility_timeout_s"],
        one["dead_letter_queue"],
        one["lane"],
    )
    names = {queue.name for queue in small.client.queues()}
    every = rows(read.options(**of_all, view="queues").load())
    active = [row["queue"] for row in every if row["status"] == "active"]
    assert names == set(active)  # `queues` leaves out those that are being deleted
    assert len(active) == len(names) > 2

    stats = small.queue.stats()
    [counted] = rows(view(small, "stats"))
    assert VIEWS["stats"].schema.names == list(counted)
    assert (17, 3, {"billing": 3}, dict(stats.buckets), stats.applied_lwts) == (
        counted["visible"],
        counted["in_flight"],
        counted["consumers"],
        counted["buckets"],
        counted["applied_lwts"],
    )
    assert stats.oldest_age is not None
    assert 0 <= counted["oldest_age_s"] <= stats.oldest_age + 60
    some = read.options(**of_all, view="stats", minPartitions=3).load()
    ours = some.where(some.queue.startswith(streams.queue.name))
    assert 3 == some.rdd.getNumPartitions()
    assert {streams.queue.name: 0, f"{streams.queue.name}.small.dead": 0, small.queue.name: 17} == {
        row.queue: row.visible for row in ours.collect()
    }


@pytest.mark.long
def test_what_is_not_there_is_refused_by_name(small: Streams) -> None:
    def refused(look: Callable[[], object], text: str) -> None:
        with pytest.raises(PySparkException, match=re.escape(text)):
            look()

    refused(
        lambda: view(small, "bucket"), "[cassieq:option_invalid] option 'view' of the cassieq batch"
    )
    refused(
        lambda: view(small, "buckets", "bucket long, colour string").collect(),
        "unknown column 'colour' in the schema. The buckets view has: queue string,",
    )
    refused(
        lambda: view(small, "leases", "consumer binary").collect(),
        "column 'consumer' of the schema is binary, but the leases view has it as string",
    )
    without = {key: value for key, value in small.options.items() if key != "queue"}
    read = small.spark.read.format("cassieq")
    refused(
        lambda: read.options(**without, view="buckets").load().collect(),
        "option 'queue' of the cassieq batch reader is not set",
    )
    for name in ("queues", "stats", "leases"):
        refused(
            lambda name=name: (
                read.options(**{**without, "queue": "nowhere"}, view=name).load().collect()
            ),
            "[cassieq:queue_not_found] there is no queue 'nowhere'",
        )
    refused(
        lambda: small.start(small.source(view="buckets"), lambda *_: None).awaitTermination(120),
        "'view' belongs to the cassieq batch reader: leave it out here",
    )


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_changes_nothing_and_shows_the_columns_it_is_asked_for(
    small: Streams, name: str
) -> None:
    fill(small, 1)
    kill(small.queue, 2)
    small.queue.get(2, visibility_timeout=60)
    small.queue.put(b"much later", delay=86_400)
    before = small.queue.stats()
    schema = VIEWS[name].schema
    names = schema.names[::-2]

    frame = view(
        small, name, ", ".join(f"{one} {schema[one].dataType.simpleString()}" for one in names)
    )
    found = frame.collect()

    assert names == frame.columns
    assert found
    assert {len(names)} == {len(row) for row in found}
    after = small.queue.stats()
    assert (before.applied_lwts, before.visible, before.in_flight, before.dead) == (
        after.applied_lwts,
        after.visible,
        after.in_flight,
        after.dead,
    )


def test_buckets_are_spread_over_as_many_tasks_as_are_asked_for(small: Streams) -> None:
    fill(small, 6)

    for name in ("buckets", "leases", "dead"):
        assert 1 == view(small, name).rdd.getNumPartitions()
        assert 3 == view(small, name, minPartitions=3).rdd.getNumPartitions()
        assert 6 == view(small, name, minPartitions=100).rdd.getNumPartitions()
    found = view(small, "buckets", minPartitions=3).collect()
    assert list(range(6)) == sorted(row.bucket for row in found)


def test_a_frame_that_is_looked_at_again_shows_what_came_since(small: Streams) -> None:
    frame = view(small, "buckets")
    frame.createOrReplaceTempView("buckets_again")
    count = "select sum(messages) as n from buckets_again"
    assert [(None,)] == small.spark.sql(count).collect()

    fill(small, 3)

    assert [(30,)] == small.spark.sql(count).collect()


def test_spark_filters_where_nothing_is_pushed(small: Streams) -> None:
    fill(small, 3)
    frame = view(small, "buckets")

    assert [1] == [row.bucket for row in frame.where("bucket = 1").collect()]
    assert 2 == frame.where("bucket < 2 and status = 'open'").count()
    assert 3 == frame.count()
    with pytest.raises(PySparkException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        view(small, "buckets", pushFilters=True).where("bucket = 1").collect()


PUSHED = {
    "buckets": [
        ("bucket = 1", 1, 1),
        ("bucket in (0, 4, 99)", 2, 2),
        ("bucket >= 2 and bucket < 4 and status = 'open'", 2, 2),
        ("first_id >= 40", 2, 2),
        ("fresh > 0", 6, 5),
        ("bucket = 1 or bucket = 2", 6, 2),
        ("queue = 'another'", 1, 0),
    ],
    "leases": [
        ("consumer = 'billing'", 6, 1),
        ("first_id <= 3 and last_id >= 3", 1, 1),
        ("not is_expired", 6, 1),
    ],
    "messages": [
        ("id >= 25 and id < 27", 2, 2),
        ("id in (25, 26, 41)", 3, 3),
        ("bucket = 3 and id > 100", 1, 0),
    ],
}
"""(condition, tasks of one bucket or one message each, rows); for nothing Spark has one task."""


@pytest.mark.parametrize("name", PUSHED)
def test_only_buckets_that_a_filter_lets_through_are_read(small: Streams, name: str) -> None:
    fill(small, 6)
    small.queue.get(10, consumer="billing", visibility_timeout=60)
    every = view(small, name).cache()

    with pushdown_on(small.spark):
        for where, tasks, expected in PUSHED[name]:
            pushing = view(small, name, pushFilters=True, minPartitions=100).where(where)
            found = pushing.collect()
            assert (where, tasks) == (where, pushing.rdd.getNumPartitions())
            assert (where, expected) == (where, len(found))
            assert sorted(map(repr, every.where(where).collect())) == sorted(map(repr, found))
    every.unpersist()


def reads_of(streams: Streams, name: str, schema: str, *filters: Filter) -> Counter[str]:
    """Statements of planning and of all tasks, in this process, by name."""
    options = parse_read({**streams.options, "view": name, "pushFilters": "true"})
    made = reader(options, StructType.fromDDL(schema))
    assert isinstance(made, PushingViewReader)
    where = store.shared(options.connection)
    before = Counter(where.session.counts)
    try:
        assert [] == list(made.pushFilters(list(filters)))
        for partition in made.partitions():
            list(made.read(partition))
        return Counter(where.session.counts) - before
    finally:
        store.close_shared()


def test_a_bucket_that_is_not_asked_for_costs_no_statement(small: Streams) -> None:
    fill(small, 6)
    small.queue.get(60, visibility_timeout=60)
    portal.run(small.lane.monotons.read())

    every = reads_of(small, "buckets", "bucket long, messages long")
    one = reads_of(small, "buckets", "bucket long, messages long", EqualTo(("bucket",), 3))
    few = reads_of(small, "leases", "consumer string", In(("first_id",), (0, 5, 42)))
    none = reads_of(small, "messages", "id long", EqualTo(("queue",), "another"))

    assert (6, 1, 2, 0) == tuple(spent["read_bucket"] for spent in (every, one, few, none))


def test_messages_of_open_buckets_are_read_only_where_they_are_counted(small: Streams) -> None:
    small.queue.put(b"young")
    delayed = [GreaterThanOrEqual(("bucket",), 0), LessThan(("bucket",), 9)]

    def scans(name: str, schema: str, *filters: Filter) -> int:
        return reads_of(small, name, schema, *filters)["scan_messages"]

    assert 1 == scans("buckets", "messages long", *delayed)
    assert 0 == scans("buckets", "status string, leased long", *delayed)
    assert 0 == scans("buckets", "messages long", EqualTo(("status",), "sealed"))
    assert 1 == scans("buckets", "messages long", EqualTo(("status",), "open"))
    assert 0 == scans("leases", "consumer string")
    assert 0 == scans("dead", "body binary")


def test_dead_messages_are_found_by_id_and_by_reason(small: Streams) -> None:
    fill(small, 2)
    kill(small.queue, 12)

    with pushdown_on(small.spark):
        by_id = view(small, "dead", pushFilters=True).where("id in (3, 11, 15)").collect()
        by_reason = view(small, "dead", pushFilters=True).where("reason = 'fraud'").collect()

    assert [3, 11] == sorted(row.id for row in by_id)
    assert [b"11", b"3"] == sorted(bytes(row.body) for row in by_id)
    assert [] == by_reason


def test_spark_gives_what_was_pushed_for_one_scan_to_the_others(small: Streams) -> None:
    """Why pushFilters is off unless it is asked for: it fails where Spark has mended it (4.3.0)."""
    fill(small, 3)

    def both(pushing: bool) -> list[int]:
        frame = view(small, "buckets", pushFilters=pushing)
        found = frame.where("bucket = 0").union(frame.where("bucket = 1")).collect()
        return sorted(row.bucket for row in found)

    with pushdown_on(small.spark):
        assert [0, 1] == both(pushing=False)
        assert [1, 1] == both(pushing=True)
        frame = view(small, "buckets", pushFilters=True)
        assert (1, 1) == (frame.where("bucket = 0").count(), frame.count())

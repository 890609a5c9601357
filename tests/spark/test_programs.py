"""One queue, two ways: what a program puts Spark reads, and the other way round."""

from __future__ import annotations

from collections import Counter
from datetime import UTC
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.queue.settle.settle import AckResult
from cassieq_spark.testing import wait_until
from tests.fixtures.streams import Collected, Streams, bodies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BIG = bytes(range(256)) * 12_000


def test_what_a_program_puts_spark_reads_in_every_column(streams: Streams) -> None:
    queue, chosen = streams.queue, str(new_uuid())
    plain = queue.put(b"plain")
    worded = queue.put(b"", tag="t", headers={"k": "v", "kk": ""}, message_id=chosen)
    many = queue.put_many([b"1", BIG, b"3"], headers={"of": "many"})
    later = queue.put(b"later", delay=0.1)
    wait_until(lambda: queue.stats().delayed == 0)
    seen = streams.drain()

    rows = {row.message_id: row for row in seen.rows}
    assert len(rows) == len(seen.rows)
    assert {plain, worded, *many, later} == rows.keys()
    assert chosen == worded
    assert {
        plain: (b"plain", None, None),
        worded: (b"", "t", {"k": "v", "kk": ""}),
        many[0]: (b"1", None, {"of": "many"}),
        many[1]: (BIG, None, {"of": "many"}),
        many[2]: (b"3", None, {"of": "many"}),
        later: (b"later", None, None),
    } == {key: (bytes(row.body), row.tag, row.headers or None) for key, row in rows.items()}
    assert {1} == {row.delivery_count for row in seen.rows}
    assert streams.is_empty()


def test_what_spark_writes_a_program_gets_and_acks(streams: Streams) -> None:
    written = streams.spark.sql(
        "select cast(concat('m-', id) as binary) as body, concat('t', id) as tag, "
        "map('n', cast(id as string)) as headers, uuid() as message_id from range(50)"
    )
    written = streams.spark.createDataFrame(written.collect(), written.schema)
    expected = {
        row.message_id: (bytes(row.body), row.tag, row.headers) for row in written.collect()
    }
    streams.put(written)

    found = streams.queue.get(100)
    assert expected == {one.message_id: (one.body, one.tag, dict(one.headers)) for one in found}
    assert {1} == {one.delivery_count for one in found}
    assert {UTC} == {one.enqueued_at.tzinfo for one in found}
    streams.queue.ack(found)
    assert streams.holds_nothing()


def test_spark_reads_the_body_that_a_program_has_given_a_message(streams: Streams) -> None:
    """By streams and by a look; before and after it was chunked anew."""
    queue = streams.queue
    streams.put(streams.numbered(0, 5))
    held = sorted(queue.get(10), key=lambda one: one.body)
    updated = [queue.update(held[1], body=b"new"), queue.update(held[2], body=BIG)]
    queue.update(updated[0], body=b"newer", visibility_timeout=0)
    queue.release([held[0], updated[1], *held[3:]])

    expected = sorted([b"m-0", b"newer", BIG, b"m-3", b"m-4"])
    assert expected == sorted(bytes(row.body) for row in streams.look().collect())
    seen = streams.drain()
    assert expected == sorted(bytes(row.body) for row in seen.rows)
    assert {one.message_id for one in held} == {row.message_id for row in seen.rows}
    assert {2} == {row.delivery_count for row in seen.rows}


@pytest.mark.invariant("I2")
def test_a_program_and_a_query_share_a_queue_and_nothing_is_in_both(streams: Streams) -> None:
    streams.put(streams.numbered(0, 3_000))
    mine: list[cassieq.Delivery] = []

    def handler(frame: DataFrame, batch_id: int) -> None:
        seen(frame, batch_id)
        some = streams.queue.get(100)
        streams.queue.ack(some)
        mine.extend(some)

    seen = Collected()
    query = streams.start(streams.source(maxMessagesPerTrigger=300), handler)
    assert query.awaitTermination(120)
    while some := streams.queue.get(1_000):
        streams.queue.ack(some)
        mine.extend(some)
    assert mine
    assert seen.rows
    assert bodies(0, 3_000) == seen.bodies + counted(mine)
    assert streams.is_empty()


def test_a_program_may_ack_and_give_back_by_the_receipts_that_spark_has_read(
    streams: Streams,
) -> None:
    """What it acks of a batch that fails does not come again, what it gives back does."""
    streams.put(streams.numbered(0, 6))
    receipts: dict[bytes, str] = {}

    def handler(frame: DataFrame, _: int) -> None:
        receipts.update({bytes(row.body): row.receipt for row in frame.collect()})
        raise RuntimeError("on purpose")

    query = streams.start(streams.source(), handler)
    with pytest.raises(Exception, match="on purpose"):
        query.awaitTermination(120)
    acked = [receipts[b"m-0"], receipts[b"m-1"]]
    assert [AckResult.ACKED] * 2 == streams.queue.ack_each(acked)
    streams.queue.release(receipts[b"m-2"])
    with pytest.raises(cassieq.ReceiptExpired):
        streams.queue.ack(receipts[b"m-2"])
    assert [b"m-2"] == [one.body for one in streams.queue.get(10)]
    assert [AckResult.ALREADY_ACKED] * 2 == streams.queue.ack_each(acked)


def counted(messages: list[cassieq.Message]) -> Counter[bytes]:
    return Counter(one.body for one in messages)

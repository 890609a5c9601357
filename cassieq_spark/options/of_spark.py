"""Define the options of `format("cassieq")` for source, reader and sink, and those of Spark."""

from __future__ import annotations

from typing import Final

from cassieq_spark.model.sizes import (
    BUCKET_BYTES,
    CHUNK_BYTES,
    CHUNK_MESSAGES,
    MAX_CHUNK_MESSAGES,
    PART_BYTES,
)
from cassieq_spark.options import values
from cassieq_spark.options.option import (
    FORMAT,
    READ,
    READING,
    SINK,
    SOURCE,
    SPARK,
    THIRTY_DAYS_S,
    Option,
)

VIEWS: Final = ("messages", "buckets", "leases", "dead", "queues", "stats")

VIEWS_OF_MANY: Final = frozenset({"queues", "stats"})
"""Views that need no queue: without one they show all queues."""

FORMATS: Final[tuple[Option, ...]] = (
    Option(
        name="queue",
        scopes=FORMAT,
        values=values.queue_name(),
        is_required=True,
        example="orders",
        doc="The queue to read or to write.",
    ),
    Option(
        name="view",
        scopes=READ,
        values=values.one_of(*VIEWS),
        default="messages",
        has_variable=False,
        doc="What a batch read shows: visible messages, or another side of the queue's state; see "
        "the guide to views. `queues` and `stats` need no `queue`: they show all of the keyspace.",
    ),
    Option(
        name="pushFilters",
        scopes=READ,
        values=values.flag(),
        default=False,
        has_variable=False,
        doc="Read only the buckets that a query's filters let through. For a DataFrame that is "
        "filtered in one way only: Spark 4.3.0 gives what was pushed for one scan to the others, "
        "see the guide to views. Needs `spark.sql.python.filterPushdown.enabled`.",
    ),
    Option(
        name="minPartitions",
        scopes=READING,
        values=values.whole(1, 100_000),
        unit="input partitions",
        example=16,
        doc="Spread a batch over at least so many tasks, as far as there are messages. Unset: as "
        "many as the driver's machine has cores, one per 10,000 to 100,000 messages.",
    ),
    Option(
        name="maxMessagesPerTrigger",
        scopes=SOURCE,
        values=values.whole(1, 10**12),
        unit="messages",
        example=100_000,
        doc="Most messages in one micro-batch. Unset: all that are visible.",
    ),
    Option(
        name="maxBytesPerTrigger",
        scopes=SOURCE,
        values=values.size_bytes(1, 1 << 50),
        unit="bytes",
        example=256 * 1024**2,
        doc="About so many bytes in one micro-batch, as they are stored, so compressed; at least "
        "one message. Unset: no limit.",
    ),
    Option(
        name="minMessagesPerTrigger",
        scopes=SOURCE,
        values=values.whole(1, 10**12),
        unit="messages",
        example=10_000,
        doc="Wait until so many are visible, but no longer than `maxTriggerDelay`. Unset: take "
        "what is there. `availableNow` does not wait.",
    ),
    Option(
        name="maxTriggerDelay",
        scopes=SOURCE,
        values=values.seconds(0.1, 86_400),
        default=900.0,
        unit="seconds",
        example="30s",
        doc="How long `minMessagesPerTrigger` may hold back what is visible.",
    ),
    Option(
        name="lagInterval",
        scopes=SOURCE,
        values=values.seconds(0.1, 86_400),
        default=10.0,
        unit="seconds",
        doc="How often the messages behind are counted, for the query's progress.",
    ),
    Option(
        name="ackMode",
        scopes=SOURCE,
        values=values.one_of("commit", "manual"),
        default="commit",
        doc="`commit`: a batch is acked when Spark has committed it. `manual`: only what "
        "`cassieq_spark.settle` says is acked; the rest comes back.",
    ),
    Option(
        name="visibilityTimeout",
        scopes=SOURCE,
        values=values.seconds(0.1, THIRTY_DAYS_S),
        unit="seconds",
        example="30s",
        doc="How long messages of a batch stay hidden from others if the query dies; renewed while "
        "it runs. Unset: the queue's.",
    ),
    Option(
        name="consumer",
        scopes=SOURCE,
        values=values.text(200),
        example="billing",
        doc="A name that shows who holds a lease. Unset: one made of the run's id.",
    ),
    Option(
        name="onLeaseLost",
        scopes=SOURCE,
        values=values.one_of("skip", "fail"),
        default="skip",
        doc="When a restarted query finds messages of its batch with another consumer: go on "
        "without them, or fail.",
    ),
    Option(
        name="failOnDataLoss",
        scopes=SOURCE,
        values=values.flag(),
        default=True,
        doc="Fail when the queue was deleted and created anew, or purged, under the checkpoint.",
    ),
    Option(
        name="maxBatchDuration",
        scopes=SOURCE,
        values=values.seconds(1, THIRTY_DAYS_S),
        default=3_600.0,
        unit="seconds",
        doc="Leases are renewed no longer than this after Spark's last call.",
    ),
    Option(
        name="sinkId",
        scopes=SINK,
        values=values.text(400),
        example="orders-by-country",
        has_variable=False,
        doc="Names the transactions of a writer (Delta's `txnAppId`). Unset: Spark's query id; for "
        "`df.write`, a new transaction each time.",
    ),
    Option(
        name="batchId",
        scopes=SINK,
        values=values.whole(0, (1 << 63) - 1),
        example=7,
        has_variable=False,
        doc="For `df.write` with `sinkId` only: the batch that is written once (Delta's "
        "`txnVersion`).",
    ),
    Option(
        name="chunkMessages",
        scopes=SINK,
        values=values.whole(1, MAX_CHUNK_MESSAGES),
        default=CHUNK_MESSAGES,
        unit="messages",
        doc="Most messages in one stored row.",
    ),
    Option(
        name="chunkBytes",
        scopes=SINK,
        values=values.size_bytes(4 * 1024, PART_BYTES),
        default=CHUNK_BYTES,
        unit="bytes",
        doc="Most body bytes in one stored row, before compression; a larger body has its own.",
    ),
    Option(
        name="bucketBytes",
        scopes=SINK,
        values=values.size_bytes(1024**2, 256 * 1024**2),
        default=BUCKET_BYTES,
        unit="bytes",
        doc="A bucket (one Cassandra partition) is closed early at this size.",
    ),
    Option(
        name="writesInFlight",
        scopes=SINK,
        values=values.whole(1, 64),
        default=8,
        unit="statements",
        doc="Chunks that one task has under way at once.",
    ),
)

SPARKS_OWN: Final[tuple[Option, ...]] = (
    # Spark passes these to a source and a sink with ours: seen in 4.2.1 and 4.3.0, no others.
    Option(
        name="path",
        scopes=SPARK,
        values=values.anything(),
        doc="Argument of `load`, `save` and `start`.",
    ),
    Option(
        name="paths",
        scopes=SPARK,
        values=values.anything(),
        doc="Argument of `load`, when it is a list.",
    ),
    Option(
        name="checkpointLocation",
        scopes=SPARK,
        values=values.anything(),
        doc="Where a streaming query keeps its progress.",
    ),
    Option(
        name="queryName",
        scopes=SPARK,
        values=values.anything(),
        doc="A streaming query's name.",
    ),
)

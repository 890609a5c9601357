"""Define the options of `format("cassieq")` for source, reader and sink, and those of Spark.

Each is one row: a field of the frozen value that a task gets, with what is allowed and its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.lanes import MAX_PRIORITIES
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
    row,
    rows_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from cassieq_spark.model.ids import QueueName
    from cassieq_spark.options.of_connection import ConnectionOptions

VIEWS: Final = ("messages", "buckets", "leases", "dead", "queues", "lanes", "stats", "scheduled")

VIEWS_OF_MANY: Final = frozenset({"queues", "lanes", "stats", "scheduled"})
"""Views that need no queue: without one they show all queues."""

NAMING: Final = ("queue", "queues", "queuePattern")
"""The options that name queues. Exactly one of them counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSelection:
    """Which queues to read.

    Attributes:
        names: Their names; empty with a pattern, and for all.
        pattern: A regular expression of their whole names.
        is_one: Set by option ``queue``.
    """

    names: tuple[QueueName, ...] = ()
    pattern: str | None = None
    is_one: bool = False

    def __str__(self) -> str:
        """How reports and errors name it."""
        return self.pattern or ", ".join(self.names)

    @property
    def is_all(self) -> bool:
        """Whether nothing limits them."""
        return not self.names and self.pattern is None

    def has(self, queue: QueueName) -> bool:
        """Whether this queue is among them."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, queue) is not None
        return self.is_all or queue in self.names


def select(
    found: Mapping[str, Any], arguments: Set[str], whose: str, *, may_be_all: bool = False
) -> QueueSelection:
    """Find which of `NAMING` counts: an argument before a variable.

    Args:
        found: The values of all options, by name.
        arguments: The names of those that were not taken from a variable or a default.
        whose: The owner of the options, as errors call it.

    Raises:
        OptionInvalid: Several are set, or none.
    """
    given = arguments & set(NAMING)
    chosen = [name for name in NAMING if found[name] is not None and (name in given or not given)]
    if len(chosen) > 1:
        raise OptionInvalid(
            f"options {' and '.join(map(repr, chosen))} of {whose} are set, and each of them names "
            "the queues to read. Set one of them"
        )
    if not chosen and not may_be_all:
        raise OptionInvalid(
            f"option 'queue' of {whose} is not set. Set it to the name of the queue to read, or "
            "set 'queues' or 'queuePattern' to read several"
        )
    if chosen == ["queue"]:
        return QueueSelection(names=(found["queue"],), is_one=True)
    if chosen == ["queues"]:
        return QueueSelection(names=found["queues"])
    return QueueSelection(pattern=found["queuePattern"] if chosen else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options of both ways to read.

    Attributes:
        min_partitions: Spread a batch over at least this many tasks, if there are enough messages.
            Unset: as many tasks as the driver's machine has cores, with 10,000 to 500,000 messages
            each.
    """

    connection: ConnectionOptions
    queues: QueueSelection
    min_partitions: int | None = row(values.whole(1, 100_000), unit="input partitions", example=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(ReadingOptions):
    """Options of ``spark.read``. Its queues are all only for a view of many queues.

    Attributes:
        view: What a batch read shows: the visible messages, or another side of the queue's state;
            see the guide to views. `queues`, `lanes`, `stats` and `scheduled` need no `queue`:
            without it they show all queues of the keyspace.
        push_filters: Read only the buckets that the query's filters select. Use it only for a
            DataFrame that is filtered in one way: Spark 4.3.0 gives the filters of one scan to the
            others as well, see the guide to views. Needs `spark.sql.python.filterPushdown.enabled`.
    """

    view: str = row(values.one_of(*VIEWS), default="messages", has_variable=False)
    push_filters: bool = row(values.flag(), default=False, has_variable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ReadingOptions):
    """Options of ``spark.readStream``.

    Attributes:
        max_messages_per_trigger: The most messages in one micro-batch. Unset: all visible messages.
        max_bytes_per_trigger: The approximate size of one micro-batch, in bytes as they are stored,
            that is, compressed. A batch has at least one message. Unset: no limit.
        min_messages_per_trigger: Wait until at least this many messages are visible, but no longer
            than `maxTriggerDelay`. Unset: take what is visible. Queries with `availableNow` do not
            wait.
        max_trigger_delay_s: How long `minMessagesPerTrigger` may hold back visible messages.
        lag_interval_s: How often the query counts the messages that it is behind, for its progress.
        ack_mode: `commit`: a batch is acked when Spark has committed it. `manual`: only the
            messages that `cassieq_spark.settle` acks are acked; the others are delivered again.
        min_priority: Read only messages of this priority and higher ones.
        visibility_timeout_s: How long the messages of a batch stay hidden from other consumers if
            the query dies. A running query renews its leases. Unset: the queue's timeout.
        consumer: A name that shows who holds a lease. Unset: a name made from the run's id.
        on_lease_lost: What a restarted query does if another consumer has messages of its batch:
            `skip` goes on without them, `fail` ends the query.
        fail_on_data_loss: Fail if the queue was purged, or deleted and created anew, since the
            checkpoint was written.
        max_batch_duration_s: How long the query goes on renewing leases after Spark's last call.
    """

    max_messages_per_trigger: int | None = row(
        values.whole(1, 10**12), unit="messages", example=100_000
    )
    max_bytes_per_trigger: int | None = row(
        values.size_bytes(1, 1 << 50), unit="bytes", example=256 * 1024**2
    )
    min_messages_per_trigger: int | None = row(
        values.whole(1, 10**12), unit="messages", example=10_000
    )
    max_trigger_delay_s: float = row(
        values.seconds(0.1, 86_400), default=900.0, unit="seconds", example="30s"
    )
    lag_interval_s: float = row(values.seconds(0.1, 86_400), default=10.0, unit="seconds")
    ack_mode: str = row(values.one_of("commit", "manual"), default="commit")
    min_priority: int = row(values.whole(0, MAX_PRIORITIES - 1), default=0)
    visibility_timeout_s: float | None = row(
        values.seconds(0.1, THIRTY_DAYS_S), unit="seconds", example="30s"
    )
    consumer: str | None = row(values.text(200), example="billing")
    on_lease_lost: str = row(values.one_of("skip", "fail"), default="skip")
    fail_on_data_loss: bool = row(values.flag(), default=True)
    max_batch_duration_s: float = row(
        values.seconds(1, THIRTY_DAYS_S), default=3_600.0, unit="seconds"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of ``df.writeStream`` and ``df.write``.

    Attributes:
        sink_id: The name of a writer's transactions, like Delta's `txnAppId`. Unset: Spark's query
            id; for `df.write`, each write is a new transaction.
        batch_id: The number of the batch, which is written only once, like Delta's `txnVersion`.
            For `df.write`, which needs both, or neither of `sinkId` and `batchId`.
        chunk_messages: The most messages in one stored row.
        chunk_bytes: The most bytes of bodies in one stored row, before compression. A larger body
            has a row of its own.
        bucket_bytes: The size at which a bucket (one Cassandra partition) is closed early.
        writes_in_flight: The number of chunks that one task writes at the same time, in all lanes
            together.
    """

    connection: ConnectionOptions
    queue: QueueName
    sink_id: str | None = row(values.text(400), example="orders-by-country", has_variable=False)
    batch_id: int | None = row(values.whole(0, (1 << 63) - 1), example=7, has_variable=False)
    chunk_messages: int = row(
        values.whole(1, MAX_CHUNK_MESSAGES), default=CHUNK_MESSAGES, unit="messages"
    )
    chunk_bytes: int = row(
        values.size_bytes(4 * 1024, PART_BYTES), default=CHUNK_BYTES, unit="bytes"
    )
    bucket_bytes: int = row(
        values.size_bytes(1024**2, 256 * 1024**2), default=BUCKET_BYTES, unit="bytes"
    )
    writes_in_flight: int = row(values.whole(1, 64), default=8, unit="statements")


FORMATS: Final[tuple[Option, ...]] = (
    Option(
        name="queue",
        field="queue",
        scopes=FORMAT,
        values=values.queue_name(),
        is_required=True,
        example="orders",
        doc="The queue to read from or to write to.",
    ),
    Option(
        name="queues",
        scopes=READING,
        values=values.queue_names(),
        example="orders, invoices",
        doc="The queues to read from, instead of `queue`. A query shares each batch among those "
        "that have messages.",
    ),
    Option(
        name="queuePattern",
        scopes=READING,
        values=values.pattern(),
        example="orders\\..*",
        doc="Read from all queues whose whole name matches this regular expression of Python, "
        "instead of `queue`. A query looks for new ones every 30 seconds.",
    ),
    *rows_of(ReadOptions, READ),
    *rows_of(ReadingOptions, READING),
    *rows_of(SourceOptions, SOURCE),
    *rows_of(SinkOptions, SINK),
)

# Spark passes these to a source and a sink with ours: seen in 4.2.1 and 4.3.0, no others.
SPARKS_OWN: Final = tuple(
    Option(name=name, scopes=SPARK, values=values.anything(), doc=doc)
    for name, doc in {
        "path": "Argument of `load`, `save` and `start`. It is refused: a queue has no path.",
        "paths": "Argument of `load` if it is a list. It is refused, too.",
        "checkpointLocation": "The directory where a streaming query keeps its progress.",
        "queryName": "The name of a streaming query.",
    }.items()
)

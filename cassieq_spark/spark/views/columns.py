"""Define the views' columns: their types, the source of their values, and their filters."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cassieq_spark.model.pointer import MINUTE_US
from cassieq_spark.spark.columns import arrow_schema
from cassieq_spark.spark.schema import ALL, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from cassieq_spark.queue.inspect.facts import QueueFacts

ROWS_TOGETHER: Final = 1_000

_TEXT: Final = StringType()
_NUMBER: Final = LongType()
_COUNTS: Final = MapType(StringType(), LongType())
_RUN: Final = StructType([StructField("first", LongType()), StructField("last", LongType())])

_KINDS: Final[dict[type[DataType], type[str | int]]] = {
    StringType: str,
    LongType: int,
    IntegerType: int,
    BooleanType: bool,
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a view of facts.

    Attributes:
        of: Computes its value from (name of the queue, facts): times are µs, maps are dicts.
    """

    name: str
    kind: DataType
    of: Callable[[str, Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view.

    Attributes:
        schema: Its columns, as a load without a schema has them.
        more: Columns that it has where a user's schema names them.
        filtered: The columns whose filters are applied where the rows are made, with the type of
            their values.
        ids: The filtered columns that hold an id in the row's bucket.
    """

    name: str
    schema: StructType
    filtered: Mapping[str, type[str | int]]
    ids: frozenset[str] = frozenset()
    columns: Mapping[str, Column]
    more: StructType = field(default_factory=StructType)

    @property
    def all(self) -> StructType:
        """All its columns."""
        return StructType([*self.schema, *self.more])

    @property
    def whose(self) -> str:
        """The owner of the columns, as errors call it."""
        return "a queue" if self.name == "messages" else f"the {self.name} view"


def _fact(name: str, kind: DataType, path: str = "") -> Column:
    get = attrgetter(path or name)
    return Column(name, kind, lambda _, facts: get(facts))


_QUEUE: Final = Column("queue", _TEXT, lambda queue, _: queue)


def _of_facts(name: str, ids: Iterable[str], *parts: Column) -> View:
    schema = StructType([StructField(one.name, one.kind) for one in parts])
    return View(
        name=name,
        schema=schema,
        filtered={one.name: _KINDS[type(one.kind)] for one in parts if type(one.kind) in _KINDS},
        ids=frozenset(ids),
        columns={one.name: one for one in parts},
    )


def _minute(_: str, facts: QueueFacts) -> object:
    # Minute 0 is a pointer that nobody has moved: not a time of 1970, or of 1969 west of Greenwich.
    if facts.pointers is None or facts.pointers.time == 0:
        return None
    return facts.pointers.time * MINUTE_US


def _pointer(which: str) -> Callable[[str, Any], object]:
    get = attrgetter(which)
    return lambda _, facts: None if facts.pointers is None else get(facts.pointers)


BUCKETS: Final = _of_facts(
    "buckets",
    ("first_id", "last_id"),
    _QUEUE,
    _fact("lane", _TEXT),
    _fact("priority", IntegerType()),
    _fact("bucket", _NUMBER),
    _fact("status", _TEXT),
    _fact("first_id", _NUMBER),
    _fact("last_id", _NUMBER),
    _fact("messages", _NUMBER),
    _fact("fresh", _NUMBER),
    _fact("returned", _NUMBER),
    _fact("leased", _NUMBER),
    _fact("delayed", _NUMBER),
    _fact("dead", _NUMBER),
    _fact("acked", _NUMBER),
    _fact("updated", _NUMBER),
    _fact("leases", _NUMBER),
    _fact("consumers", _COUNTS),
    _fact("stored_bytes", _NUMBER),
    _fact("changed_at", TimestampType(), "changed_us"),
    _fact("sink_id", _TEXT),
    _fact("epoch", _NUMBER),
    _fact("block_end", _NUMBER),
    _fact("row_version", _NUMBER),
)

LOOKED_INTO: Final = frozenset({"messages", "fresh", "delayed", "stored_bytes"})
"""Columns that need a read of a bucket's messages if the bucket is not sealed."""

LEASES: Final = _of_facts(
    "leases",
    ("first_id", "last_id"),
    _QUEUE,
    _fact("lane", _TEXT),
    _fact("priority", IntegerType()),
    _fact("bucket", _NUMBER),
    _fact("consumer", _TEXT),
    _fact("lease_id", _TEXT),
    _fact("run", _TEXT),
    _fact("messages", _NUMBER),
    _fact("delivery_count", IntegerType()),
    _fact("until", TimestampType(), "until_us"),
    _fact("is_expired", BooleanType()),
    _fact("first_id", _NUMBER),
    _fact("last_id", _NUMBER),
    Column(
        "id_runs",
        ArrayType(_RUN),
        lambda _, facts: [{"first": first, "last": last} for first, last in facts.id_runs],
    ),
)

QUEUES: Final = _of_facts(
    "queues",
    (),
    _QUEUE,
    _fact("status", _TEXT, "row.status.value"),
    _fact("created_at", TimestampType(), "row.created_us"),
    _fact("home_datacenter", _TEXT, "row.home_datacenter"),
    _fact("bucket_size", _NUMBER, "row.settings.bucket_size"),
    _fact("priorities", IntegerType(), "row.settings.priorities"),
    _fact("shards", IntegerType(), "row.settings.shards"),
    _fact("fairness", DoubleType(), "row.settings.fairness"),
    _fact("schedule_after_s", DoubleType(), "row.settings.schedule_after_s"),
    _fact("schedule_period_s", DoubleType(), "row.settings.schedule_period_s"),
    _fact("visibility_timeout_s", DoubleType(), "row.settings.visibility_timeout_s"),
    _fact("max_deliveries", IntegerType(), "row.settings.max_deliveries"),
    _fact("dead_letter_queue", _TEXT, "row.settings.dead_letter_queue"),
    _fact("repair_timeout_s", DoubleType(), "row.settings.repair_timeout_s"),
    _fact("linger_s", DoubleType(), "row.settings.linger_s"),
    _fact("gap_timeout_s", DoubleType(), "row.settings.gap_timeout_s"),
    _fact("retention_s", DoubleType(), "row.settings.retention_s"),
    _fact("dead_letter_expired", BooleanType(), "row.settings.dead_letter_expired"),
    _fact("dedup_window_s", DoubleType(), "row.settings.dedup_window_s"),
    _fact("next_id", _NUMBER),
    Column("reader_bucket", _NUMBER, _pointer("reader")),
    Column("repair_bucket", _NUMBER, _pointer("repair")),
    Column("leases_checked_until", TimestampType(), _minute),
    Column("lane", _TEXT, lambda _, facts: str(facts.row.lanes[0])),
)

LANES: Final = _of_facts(
    "lanes",
    (),
    _QUEUE,
    _fact("lane", _TEXT),
    _fact("priority", IntegerType()),
    _fact("shard", IntegerType()),
    _fact("due_from", TimestampType(), "due_us"),
    _fact("next_id", _NUMBER),
    Column("reader_bucket", _NUMBER, _pointer("reader")),
    Column("repair_bucket", _NUMBER, _pointer("repair")),
    Column("leases_checked_until", TimestampType(), _minute),
    _fact("visible", _NUMBER),
)

STATS: Final = _of_facts(
    "stats",
    (),
    _QUEUE,
    _fact("visible", _NUMBER),
    _fact("by_priority", MapType(IntegerType(), LongType())),
    _fact("invisible", _NUMBER),
    _fact("delayed", _NUMBER),
    _fact("dead", _NUMBER),
    _fact("oldest_age_s", DoubleType(), "oldest_age"),
    _fact("buckets", _COUNTS),
    _fact("consumers", _COUNTS),
    _fact("applied_lwts", _NUMBER),
)

SCHEDULED: Final = _of_facts(
    "scheduled",
    (),
    _QUEUE,
    _fact("due_from", TimestampType()),
    _fact("priority", IntegerType()),
    _fact("messages", _NUMBER),
)

_LANE: Final = StructType(ALL.fields[len(SCHEMA) :])

_OF_A_MESSAGE: Final = ("message_id", "queue", "body", "tag", "headers", "id", "bucket")

MESSAGES: Final = View(
    name="messages",
    schema=SCHEMA,
    filtered={"queue": str, "bucket": int, "id": int},
    ids=frozenset({"id"}),
    columns={},
    more=_LANE,
)

DEAD: Final = View(
    name="dead",
    schema=StructType(
        [
            *(SCHEMA[name] for name in (*_OF_A_MESSAGE, "enqueued_at", "delivery_count")),
            StructField("died_at", TimestampType()),
            StructField("reason", StringType()),
            StructField("set_id", StringType()),
            StructField("target", StringType()),
        ]
    ),
    filtered={
        "queue": str,
        "bucket": int,
        "id": int,
        "reason": str,
        "set_id": str,
        "target": str,
    },
    ids=frozenset({"id"}),
    columns={},
    more=_LANE,
)

VIEWS: Final = {
    view.name: view for view in (MESSAGES, BUCKETS, LEASES, DEAD, QUEUES, LANES, STATS, SCHEDULED)
}


def batches(
    view: View, names: tuple[str, ...], rows: Iterable[tuple[str, object]]
) -> Iterator[pa.RecordBatch]:
    """Turn facts, each with its queue's name, into record batches of up to 1,000 rows."""
    schema = arrow_schema(names, view.all)
    of = [view.columns[name].of for name in names]
    some: list[tuple[str, object]] = []
    for row in rows:
        some.append(row)
        if len(some) >= ROWS_TOGETHER:
            yield _batch(schema, of, some)
            some = []
    if some:
        yield _batch(schema, of, some)


def _batch(
    schema: pa.Schema,
    of: list[Callable[[str, Any], object]],
    rows: list[tuple[str, object]],
) -> pa.RecordBatch:
    arrays = [
        pa.array([_plain(value(*row)) for row in rows], field.type)
        for field, value in zip(schema, of, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(value: object) -> object:
    """Turn a map into the form that Arrow takes."""
    return list(value.items()) if isinstance(value, dict) else value

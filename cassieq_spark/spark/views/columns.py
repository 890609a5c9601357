"""Define the views' columns: their types, the source of their values, and their filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
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
    from cassieq_spark.queue.inspect.facts import QueueFacts

ROWS_TOGETHER: Final = 1_000

_RUN: Final = StructType([StructField("first", LongType()), StructField("last", LongType())])

_KINDS: Final[dict[str, DataType]] = {
    "string": StringType(),
    "long": LongType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "by_text": MapType(StringType(), LongType()),
    "by_int": MapType(IntegerType(), LongType()),
    "ints": ArrayType(IntegerType()),
    "runs": ArrayType(_RUN),
}

_FILTERED: Final[dict[type[DataType], type[str | int]]] = {
    StringType: str,
    LongType: int,
    IntegerType: int,
    BooleanType: bool,
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view of facts.

    Attributes:
        of: Computes its value from (name of the queue, facts): times are µs, maps are dicts.
    """

    name: str
    kind: DataType
    of: Callable[[str, Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A view: its columns, and the filters that it applies itself.

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
    columns: Mapping[str, Column] = field(default_factory=dict)
    more: StructType = field(default_factory=StructType)

    @property
    def all(self) -> StructType:
        """All its columns."""
        return StructType([*self.schema, *self.more])

    @property
    def whose(self) -> str:
        """The owner of the columns, as errors call it."""
        return "a queue" if self.name == "messages" else f"the {self.name} view"


def _facts(text: str) -> list[Column]:
    """Columns, each as ``name kind``, or ``name kind path`` if the facts have it elsewhere.

    A path that ends with a dot is of the object that has it by the same name.
    """
    return [_fact(*one.split()) for one in text.split(",")]


def _fact(name: str, kind: str, path: str = "") -> Column:
    get = attrgetter(path + name if path.endswith(".") else path or name)
    return Column(name, _KINDS[kind], lambda _, facts: get(facts))


def _of_facts(name: str, ids: Iterable[str], *parts: Column) -> View:
    parts = (Column("queue", _KINDS["string"], lambda queue, _: queue), *parts)
    return View(
        name=name,
        schema=StructType([StructField(one.name, one.kind) for one in parts]),
        filtered={
            one.name: _FILTERED[type(one.kind)] for one in parts if type(one.kind) in _FILTERED
        },
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


_POINTERS: Final = (
    Column("reader_bucket", _KINDS["long"], _pointer("reader")),
    Column("repair_bucket", _KINDS["long"], _pointer("repair")),
    Column("leases_checked_until", _KINDS["timestamp"], _minute),
)

BUCKETS: Final = _of_facts(
    "buckets",
    ("first_id", "last_id"),
    *_facts(
        "lane string, priority int, bucket long, status string, first_id long, last_id long, "
        "messages long, fresh long, returned long, leased long, delayed long, dead long, "
        "acked long, updated long, leases long, consumers by_text, stored_bytes long, "
        "changed_at timestamp changed_us, sink_id string, epoch long, block_end long, "
        "row_version long"
    ),
)

LOOKED_INTO: Final = frozenset({"messages", "fresh", "delayed", "stored_bytes"})
"""Columns that need a read of a bucket's messages if the bucket is not sealed."""

LEASES: Final = _of_facts(
    "leases",
    ("first_id", "last_id"),
    *_facts(
        "lane string, priority int, bucket long, consumer string, lease_id string, run string, "
        "messages long, delivery_count int, until timestamp until_us, is_expired boolean, "
        "first_id long, last_id long, id_runs runs"
    ),
)

QUEUES: Final = _of_facts(
    "queues",
    (),
    *_facts(
        "status string row.status.value, created_at timestamp row.created_us, "
        "home_datacenter string row., bucket_size long row.settings., "
        "priorities int row.settings., shards int row.settings., fairness double row.settings., "
        "schedule_after_s double row.settings., schedule_period_s double row.settings., "
        "visibility_timeout_s double row.settings., max_deliveries int row.settings., "
        "dead_letter_queue string row.settings., repair_timeout_s double row.settings., "
        "linger_s double row.settings., gap_timeout_s double row.settings., "
        "retention_s double row.settings., dead_letter_expired boolean row.settings., "
        "dedup_window_s double row.settings., next_id long"
    ),
    *_POINTERS,
    Column("lane", _KINDS["string"], lambda _, facts: str(facts.row.lanes[0])),
)

LANES: Final = _of_facts(
    "lanes",
    (),
    *_facts("lane string, priority int, shard int, due_from timestamp due_us, next_id long"),
    *_POINTERS,
    *_facts("visible long"),
)

STATS: Final = _of_facts(
    "stats",
    (),
    *_facts(
        "visible long, by_priority by_int, in_flight long, delayed long, dead long, "
        "oldest_age_s double oldest_age, buckets by_text, consumers by_text, applied_lwts long, "
        "paused ints"
    ),
)

SCHEDULED: Final = _of_facts(
    "scheduled", (), *_facts("due_from timestamp, priority int, messages long")
)

_LANE: Final = StructType(ALL.fields[len(SCHEMA) :])

_OF_A_MESSAGE: Final = ("message_id", "queue", "body", "tag", "headers", "id", "bucket")

MESSAGES: Final = View(
    name="messages",
    schema=SCHEMA,
    filtered={"queue": str, "bucket": int, "id": int},
    ids=frozenset({"id"}),
    more=_LANE,
)

DEAD: Final = View(
    name="dead",
    schema=StructType(
        [
            *(SCHEMA[name] for name in (*_OF_A_MESSAGE, "enqueued_at", "delivery_count")),
            StructField("died_at", TimestampType()),
            *(StructField(name, StringType()) for name in ("reason", "set_id", "target")),
        ]
    ),
    filtered={**MESSAGES.filtered, "reason": str, "set_id": str, "target": str},
    ids=MESSAGES.ids,
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
    rest = iter(rows)
    while some := list(islice(rest, ROWS_TOGETHER)):
        arrays = [
            pa.array([_plain(value(*row)) for row in some], field.type)
            for field, value in zip(schema, of, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(value: object) -> object:
    """Turn a map into the form that Arrow takes."""
    return list(value.items()) if isinstance(value, dict) else value

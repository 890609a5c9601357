"""Check the rows of a writing task, and pack them into chunks by count, bytes and due times.

This is what becomes of a record batch between Spark and a writer: `check_sink_schema` looks at the
DataFrame's columns before a query begins, `from_input` at each value, and `Packer` cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from cassieq_spark.errors import BodyInvalid, OptionInvalid
from cassieq_spark.model import bucket_plan
from cassieq_spark.model.lanes import LONGEST_DELAY_US
from cassieq_spark.model.sizes import MAX_BODY_BYTES, MAX_EXTRA_BYTES
from cassieq_spark.options.option import did_you_mean
from cassieq_spark.spark import arrays, groups
from cassieq_spark.spark.schema import SCHEMA, refuse_twice
from cassieq_spark.store.chunk import BODY, HEADERS, MESSAGE_ID, STORED_TYPES, TAG, Encoder

DELAY: Final = "delay"
DUE_AT: Final = "due_at"
PRIORITY: Final = "priority"
KEY: Final = "key"
GROUP: Final = "group"
"""Columns of the input that no chunk has: a due time is beside its chunk, a group id is among the
headers, and the others say which lane it is in."""

DUE: Final = "due"
"""The column made of a delay or a due time: when each message may be delivered, cluster µs; 0: at
once."""

MAX_DELAY_S: Final = LONGEST_DELAY_US // 1_000_000

_UUID_PATTERN: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTaker:
    """A receiver of one lane's chunks: a bulk writer, or rows for the connector to write.

    Attributes:
        capacity: Says how many messages the next chunk may have: 1 or more.
        add: Takes one chunk (payload, count, due times); see `queue.sink.writer.LaneWriter.add`.
        close: No chunk follows soon; one may follow later.
    """

    capacity: Callable[[], int]
    add: Callable[[bytes, int, Sequence[int] | None], None]
    close: Callable[[], None]


class Packer:
    """Cuts rows into chunks for a taker. Rows that do not fill a chunk wait for the next batch."""

    def __init__(self, writer: ChunkTaker, *, chunk_messages: int, chunk_bytes: int) -> None:
        self._writer = writer
        self._messages = chunk_messages
        self._bytes = chunk_bytes
        self._encoder = Encoder()
        self._waiting: pa.RecordBatch | None = None

    def add(self, checked: pa.RecordBatch) -> None:
        """Take a record batch as `stored` returns it."""
        waiting, self._waiting = self._waiting, None
        together = checked if waiting is None else pa.concat_batches([waiting, checked])
        self._write_chunks(together, keep_rest=True)

    def flush(self) -> None:
        """Write the rows that wait."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._write_chunks(waiting, keep_rest=False)

    def _write_chunks(self, batch: pa.RecordBatch, *, keep_rest: bool) -> None:
        ends = arrays.ends(row_sizes(batch))
        at = 0
        while at < batch.num_rows:
            most = min(self._messages, self._writer.capacity())
            end = bucket_plan.chunk_end(ends, at, at_most=most, limit_bytes=self._bytes)
            if keep_rest and end == batch.num_rows and end - at < most:
                self._waiting = batch.slice(at)
                return
            self._write(batch.slice(at, end - at))
            at = end

    def _write(self, part: pa.RecordBatch) -> None:
        due_us: list[int] | None = None
        if DUE in part.schema.names:
            times = arrays.numbers(part.column(DUE))
            due_us = times.tolist() if times.any() else None
        self._writer.add(self._encoder.encode(part), part.num_rows, due_us)


def check_sink_schema(schema: StructType) -> None:
    """Refuse a DataFrame that cannot be put, before any of its rows is read.

    Raises:
        OptionInvalid: It names the column, its type, and what is allowed.
    """
    refuse_twice(schema)
    _check_columns({field.name: _arrow_type(field) for field in schema.fields})


def from_input(batch: pa.RecordBatch, *, position: int) -> pa.RecordBatch:
    """Check one record batch of messages and give it the stored types.

    Args:
        batch: Columns as `check_sink_schema` allows; ``delay`` in seconds.
        position: The position of its first row, for error messages.

    Returns:
        The stored columns it has, ``delay`` and ``due_at`` as int64 µs, the latter since 1970,
        ``priority`` as int64, ``key`` as text; ``group`` is among the headers.

    Raises:
        BodyInvalid: A value is null, too large or malformed; it names the row.
    """
    _check_columns({field.name: field.type for field in batch.schema})
    groups.refuse_stored(batch, position)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        _check_text(name, column, position)
    columns: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        checked = _CHECKED.get(name)
        columns[name] = checked(column, position) if checked else column.cast(_TYPES[name])
    if GROUP in columns:
        columns[HEADERS] = groups.with_groups(columns.get(HEADERS), columns.pop(GROUP))
    _check_bodies(columns[BODY], position)
    found = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    _check_extras(found, position)
    return found


def row_sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of each message in all stored columns: any of them may be the large one [T20].

    Args:
        batch: As `from_input` returns it, or a slice of it.
    """
    sizes = _extra_sizes(batch) + arrays.lengths(batch.column(BODY))
    if MESSAGE_ID in batch.schema.names:
        column = batch.column(MESSAGE_ID)
        sizes += column.type.byte_width * arrays.is_valid(column)
    return sizes


def due_times(batch: pa.RecordBatch, now_us: int) -> NDArray[np.int64] | None:
    """Return when each message may be delivered, cluster µs, 0: at once; None: all of them at once.

    Args:
        batch: As `from_input` returns it.
    """
    if DELAY in batch.schema.names:
        delays = arrays.numbers(batch.column(DELAY))
        due = np.where(delays > 0, delays + now_us, 0)
    elif DUE_AT in batch.schema.names:
        times = arrays.numbers(batch.column(DUE_AT))
        due = np.where(times > now_us, times, 0)
    else:
        return None
    return due if due.any() else None


def stored(batch: pa.RecordBatch, due: NDArray[np.int64] | None) -> pa.RecordBatch:
    """Return what a `Packer` takes: the stored columns, and `DUE` if there can be due times.

    Args:
        batch: As `from_input` returns it.
        due: As `due_times` returns it.
    """
    has_due = DELAY in batch.schema.names or DUE_AT in batch.schema.names
    batch = batch.select([name for name in batch.schema.names if name in STORED_TYPES])
    if not has_due:
        return batch
    # Rows of all batches are put together: they have the same columns, whether any waits or not.
    times = np.zeros(batch.num_rows, dtype=np.int64) if due is None else due
    return batch.append_column(DUE, arrays.integers(times))


def _check_columns(found: dict[str, pa.DataType]) -> None:
    if BODY not in found:
        raise OptionInvalid(
            f"column 'body' (binary) is missing; the DataFrame has {', '.join(found) or 'none'}."
            f"{did_you_mean(BODY, found)} Select the content of a message as 'body', cast to "
            "binary"
        )
    if DELAY in found and DUE_AT in found:
        raise OptionInvalid(
            "columns 'delay' and 'due_at' both say when a message is delivered. Give one of them: "
            "F.coalesce('due_at', F.current_timestamp() + F.make_dt_interval(secs='delay'))"
        )
    for name, kind in found.items():
        if name in _NOT_BY_SPARK:
            instead = _NOT_BY_SPARK[name]
            raise OptionInvalid(f"column {name!r} cannot be written by Spark. {instead}")
        if name not in _ALLOWED:
            raise OptionInvalid(
                f"unknown column {name!r}.{did_you_mean(name, _ALLOWED)} A queue takes body, tag, "
                "headers, group, delay, due_at, priority, key and message_id: drop this column, or "
                f"put it into the body or the headers{_of_a_read(found)}"
            )
        allows, says = _ALLOWED[name]
        if not allows(kind):
            hint = ""
            if name == BODY and kind in _TEXTS:
                hint = " Cast it: F.col('body').cast('binary')"
            elif name == DUE_AT and pa.types.is_timestamp(kind):
                hint = " Cast it, as a time of the session's time zone: .cast('timestamp')"
            raise OptionInvalid(f"column {name!r} is {kind}, allowed: {says}.{hint}")


def _of_a_read(found: Collection[str]) -> str:
    """A hint for somebody who writes all columns that are read, as INSERT does into a view."""
    if SCHEMA.names != list(found):
        return ""
    return (
        ". These are the columns of a read: name those to write, in SQL when the view is created: "
        "CREATE TEMPORARY VIEW v (body BINARY, tag STRING) USING cassieq OPTIONS (...)"
    )


def _arrow_type(field: StructField) -> pa.DataType:
    """The Arrow type of a Spark field; null if Arrow has none: it is then refused by name."""
    try:
        return to_arrow_type(field.dataType, timezone="UTC")
    except Exception:  # noqa: BLE001 - pyspark raises many kinds; any of them means "not storable"
        return pa.null()


def _extra_sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of each message's tag and headers, with its group."""
    sizes = np.zeros(batch.num_rows, dtype=np.int64)
    if TAG in batch.schema.names:
        sizes += arrays.lengths(batch.column(TAG))
    if HEADERS in batch.schema.names:
        column = batch.column(HEADERS)
        # For a slice, too, these are all keys and items, and the offsets are the slice's.
        both = arrays.lengths(column.keys) + arrays.lengths(column.items)
        sizes += np.diff(arrays.ends(both)[arrays.offsets(column)]) * arrays.is_valid(column)
    return sizes


_NOT_BY_SPARK: Final = {
    "ttl": "Set the queue's retention, or put messages with a time to live by "
    "Queue.put_many(ttl=...)",
    "dedup_key": "A batch is in the queue once whatever happens, so it needs none. To leave out "
    "rows that other batches have had, use dropDuplicatesWithinWatermark",
}

_TYPES: Final = {**STORED_TYPES, PRIORITY: pa.int64(), KEY: pa.string()}

_TEXTS: Final = {pa.string(), pa.large_string()}
_BINARIES: Final = {pa.binary(), pa.large_binary()}

_ALLOWED: Final[dict[str, tuple[Callable[[pa.DataType], bool], str]]] = {
    BODY: (_BINARIES.__contains__, "binary"),
    TAG: (_TEXTS.__contains__, "string"),
    HEADERS: (
        lambda kind: pa.types.is_map(kind) and {kind.key_type, kind.item_type} <= _TEXTS,
        "map<string, string>",
    ),
    GROUP: (_TEXTS.__contains__, "string"),
    DELAY: (
        lambda kind: (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        ),
        "a number of seconds",
    ),
    DUE_AT: (
        lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
        "a timestamp with a time zone",
    ),
    PRIORITY: (pa.types.is_integer, "an integer"),
    KEY: (_TEXTS.__contains__, "string"),
    MESSAGE_ID: (
        {*_TEXTS, *_BINARIES, STORED_TYPES[MESSAGE_ID]}.__contains__,
        "string (a UUID) or binary (16 bytes)",
    ),
}


def _check_bodies(bodies: pa.Array, position: int) -> None:
    arrays.refuse(
        ~arrays.is_valid(bodies),
        position,
        lambda _: "has a null body. Filter such rows out, or give them an empty body",
    )
    sizes = arrays.lengths(bodies)
    arrays.refuse(
        sizes > MAX_BODY_BYTES,
        position,
        lambda row: (
            f"has a body of {sizes[row]} bytes, but the limit is {MAX_BODY_BYTES}. Store it "
            "elsewhere and put a reference to it"
        ),
    )


def _check_text(name: str, column: pa.Array, position: int) -> None:
    """Refuse what no program could read: Spark's text may hold any bytes, and its maps nulls."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        for row in range(len(column)):
            try:
                column[row].as_py()
            except UnicodeDecodeError:
                raise BodyInvalid(
                    f"row {position + row} of its input partition has text that is not UTF-8 in "
                    f"column {name!r}. Write such bytes into the body, or make them text, as by "
                    "base64()"
                ) from error
    if name == HEADERS and column.items.null_count:
        for row in range(len(column)):
            empty = [key for key, value in column[row].as_py() or () if value is None]
            if empty:
                raise BodyInvalid(
                    f"row {position + row} of its input partition has no value for header "
                    f"{empty[0]!r}. Leave it out: F.map_filter('headers', lambda name, value: "
                    "value.isNotNull()), or give it an empty text"
                )


def _check_extras(batch: pa.RecordBatch, position: int) -> None:
    sizes = _extra_sizes(batch)
    arrays.refuse(
        sizes > MAX_EXTRA_BYTES,
        position,
        lambda row: (
            f"has a tag, headers and group of {sizes[row]} bytes, but the limit is "
            f"{MAX_EXTRA_BYTES}. Put the rest into the body"
        ),
    )


def _delays(column: pa.Array, position: int) -> pa.Array:
    seconds = arrays.numbers(column.cast(pa.float64()))
    arrays.refuse(
        ~np.isfinite(seconds) | (seconds < 0) | (seconds > MAX_DELAY_S),
        position,
        lambda row: f"has a delay of {seconds[row]} s, allowed: 0 to {MAX_DELAY_S} s (400 days)",
    )
    return arrays.integers((seconds * 1e6).astype(np.int64))


def _due_times(column: pa.Array, _: int) -> pa.Array:
    times = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return arrays.integers(arrays.numbers(times))


def _message_ids(column: pa.Array, position: int) -> pa.Array:
    """Convert message ids to 16 bytes each; null stays null."""
    is_text, stored_type = column.type in _TEXTS, STORED_TYPES[MESSAGE_ID]
    if is_text:
        is_right = pc.match_substring_regex(column, _UUID_PATTERN)
    else:
        is_right = pc.equal(pc.binary_length(column), stored_type.byte_width)
    arrays.refuse(
        ~np.asarray(pc.fill_null(is_right, True)),
        position,
        lambda row: f"has message_id {column[row].as_py()!r}, which is not a UUID",
    )
    return arrays.uuids(column) if is_text else column.cast(stored_type)


_CHECKED: Final[dict[str, Callable[[pa.Array, int], pa.Array]]] = {
    DELAY: _delays,
    DUE_AT: _due_times,
    MESSAGE_ID: _message_ids,
    GROUP: groups.checked,
}
"""The functions that check and convert a column's values, given the position of its first row."""

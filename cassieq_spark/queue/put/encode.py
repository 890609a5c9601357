"""Check what a producer puts, and pack it into rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final

from cassieq_spark import tracing
from cassieq_spark.errors import BodyInvalid, OptionInvalid
from cassieq_spark.model import bucket_plan
from cassieq_spark.model.group import with_group
from cassieq_spark.model.sizes import CHUNK_BYTES, CHUNK_MESSAGES
from cassieq_spark.options import arguments
from cassieq_spark.store import chunk as chunks
from cassieq_spark.store.chunk import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The due time of the messages of one call, and their time to live.

    Attributes:
        delay_us: The delay before they may be delivered, counted from the write; 0 means none.
        due_us: Instead of a delay, the time from which they may be delivered.
        ttl_us: How long they live from then on; 0 means for ever.
    """

    delay_us: int = 0
    due_us: int | None = None
    ttl_us: int = 0


AT_ONCE: Final = Times()


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Messages that are stored in one row.

    Attributes:
        payload: See `store.chunk`.
        message_ids: The id that the producer chose for each message, 16 bytes; None if it chose
            none.
        key: The deduplication key of its only message, as stored; None if it has none.
    """

    payload: bytes
    message_ids: tuple[bytes | None, ...]
    times: Times = AT_ONCE
    key: bytes | None = None

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.message_ids)


def messages(
    bodies: Iterable[object],
    *,
    tag: object = None,
    headers: object = None,
    group: object = None,
    message_ids: object = None,
) -> list[Row]:
    """Check the arguments of a put.

    Raises:
        BodyInvalid: A body is not bytes, or too large; the error says which.
        OptionInvalid: Tag, headers, a group or a message id has a wrong form.
    """
    if isinstance(bodies, str | bytes | bytearray | memoryview):
        raise BodyInvalid(
            f"put_many takes a list of bodies, but this is one {type(bodies).__name__}. Put it in "
            "a list, or call put"
        )
    given = arguments.listed(bodies)
    if given is None:
        raise BodyInvalid(
            f"put_many takes a list of bodies, not {type(bodies).__name__}: it returns ids in the "
            "order of the bodies. Nothing was put"
        )
    checked_tag = arguments.tag(tag)
    each_headers = _headers(headers, len(given))
    if group is not None:
        each_headers = _with_groups(each_headers, group)
    for one in {id(some): some for some in each_headers}.values():
        arguments.check_extras(checked_tag, one)
    ids = _ids(message_ids, len(given))
    return [
        chunks.Row(
            body=_body(at, body, len(given)),
            message_id=message_id,
            tag=checked_tag,
            headers=each_headers[at],
        )
        for at, (body, message_id) in enumerate(zip(given, ids, strict=True))
    ]


def with_context(row: Row, context: Mapping[str, str]) -> Row:
    """Add the headers of a trace's context to a message that has none of its own."""
    headers = tracing.with_context(row.headers, context, tag=row.tag)
    return row if headers is row.headers else replace(row, headers=dict(headers))


def pack(
    rows: Sequence[Row],
    *,
    bucket_size: int,
    times: Times = AT_ONCE,
    keys: Sequence[bytes | None] | None = None,
) -> list[Packed]:
    """Pack messages into as few rows as their size allows, in order.

    Args:
        keys: The deduplication key of each message, as stored. A message with a key has a row of
            its own, because it may have to be put again by itself.
    """
    if keys is None:
        return list(pack_into(rows, times=times, capacity=lambda: bucket_size))
    packed: list[Packed] = []
    for key, group in groupby(zip(rows, keys, strict=True), key=itemgetter(1)):
        some = pack_into([row for row, _ in group], times=times, capacity=lambda: bucket_size)
        packed += some if key is None else [replace(one, key=key) for one in some]
    return packed


def pack_into(
    rows: Sequence[Row], *, capacity: Callable[[], int], times: Times = AT_ONCE
) -> Iterator[Packed]:
    """Pack as `pack` does, but cut each row only when it is asked for, to fit its bucket.

    Args:
        capacity: Returns how many messages the next row may hold, 1 or more. Called just before the
            row is cut [T1].
    """
    ends = list(accumulate((size(row) for row in rows), initial=0))
    encoder = chunks.Encoder()
    start = 0
    while start < len(rows):
        end = bucket_plan.chunk_end(
            ends, start, at_most=min(CHUNK_MESSAGES, capacity()), limit_bytes=CHUNK_BYTES
        )
        yield Packed(
            payload=encoder.encode(chunks.from_rows(rows[start:end])),
            message_ids=tuple(row.message_id for row in rows[start:end]),
            times=times,
        )
        start = end


def entries(bodies: object, headers: object) -> int:
    """Return how many bodies and headers a put has: to check each takes a while."""
    count = len(bodies) if isinstance(bodies, list | tuple) else 1
    each = headers if isinstance(headers, list | tuple) else [headers]
    return count + sum(len(one) for one in each if isinstance(one, Mapping))


def entries_of(rows: Sequence[Row]) -> int:
    """Return how many bodies and headers messages have."""
    return len(rows) + sum(len(row.headers) for row in rows)


def size(row: Row) -> int:
    """Return the bytes of all columns, as stored [T20]."""
    words = _bytes_of(row.tag or "") + sum(
        _bytes_of(key) + _bytes_of(value) for key, value in row.headers.items()
    )
    return len(row.body) + words + len(row.message_id or b"")


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _headers(headers: object, count: int) -> list[dict[str, str]]:
    """Return the headers of each message: the same for all, or its own entry of a list."""
    if not isinstance(headers, list | tuple):
        return [arguments.headers(headers)] * count
    if len(headers) != count:
        raise OptionInvalid(
            f"headers has {len(headers)} entries for {count} bodies. Give one dict for all, or "
            "one entry for each body"
        )
    return [arguments.headers(one) for one in headers]


def _with_groups(headers: list[dict[str, str]], group: object) -> list[dict[str, str]]:
    """Return the headers to store. Messages with the same headers and group still share them."""
    each = [
        arguments.group(name, one) for name, one in arguments.each("group", group, len(headers))
    ]
    pairs = list(zip(headers, each if len(each) > 1 else each * len(headers), strict=True))
    made = {(id(its), one): its for its, one in pairs}
    made = {(key, one): with_group(its, one) for (key, one), its in made.items()}
    return [made[id(its), one] for its, one in pairs]


def _ids(message_ids: object, count: int) -> list[bytes | None]:
    if message_ids is None:
        return [None] * count
    if not isinstance(message_ids, list | tuple):
        raise OptionInvalid(
            "message_ids must be a list with an entry for each body, not "
            f"{type(message_ids).__name__}"
        )
    if len(message_ids) != count:
        raise OptionInvalid(
            f"message_ids has {len(message_ids)} entries for {count} bodies. Give one entry for "
            "each body: None for a body without an id of its own"
        )
    checked = [arguments.message_id(one) for one in message_ids]
    return [None if one is None else one.bytes for one in checked]


def _body(at: int, body: object, count: int) -> bytes:
    try:
        return arguments.body(body)
    except BodyInvalid as error:
        if count == 1:
            raise
        raise BodyInvalid(f"number {at} of {count}: {error.message}") from error

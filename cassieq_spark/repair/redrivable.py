"""Find the messages that a redrive may take: named by a user, or by state in a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import CassieqError, OptionInvalid, StoreError
from cassieq_spark.model import redrive as rules
from cassieq_spark.model.bucket import Bucket, Returned, Status
from cassieq_spark.model.dead import REDRIVE
from cassieq_spark.model.dead_letter import headers_of
from cassieq_spark.model.ids import BucketNo, Place, Runs, bucket_of, first_id
from cassieq_spark.options import arguments, queue_name
from cassieq_spark.queue import roll_forward, seal
from cassieq_spark.queue.find import open_lane, sources_of
from cassieq_spark.queue.inspect.pages import Spot
from cassieq_spark.queue.message import Message
from cassieq_spark.store import caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from cassieq_spark.model.ids import QueueName
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.store.cas import Stored
    from cassieq_spark.store.tables.messages import ChunkRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ByState:
    """The wanted messages of one bucket, by their state."""

    visible: Sequence[Returned]
    leased: Sequence[Returned]
    delayed: Sequence[Returned]
    revisions: tuple[tuple[int, int], ...] = ()


def by_state(
    row: Bucket | None, waiting: Sequence[ChunkRow], *, now_us: int, asked: Runs | None
) -> ByState:
    """Return the requested messages of one bucket, by their state."""
    if row is None or row.status is Status.SEALING:
        due = [chunk for chunk in waiting if (chunk.due_us or 0) <= now_us]
        later = [chunk for chunk in waiting if (chunk.due_us or 0) > now_us]
        return ByState(
            visible=_asked([_of_chunks(due)], asked),
            leased=(),
            delayed=_asked([_of_chunks(later)], asked),
        )
    return ByState(
        visible=_asked(rules.visible(row, now_us), asked),
        leased=_asked(rules.leased(row, now_us), asked),
        delayed=_asked(rules.delayed(row, now_us), asked),
        revisions=row.revisions,
    )


def _of_chunks(chunks: Iterable[ChunkRow]) -> Returned:
    pairs = ((chunk.first, chunk.last) for chunk in chunks)
    return Returned(deliveries=0, runs=Runs.of(*pairs))


def _asked(parts: Iterable[Returned], asked: Runs | None) -> list[Returned]:
    found = []
    for part in parts:
        runs = part.runs if asked is None else part.runs & asked
        if runs:
            found.append(Returned(deliveries=part.deliveries, runs=runs))
    return found


def spans_of(ids: Mapping[BucketNo, Runs] | None) -> list[range] | None:
    """Return their buckets, ascending; None: all."""
    if ids is None:
        return None
    spans: list[range] = []
    for bucket in sorted(ids):
        if spans and spans[-1].stop == bucket:
            spans[-1] = range(spans[-1].start, bucket + 1)
        else:
            spans.append(range(bucket, bucket + 1))
    return spans


async def check_is_for_dead(lane: Lane) -> None:
    """Refuse a queue whose messages did not die elsewhere: they have no queue to go back to.

    Messages of a live queue may still name one, and would be buried there.

    Raises:
        OptionInvalid: It is not a dead-letter queue.
    """
    if not await sources_of(lane.store, lane.queue):
        raise OptionInvalid(
            f"no queue names {lane.queue!r} as its dead-letter queue, so its messages have none to "
            "go back to, and nothing was redriven. To send them to another queue, name a queue "
            "with 'to'"
        )


async def named_target(lane: Lane, to: QueueName) -> Lane:
    """Return the queue that a redrive names; raise OptionInvalid if it has the messages already."""
    target = await open_lane(lane.store, to)
    if target.lane_id in lane.lanes:
        raise OptionInvalid(f"to is {to!r}, which has the messages already. Name another queue")
    return target


async def open_source(lane: Lane, name: str, may: Callable[[str], bool] | None) -> Lane | str:
    """Return the queue that headers name, or why nothing can be sent there.

    Args:
        may: Whether the caller may put messages into a queue of that name; None: into any.
    """
    if may is not None and not await caller.outside(partial(may, name)):
        # The reason comes without the name, and before the lookup: it may be another account's
        # queue.
        return (
            "whoever redrives them may not put messages into the queue that their headers name. "
            "Use a key that has the right 'put' there, or name another queue with 'to'"
        )
    try:
        target = await open_lane(lane.store, queue_name(name))
    except StoreError:
        raise
    except CassieqError as error:
        return str(error)
    if target.lane_id in lane.lanes:
        return "they came from this very queue; name another queue with 'to'"
    is_elsewhere = name.rpartition("/")[0] != lane.queue.rpartition("/")[0]
    if is_elsewhere and target.settings.dead_letter_queue != lane.queue:
        # Queues of two accounts belong together only if a setting says so; a header is not enough.
        return "their headers name a queue of another account; name a queue with 'to'"
    return target


def was_redriven(message: Message, source: Lane, lane: Lane) -> bool:
    """Whether a message of ``lane`` was sent there from a dead-letter queue, and has not died.

    Older releases wrote it as if it had died in that queue. A reject may give any reason, so a
    message that says it was redriven is dead if its source sends its dead messages here.
    """
    reason = headers_of(message.headers).reason
    return reason == REDRIVE and source.settings.dead_letter_queue != lane.queue


def listed(messages: Iterable[Message | Spot | int]) -> list[Message | Spot | int]:
    """Check the messages of ``redrive(messages=)``."""
    found = arguments.listed(messages)
    if found is None:
        raise OptionInvalid(
            f"messages is {type(messages).__name__}, allowed: a list of messages or of their ids, "
            "or None for all messages. Nothing was redriven"
        )
    return found


def by_place(messages: Iterable[Message | Spot | int], lane: Lane) -> dict[Place, Runs]:
    """Group messages, or ids, as offsets by bucket."""
    offsets: dict[Place, list[int]] = {}
    for one in messages:
        spot = Spot(one.lane, one.id) if isinstance(one, Message) else one
        if not isinstance(spot, Spot):
            if len(lane.lanes) > 1:
                raise OptionInvalid(
                    f"queue {lane.queue!r} has {len(lane.lanes)} lanes, and each counts its "
                    f"messages from 0: the id {spot!r} names several. Pass messages, as peek "
                    "returns them"
                )
            spot = Spot(lane.lane_id, spot)
        if not lane.fixed.has(spot.lane):
            name = one.message_id if isinstance(one, Message) else spot.id
            raise OptionInvalid(
                f"message {name} is not of queue {lane.queue!r}: there, its id {spot.id} "
                "belongs to another message. Pass messages that this queue's get or peek returned"
            )
        number = arguments.id_of(spot.id)
        bucket = bucket_of(number, lane.bucket_size)
        place = Place(spot.lane, bucket)
        offsets.setdefault(place, []).append(number - first_id(bucket, lane.bucket_size))
    return {place: Runs.from_offsets(some) for place, some in offsets.items()}


CHOSEN_TOGETHER: Final = 100
"""The number of messages from which a user's function chooses at a time: each call changes
threads."""


def chosen_of(where: Callable[[Message], bool], some: list[Message]) -> list[Message]:
    """Return the messages that a user's function wants."""
    return [message for message in some if where(message)]


async def in_groups(messages: AsyncIterator[Message]) -> AsyncIterator[list[Message]]:
    """Split messages into lists, so that one change of threads serves many."""
    some: list[Message] = []
    async for message in messages:
        some.append(message)
        if len(some) >= CHOSEN_TOGETHER:
            yield some
            some = []
    if some:
        yield some


async def sealed(lane: Lane, bucket: BucketNo) -> Stored[Bucket] | None:
    """Return the row of a bucket, sealed first if it was open: then its content is known."""
    row = await lane.buckets.read(bucket)
    if row is None or row.value.status is Status.SEALING:
        closed = (
            await seal.close(lane, bucket) if row is None else await seal.finish(lane, bucket, row)
        )
        return None if closed is None else closed.row
    if row.value.status is Status.PREPARED:
        return (await roll_forward.settle_decided(lane, {bucket: row})).get(bucket)
    return row

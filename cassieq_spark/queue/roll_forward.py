"""Complete decided transactions: publish their listed buckets, void the others.

Any client may do this for a *decided* bucket, and none for an undecided one. Holds I7. See
docs/design/sink.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from cassieq_spark.errors import CassieqError, QueueDeleted, RowCorrupt
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import OF_A_SINK, Bucket, Status
from cassieq_spark.model.ids import BucketNo, LaneId, Place
from cassieq_spark.model.outcome import Applied, Stored
from cassieq_spark.model.rows.intents import return_times_us
from cassieq_spark.model.sink_txn import BucketList, Fate, SinkRow, fate
from cassieq_spark.queue.lane import Lane, by_lane, named
from cassieq_spark.queue.seal import ExpiryHintWriter

Rows = dict[BucketNo, Stored[Bucket]]

Entry = tuple[str, Place, int]
"""The sink id, a bucket, and the number of messages that the sink's row says it holds."""

T = TypeVar("T")

VISIBLE = frozenset({Status.SEALED, Status.DRAINED})
AS_LISTED = VISIBLE | {Status.PREPARED}
"""The states of a bucket of a committed batch. A row in another state is read again and
reported."""

LOOK_S: Final = 1.0
"""A look at listed buckets waits this long for buckets that do not answer. They are asked again,
side by side, when the others are published."""

TOGETHER: Final = 64
"""The number of listed buckets of a look. It reads L once for all buckets of a lane."""

_logger = get_logger("queue")


async def roll_forward(lane: Lane, sink_id: str, listed: BucketList) -> None:
    """Make every bucket of a committed batch visible, in all lanes. Idempotent; 16 run at once.

    A bucket that fails stops no other.

    Raises:
        StoreError: A bucket could not be reached; the others are visible [T5].
        RowCorrupt: A listed bucket is void and was not dropped, or does not hold the number of
            messages that was committed. The protocol never does that, so nothing more is done to
            the bucket.
    """

    async def publish(seen: Seen, entry: Entry) -> object:
        return await _publish(lane, *entry, seen=seen)

    failures = await _publish_all(lane, [(sink_id, *entry) for entry in listed], publish)
    if failures:
        (_, place, _), error = failures[0]
        raise named(error, lane, place)


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows of listed buckets, and for each lane L as it was read after them.

    Attributes:
        rows: The rows that answered and are visible, prepared, or gone.
        low: L by lane, without lanes that did not answer or have no row to publish.
    """

    rows: Mapping[Place, Stored[Bucket] | None]
    low: Mapping[LaneId, BucketNo]

    def is_known(self, place: Place) -> bool:
        """Whether the bucket's row is here, and the L read after it, if there is more to do."""
        if place not in self.rows:
            return False
        row = self.rows[place]
        return row is None or row.value.status in VISIBLE or place.lane in self.low

    async def is_dropped(self, lane: Lane, bucket: BucketNo, row: Bucket) -> bool:
        """Whether L, read after this row, is above the bucket."""
        known = self.rows.get(lane.place(bucket))
        low = self.low.get(lane.lane_id)
        if low is not None and known is not None and known.value is row:
            return bucket < low
        return await lane.is_dropped(bucket)


async def _look(lane: Lane, places: Iterable[Place]) -> Seen:
    """Read the rows of some buckets, then L of each lane that has some to publish (G5)."""
    session = lane.store.session
    with session.within(each_s=LOOK_S):
        asked = {
            lane_id: lane.sibling(lane_id).buckets.begin_read_some(buckets)
            for lane_id, buckets in by_lane(places).items()
        }
    rows = {
        Place(lane_id, bucket): row
        for lane_id, answered in asked.items()
        for bucket, row in (await answered())[0].items()
        if row is None or row.value.status in AS_LISTED
    }
    waiting = (at for at, row in rows.items() if row and row.value.status not in VISIBLE)
    lanes = list(dict.fromkeys(place.lane for place in waiting))
    with session.within(each_s=LOOK_S):
        pointers = await session.each(lambda at: lane.sibling(at).read_pointers(), lanes)
    found = zip(lanes, pointers, strict=True)
    low = {at: one.repair for at, one in found if not isinstance(one, CassieqError)}
    return Seen(rows=rows, low=low)


async def settle_decided(
    lane: Lane, rows: Rows, failed: dict[str, CassieqError] | None = None
) -> Rows:
    """Act on these ``writing`` and ``prepared`` rows whose sinks have decided.

    It makes one quorum read per sink, after the rows were read; before that, the read would mean
    nothing. All sinks and buckets are handled side by side. One that cannot be read or changed
    stops no other: its buckets stay as undecided as they were [T21].

    Args:
        failed: Receives the first failure of each sink; None: one of them is raised at the end.

    Returns:
        The rows that changed, as they are now.

    Raises:
        QueueDeleted: The lane is dead.
    """
    refs = {at: row.value.sink for at, row in rows.items() if row.value.sink is not None}
    failures = {} if failed is None else failed
    sinks = await _read_sinks(lane, dict.fromkeys(ref.sink_id for ref in refs.values()), failures)
    fates = {
        at: fate(sinks[ref.sink_id], place=lane.place(at), epoch=ref.epoch)
        for at, ref in refs.items()
        if ref.sink_id in sinks
    }
    changed: Rows = {}

    async def publish(seen: Seen, one: Entry) -> None:
        now = await _publish(lane, *one, seen=seen)
        lane_id, bucket = one[1]
        if now is not None and lane_id == lane.lane_id and fates.get(bucket) is Fate.SEAL:
            changed[bucket] = now

    async def void(bucket: BucketNo) -> None:
        now = await lane.change_bucket(bucket, _voided, known=rows[bucket])
        if now is not None:
            changed[bucket] = now

    # All buckets that are listed with one of these: the next commit may need them.
    listed: list[Entry] = []
    for sink_id in dict.fromkeys(refs[at].sink_id for at, its in fates.items() if its is Fate.SEAL):
        event(_logger, "rolled_forward_by_reader", queue=lane.queue, sink=sink_id)
        if (sink := sinks[sink_id]) is not None:
            listed += [(sink_id, *entry) for entry in sink.listed]
    for (sink_id, _, _), error in await _publish_all(lane, listed, publish):
        failures.setdefault(sink_id, error)
    for at, error in await _each(lane, void, [at for at, its in fates.items() if its is Fate.VOID]):
        failures.setdefault(refs[at].sink_id, error)
    if failures and failed is None:
        raise next(iter(failures.values()))
    return changed


async def _read_sinks(
    lane: Lane, sink_ids: Iterable[str], failures: dict[str, CassieqError]
) -> dict[str, SinkRow | None]:
    """Return the rows of sinks; add the errors of those that could not be read to ``failures``."""
    rows: dict[str, SinkRow | None] = {}

    async def read(sink_id: str) -> None:
        stored = await lane.store.sinks.read(sink_id)
        rows[sink_id] = None if stored is None else stored.value

    failures.update(await _each(lane, read, sink_ids))
    return rows


async def _publish_all(
    lane: Lane,
    entries: Sequence[Entry],
    publish: Callable[[Seen, Entry], Awaitable[object]],
) -> list[tuple[Entry, CassieqError]]:
    """Publish all entries, `TOGETHER` at a time. Return the failed entries with their errors.

    Buckets that did not answer a look come last, all at once: the waits overlap (I10).
    """
    unknown: list[Entry] = []
    failures: list[tuple[Entry, CassieqError]] = []
    for at in range(0, len(entries), TOGETHER):
        some = entries[at : at + TOGETHER]
        looked = await _look(lane, (place for _, place, _ in some))
        to_do: list[Entry] = []
        for entry in some:
            (to_do if looked.is_known(entry[1]) else unknown).append(entry)
        failures += await _each(lane, partial(publish, looked), to_do)
    return failures + await _each(lane, partial(publish, Seen({}, {})), unknown)


async def _publish(
    lane: Lane, sink_id: str, place: Place, count: int, seen: Seen
) -> Stored[Bucket] | None:
    known = seen.rows.get(place)
    if known is None and place in seen.rows:
        return None
    lane, bucket = lane.sibling(place.lane), place.bucket

    async def change(row: Bucket) -> Bucket | None:
        # The next commit rolls a list forward again, maybe long after its buckets were dropped. A
        # statement that was sent twice may have landed after that, and made a ghost (G5).
        if row.status in VISIBLE or await seen.is_dropped(lane, bucket, row):
            return None
        if row.status is not Status.PREPARED:
            raise RowCorrupt(
                f"{lane.bucket_title(bucket)} is {row.status.value}, but the commit "
                f"of sink {sink_id!r} lists it. Look for more with client.verify()"
            )
        if row.sink is None or row.sink.sink_id != sink_id or row.manifest.count != count:
            raise RowCorrupt(
                f"{lane.bucket_title(bucket)} holds {row.manifest.count} messages of "
                f"{row.sink}, but the commit of sink {sink_id!r} lists {count}. Look for more "
                "with client.verify()"
            )
        new = rules.published(row, now_us=lane.clock.now_us())
        # The row as prepared has these times, too. Once the hint is written, the time pointer stays
        # at them, so this CAS may come as late as it likes [R12].
        await ExpiryHintWriter(lane, bucket).hint(return_times_us(new))
        return new

    row = known or await lane.buckets.read(bucket)
    async for attempt in lane.attempts():
        if attempt > 1:
            row = await lane.buckets.read(bucket)  # others change it in a longer pause (ADR 34)
        new = None if row is None else await change(row.value)
        if row is None or new is None:
            return row
        outcome = await lane.buckets.update(bucket, row, new)
        row = outcome.now
        if isinstance(outcome, Applied):
            return row
    raise lane.contended(lane.bucket_title(bucket))


async def _each(
    lane: Lane, work: Callable[[T], Awaitable[object]], items: Iterable[T]
) -> list[tuple[T, CassieqError]]:
    """Work on every item, side by side. Return the failed items with their errors [T5] [T21].

    Raises:
        QueueDeleted: The lane is dead, so its other failures do not matter any more.
    """
    todo = list(items)
    ended = zip(todo, await lane.store.session.each(work, todo), strict=True)
    failures = [(item, end) for item, end in ended if isinstance(end, CassieqError)]
    for _, error in failures:
        if isinstance(error, QueueDeleted):
            raise error
    return failures


def _voided(row: Bucket, now_us: int, _: Callable[[], UUID]) -> Bucket | None:
    return rules.voided(row, now_us=now_us) if row.status in OF_A_SINK else None

"""Send messages back to their source queue, or to another, once, even if processes die (ADR 16).

    choose  ->  one CAS a bucket: into dead sets that name their target  ->  `dead.move` each set

From that CAS on nobody gets them here. The other steps are those of repair for dead messages: if
this process dies, repair goes on where it stopped. Holds I2, I4, I7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from uuid import UUID

from cassieq_spark.errors import (
    CasAmbiguous,
    CassieqError,
    DataLoss,
    LeaseLost,
    OptionInvalid,
    RowCorrupt,
    SinkFenced,
    StoreError,
)
from cassieq_spark.model import redrive as rules
from cassieq_spark.model.bucket import Bucket, Returned, Status
from cassieq_spark.model.dead import REDRIVE, DeadSet, may_redrive
from cassieq_spark.model.dead_letter import headers_of
from cassieq_spark.model.ids import BucketNo, Place, QueueName, Runs, bucket_of, first_id, union
from cassieq_spark.model.outcome import Stored
from cassieq_spark.options import arguments, queue_name
from cassieq_spark.queue import roll_forward, seal
from cassieq_spark.queue.find import open_lane, sources_of
from cassieq_spark.queue.inspect.facts import Spot, is_due, live_rows, looks_at, runs_of
from cassieq_spark.queue.lane import Lane, first_of, live_buckets, named
from cassieq_spark.queue.message import Message, in_groups, read_messages
from cassieq_spark.queue.schedule import looked_at_lanes
from cassieq_spark.repair import dead
from cassieq_spark.repair.report import OnProgress, Redriven, Tracker
from cassieq_spark.store import caller
from cassieq_spark.store.tables.messages import ChunkRow

REASONS_TOLD: Final = 100
"""The most different reasons that are reported for messages that stay: headers may hold any
text."""

IN_VAIN_AT_MOST: Final = 4
"""The number of buckets in a row that could be read but not written, at which a redrive stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveRequest:
    """The messages to redrive, and their target.

    Attributes:
        ids: Offsets by place; None: all.
        where: Redrive only messages for which this is true.
        to: The target; None: the queue that each header ``cassieq-source-queue`` names, if this is
            a dead-letter queue.
        at_most: The most messages; the highest class and the lowest ids go first.
        may: Whether the caller may put into a queue that a header names; None: into any. A caller
            that names ``to`` checks that right itself.
    """

    ids: Mapping[Place, Runs] | None = None
    where: Callable[[Message], bool] | None = None
    to: QueueName | None = None
    at_most: int | None = None
    may: Callable[[str], bool] | None = None


async def redrive(
    lane: Lane,
    wanted: RedriveRequest,
    *,
    is_dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Redriven:
    """Redrive the visible messages; leased and delayed ones stay.

    It takes one CAS per bucket, and a transaction of about eight per target and delivery count.

    Args:
        on_progress: Called with the progress of the redrive, in buckets that were looked at.

    Raises:
        QueueNotFound, UsageError: The target does not exist, is in another data centre, or is this
            queue; or none is named, and this is not a dead-letter queue. Nothing was changed.
        QueueDeleted: The queue is gone.
        StoreError: Nothing was taken; or it is unknown (`CasAmbiguous`) and the next repair moves
            what was taken. Later errors are among the problems: a bucket that does not answer stops
            no other.
    """
    targets: dict[str, Lane | str] = {}
    if wanted.to is not None:
        target = targets[wanted.to] = await open_lane(lane.store, wanted.to)
        if target.lane_id in lane.lanes:
            raise OptionInvalid(
                f"to is {wanted.to!r}, which has the messages already. Name another queue"
            )
    elif not await sources_of(lane.store, lane.queue):
        # Messages of a live queue may still name one, and would be buried there.
        raise OptionInvalid(
            f"no queue names {lane.queue!r} as its dead-letter queue, so its messages have none to "
            "go back to, and nothing was redriven. To send them to another queue, name a queue "
            "with 'to'"
        )
    its_lanes = await looked_at_lanes(lane)
    tracker = Tracker(on_progress, 1)
    work = _Redrive(lane, wanted, targets, is_dry_run=is_dry_run, tracker=tracker)
    failure: StoreError | None = None
    await tracker.begin(lane.queue, len(its_lanes))
    for one in its_lanes:
        try:
            await work.run(one)
        except StoreError as error:
            failure = failure or error
            work.done.problems.append(str(error))
        if work.left == 0:
            break
    await tracker.begin_rest()
    if failure is not None and not work.done.by_target:
        raise failure
    return work.report()


class _Redrive:
    """A `redrive`, lane by lane.

    Attributes:
        done: What was done so far.
        left: The number of messages that may still be taken; None: no limit.
    """

    def __init__(
        self,
        lane: Lane,
        wanted: RedriveRequest,
        targets: dict[str, Lane | str],
        *,
        is_dry_run: bool,
        tracker: Tracker,
    ) -> None:
        self._lane = lane  # the one at work
        self._wanted = wanted
        self._targets = targets
        self._is_dry_run = is_dry_run
        self._tracker = tracker
        self._stay: Counter[str] = Counter()
        self.left = wanted.at_most
        self.done = Redriven(queue=lane.queue)

    async def run(self, lane: Lane) -> None:
        """Work bucket by bucket, ascending; one that does not answer stops no other [T5].

        Raises:
            StoreError: Nothing was taken in this lane.
        """
        self._lane = lane
        ids = of_lane(self._wanted.ids, lane)
        away: dict[BucketNo, CassieqError] = {}
        found: dict[BucketNo, int] = {}
        before = self.done.by_target.copy()
        in_vain = 0
        async for bucket, row, waiting in self._rows(ids, away):
            if row is not None and row.value.status is Status.CORRUPT:
                found[bucket] = 0 if ids is None else ids[bucket].count
                await self._pass_over(bucket)
                continue
            places = by_state(
                None if row is None else row.value,
                waiting,
                now_us=lane.clock.now_us(),
                asked=None if ids is None else ids[bucket],
            )
            found[bucket] = sum(
                part.runs.count for part in (*places.visible, *places.leased, *places.delayed)
            )
            left, taken = self.left, self.done.by_target.copy()
            try:
                if await self._work_on(bucket, places):
                    in_vain = 0
            except StoreError as error:
                away[bucket] = named(error, lane, bucket)
                in_vain += 1
                if taken == self.done.by_target and not isinstance(error, CasAmbiguous):
                    self.left = left  # other messages may go instead
            if in_vain >= IN_VAIN_AT_MOST:
                self.done.problems.append(
                    f"{in_vain} buckets in a row of queue {lane.queue!r} could not be "
                    "changed. The buckets behind them were not tried"
                )
                break
            if self.left == 0:
                break
        else:
            if ids is not None:
                known = ids.keys() - away.keys()
                self.done.gone += sum(ids[at].count - found.get(at, 0) for at in known)
        if away and self.done.by_target == before:
            raise first_of(away)
        self.done.problems += map(str, away.values())

    async def _rows(
        self, ids: Mapping[BucketNo, Runs] | None, away: dict[BucketNo, CassieqError]
    ) -> AsyncIterator[tuple[BucketNo, Stored[Bucket] | None, list[ChunkRow]]]:
        """Yield the buckets to look at; the tracker counts those before."""
        rows = live_rows(self._lane, spans_of(ids), away=away)
        if ids is not None or not self._tracker.is_on:
            async for row in rows:
                yield row
            return
        reach = await self._tracker.lane(await live_buckets(self._lane))
        async for one in rows:
            yield one
            await reach(one[0])

    async def _work_on(self, bucket: BucketNo, places: ByState) -> bool:
        """Redrive a bucket's messages; return whether there were any to send."""
        self.done.leased += await self._count(bucket, places, places.leased)
        self.done.delayed += await self._count(bucket, places, places.delayed)
        chosen = await self._choose(bucket, places)
        await self._send(bucket, chosen)
        return bool(chosen)

    async def _pass_over(self, bucket: BucketNo) -> None:
        """Report a bucket that cannot be read: its content is unknown [T21]."""
        try:
            await self._lane.buckets.read(bucket)
        except RowCorrupt as error:
            self.done.problems.append(str(error))

    def report(self) -> Redriven:
        """Return what was done, and why the other messages stay."""
        self.done.homeless = self._stay.total()
        self.done.problems += [
            f"{count} messages stay in queue {self._lane.queue!r}: {why}"
            for why, count in self._stay.items()
        ]
        return self.done

    async def _choose(self, bucket: BucketNo, places: ByState) -> dict[QueueName, Runs]:
        """Choose the messages to send, by target."""
        wanted = self._wanted
        chosen: dict[QueueName, list[int]] = {}
        base = first_id(bucket, self._lane.bucket_size)
        if wanted.to is not None and wanted.where is None:
            runs = union(part.runs for part in places.visible)
            if self.left is not None:
                runs, _ = runs.take(self.left)
                self.left -= runs.count
            return {wanted.to: runs} if runs else {}
        async for message in self._messages(bucket, places, places.visible):
            if self.left == 0:
                break
            target = wanted.to or await self._source_of(message)
            if target is not None:
                chosen.setdefault(target, []).append(message.id - base)
                if self.left is not None:
                    self.left -= 1
        return {target: Runs.from_offsets(offsets) for target, offsets in chosen.items()}

    async def _count(self, bucket: BucketNo, places: ByState, parts: Sequence[Returned]) -> int:
        if self._wanted.where is None:
            return sum(part.runs.count for part in parts)
        return len([one async for one in self._messages(bucket, places, parts)])

    async def _messages(
        self, bucket: BucketNo, places: ByState, parts: Sequence[Returned]
    ) -> AsyncIterator[Message]:
        """Yield the wanted messages."""
        where = self._wanted.where
        plan = looks_at(self._lane, bucket, places.row, parts)
        read = read_messages(self._lane, plan)
        async for some in in_groups(read, most=CHOSEN_TOGETHER):
            chosen = some
            if where is not None:
                chosen = await caller.outside(partial(list, filter(where, some)))
            for message in chosen:
                yield message

    async def _source_of(self, message: Message) -> QueueName | None:
        """Return a message's source queue; if it cannot go back there, count the reason."""
        name = headers_of(message.headers).source_queue
        if name is None:
            self._stay_for("their headers name no source queue; name a queue with 'to'")
            return None
        if name not in self._targets:
            self._targets[name] = await open_source(self._lane, name, self._wanted.may)
        found = self._targets[name]
        # Older releases wrote a message that was redriven as if it had died here. A reject may give
        # any reason, so it is dead if its source sends its dead messages here.
        is_redrive = headers_of(message.headers).reason == REDRIVE
        if (
            is_redrive
            and not isinstance(found, str)
            and found.settings.dead_letter_queue != self._lane.queue
        ):
            found = f"they were redriven from {name!r}, and live; name a queue with 'to'"
        if isinstance(found, str):
            self._stay_for(found)
            return None
        return found.queue

    def _stay_for(self, why: str) -> None:
        known = why in self._stay or len(self._stay) < REASONS_TOLD
        self._stay[why if known else "their source queues cannot be opened either"] += 1

    async def _send(self, bucket: BucketNo, chosen: dict[QueueName, Runs]) -> None:
        if self._is_dry_run:
            self._note((target, runs.count) for target, runs in chosen.items())
            return
        while chosen:
            sets = await self._take(bucket, chosen)
            self._note((part.target or "", part.runs.count) for part in sets)
            self.done.waiting += sum(part.runs.count for part in sets)
            for part in sets:
                await self._move(bucket, part)
            if len(sets) < rules.SETS_TOGETHER:
                return
            gone = union(part.runs for part in sets)
            chosen = {target: rest for target, runs in chosen.items() if (rest := runs - gone)}

    def _note(self, counts: Iterable[tuple[str, int]]) -> None:
        for target, count in counts:
            self.done.by_target[target] = self.done.by_target.get(target, 0) + count

    async def _take(self, bucket: BucketNo, chosen: Mapping[QueueName, Runs]) -> list[DeadSet]:
        """Take messages by one CAS; skip those that were got, acked or taken meanwhile."""
        lane = self._lane
        tried: set[UUID] = set()
        is_full = False

        def change(row: Bucket, now_us: int, new_id: Callable[[], UUID]) -> Bucket | None:
            nonlocal is_full
            if any(part.set_id in tried for part in row.dead):
                return None  # the CAS took effect, though its tag was pushed out [R8]
            after, sets = rules.send_on(row, chosen, new_id, now_us=now_us)
            is_full = bool(sets) and not may_redrive(row.dead, len(sets))
            if not sets or is_full:
                return None
            tried.update(part.set_id for part in sets)
            return after

        row = await sealed(lane, bucket)
        now = None if row is None else await lane.change_bucket(bucket, change, known=row)
        if is_full:
            self.done.problems.append(
                f"the row of {lane.bucket_title(bucket)} has no space for the "
                "messages to redrive. Run repair to move what waits in it, then redrive the rest"
            )
        if now is None or await lane.is_dropped(bucket):
            return []  # a ghost: the bucket was dropped (G5, ADR 11)
        return [part for part in now.value.dead if part.set_id in tried]

    async def _move(self, bucket: BucketNo, part: DeadSet) -> None:
        lane = self._lane
        target = self._targets[part.target or ""]
        if isinstance(target, str):
            return  # opening it has just failed
        try:
            if await dead.move(lane, target, bucket, (part,)) is None:
                return  # a repair moves it now
        except StoreError:
            raise
        except (SinkFenced, LeaseLost, DataLoss) as error:
            self.done.problems.append(str(error))  # only this set failed
            return
        except CassieqError as error:
            self._targets[target.queue] = str(error)
            self.done.problems.append(str(error))
            return
        self.done.waiting -= part.runs.count
        self.done.moved += part.runs.count


@dataclass(frozen=True, slots=True, kw_only=True)
class ByState:
    """The wanted messages of one bucket, by their state; and its row, if it is sealed."""

    visible: Sequence[Returned]
    leased: Sequence[Returned]
    delayed: Sequence[Returned]
    row: Bucket | None


def by_state(
    row: Bucket | None, waiting: Sequence[ChunkRow], *, now_us: int, asked: Runs | None
) -> ByState:
    """Return the requested messages of one bucket, by their state."""

    def wanted(parts: Iterable[Returned]) -> list[Returned]:
        if asked is not None:
            parts = [replace(part, runs=part.runs & asked) for part in parts]
        return [part for part in parts if part.runs]

    parts: tuple[Iterable[Returned], ...]
    if row is None or row.status is Status.SEALING:
        row = None
        due = runs_of(chunk for chunk in waiting if is_due(chunk, now_us))
        later = runs_of(chunk for chunk in waiting if not is_due(chunk, now_us))
        parts = [Returned(deliveries=0, runs=due)], [], [Returned(deliveries=0, runs=later)]
    else:
        parts = rules.visible(row, now_us), rules.leased(row, now_us), rules.delayed(row, now_us)
    visible, leased, delayed = map(wanted, parts)
    return ByState(visible=visible, leased=leased, delayed=delayed, row=row)


def of_lane(ids: Mapping[Place, Runs] | None, lane: Lane) -> dict[BucketNo, Runs] | None:
    """Return the ids of one lane, as offsets by bucket; None: all."""
    if ids is None:
        return None
    return {place.bucket: runs for place, runs in ids.items() if place.lane == lane.lane_id}


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


async def sealed(lane: Lane, bucket: BucketNo) -> Stored[Bucket] | None:
    """Return the row of a bucket, sealed first if it was open: then its content is known."""
    row = await lane.buckets.read(bucket)
    if row is not None and row.value.status is Status.PREPARED:
        return (await roll_forward.settle_decided(lane, {bucket: row})).get(bucket)
    closed = await seal.finish(lane, bucket, row)
    return None if closed is None else closed.row

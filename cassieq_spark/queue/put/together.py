"""`Together` does the puts of one client and queue: its callers share bucket and proof (ADR 43).

  first     |--- its put ---|
  second        ... gathers |--- their put ---|
  third            .........|

- Puts of one kind share: the same lane, delay and time to live, all with deduplication keys or all
  without.
- One put of a kind runs at a time. Puts that come meanwhile gather for the next one. No put waits
  to be joined. A put without an answer for `SLOW_S` holds up no other: the next one begins
  (ADR 21).
- Puts that come in one turn of the event loop share, also if none is running. A shared put runs
  under the limits of no single caller, for as long as the caller with the most time left may wait.
- Each caller gets the result of its own messages: stored, unknown, or not stored and why.
- A caller that leaves before its messages are sent takes them along. A caller whose time is over
  before that gets an error: nothing was stored. Later, all callers get the result of their put.
- Puts that are large, or that have limits of their own (`session.within`), are not shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Final, NamedTuple

from cassieq_spark import tracing
from cassieq_spark.entropy import Entropy
from cassieq_spark.errors import CassieqError, StoreTimeout
from cassieq_spark.model.dedup import Until, stored_key
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.lanes import MAX_SHARDS, shard_of
from cassieq_spark.options import arguments
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.put import encode
from cassieq_spark.queue.put.dedup import Keys
from cassieq_spark.queue.put.encode import Times
from cassieq_spark.queue.put.producer import Producer
from cassieq_spark.queue.put.results import Each, Puts, after_a_part, firsts, for_all
from cassieq_spark.queue.schedule import DueLanes
from cassieq_spark.recent import Recent
from cassieq_spark.store import caller
from cassieq_spark.store.call import Patience, acting, one_call, present
from cassieq_spark.store.caller import copied, off_loop
from cassieq_spark.store.chunk import Row
from cassieq_spark.store.side_by_side import Places, begin_for_all

LANES: Final = 1_000
"""The number of lanes whose producers a client keeps: there are ever more due lanes."""

MOST_MESSAGES: Final = 2_000
MOST_BYTES: Final = 8_388_608
"""The maximum size of a shared put: its messages are in memory, and each caller waits for all."""

KINDS: Final = 1_000
"""The number of idle kinds that are remembered."""


Kind = tuple[LaneId, LaneId | None, int, int, Until | None]
"""The properties that messages of a shared put have in common: their lane, the due lane that takes
them instead, delay, time to live (both in µs), and for how long they use their deduplication keys;
None: they have none."""


class Where(NamedTuple):
    """The place where a caller wants the messages of one call, unchecked.

    Attributes:
        may_be_lists: Whether priority and delay may be lists, with an entry for each message.
    """

    priority: object
    key: object
    delay: object
    due_at: object
    may_be_lists: bool = False


class Part(NamedTuple):
    """Messages of one call that are put together.

    Attributes:
        due_in_us: 0 means at once.
        places: The positions of the messages in the call.
    """

    lane: Lane
    due_in_us: int
    places: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """The put of one caller.

    Attributes:
        keys: The deduplication key of each message; None if no message has one.
        until: For how long a former put stands for a key.
        limits: The caller's time limits.
        account: The caller's account.
        is_there: Returns whether the caller still waits.
        answer: The result of its messages, if they go with others.
    """

    kind: Kind
    lane: Lane
    due: Lane | None
    times: Times
    rows: Sequence[Row]
    keys: Sequence[str | None] | None
    until: Until = Until.WINDOW
    limits: Patience = field(default_factory=present)
    account: str | None = field(default_factory=acting.get)
    is_there: Callable[[], bool] = field(default_factory=caller.is_there)
    answer: asyncio.Future[Puts] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def left_s(self) -> float:
        """The time that the call may still wait."""
        return inf if self.limits.call is None else self.limits.call.left_s

    def fail(self, error: BaseException) -> None:
        """Raise an error in the caller, if it waits."""
        if not self.answer.done():
            self.answer.set_exception(copied(error) if isinstance(error, CassieqError) else error)


class _Batch:
    """The puts that gather for one shared put."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._count = self._bytes = 0

    def add(self, asked: Asked, size: int) -> bool:
        """Add a put, unless it would be too much. Return whether it was added."""
        count, size = self._count + len(asked.rows), self._bytes + size
        if count > MOST_MESSAGES or size > MOST_BYTES:
            return False
        self.asked.append(asked)
        self._count, self._bytes = count, size
        return True

    def begin(self) -> list[Asked]:
        """Return the puts whose callers still wait.

        Fail those that have left or whose time is over.
        """
        for one in self.asked:
            if not one.is_there() or one.left_s <= 0:
                one.fail(
                    StoreTimeout(
                        f"put into queue {one.lane.queue!r}: other puts of this client were not "
                        "answered in time. Nothing was sent. Try again"
                    )
                )
        return [one for one in self.asked if not one.answer.done()]


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Line:
    """The puts of one kind.

    Attributes:
        place: The place of the put that is running.
        last: The batch that others may still join.
    """

    place: Places
    last: _Batch | None = None


class Together:
    """The puts of one client and queue, which all its handles share.

    At any time a client may lose it, as long as nobody holds it: a producer's block stays as it is,
    and is sealed like the block of a producer that has ended.

    Attributes:
        producers: One for each lane that was put into. All handles of a lane share it, and it fills
            a bucket of its own [P15].
        due_lanes: The due lanes that are known to exist.
        shard: The shard of messages without a key. It is one for all, so that a trickle fills one
            bucket.

    Args:
        look_soon: Called when messages were put that a get would find.
    """

    def __init__(self, entropy: Entropy, look_soon: Callable[[], None]) -> None:
        self._look_soon = look_soon
        self.producers: Recent[LaneId, Producer] = Recent(LANES)
        self.due_lanes = DueLanes()
        self.shard = entropy.rng.randrange(MAX_SHARDS)
        self._lines: Recent[Kind, _Line] = Recent(KINDS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(
        self,
        lane: Lane,
        bodies: Iterable[object],
        where: Where,
        *,
        ttl: object,
        dedup_keys: object,
        dedup_until: object,
        **more: object,
    ) -> Puts:
        """Check and put the messages of one call.

        Args:
            more: See `encode.messages`.

        Raises:
            BodyInvalid, OptionInvalid: An argument has a wrong form; nothing was written.
            PutAmbiguous: A part was stored before another one failed; the error names what was
                stored.
            CassieqError: See `Producer.put`, and `DueLanes.lane_for`.
        """
        entries = encode.entries(bodies, more.get("headers"))
        rows = await off_loop(lambda: encode.messages(bodies, **more), entries=entries)
        parts = self.parts(lane, where, len(rows))
        ttl_us = arguments.ttl_us(ttl)
        window_s = lane.settings.dedup_window_s
        keys = arguments.dedup_keys(dedup_keys, len(rows), window_s=window_s)
        until = arguments.dedup_until(dedup_until)
        if not rows:
            return Puts([])
        call = lane.store.session.call()
        with tracing.sending(lane.queue, [row.headers for row in rows]) as context, call:
            if context:
                rows = [encode.with_context(row, context) for row in rows]
            put = await self._put_parts(parts, rows, ttl_us, keys, until)
        if not all(part.due_in_us for part in parts):
            self._look_soon()
        return put

    def parts(self, lane: Lane, where: Where, count: int) -> list[Part]:
        """Divide the messages of one call into parts that are put together.

        Raises:
            OptionInvalid: A priority, a delay or the key has a wrong form; the error names it.
        """
        settings, now_us = lane.settings, lane.clock.now_us()

        def each(name: str, value: object) -> list[tuple[str, object]]:
            return arguments.each(name, value, count) if where.may_be_lists else [(name, value)]

        classes = [
            arguments.priority(name, one, settings.priorities)
            for name, one in each("priority", where.priority)
        ]
        dues = [
            arguments.due_in_us(
                one, where.due_at, now_us=now_us, period_us=settings.period_us, named=name
            )
            for name, one in each("delay", where.delay)
        ]
        text = arguments.key("key", where.key)
        shard = self.shard % settings.shards
        if text is not None:
            shard = shard_of(text, settings.shards)

        def lane_for(of_class: int) -> Lane:
            return lane.sibling(lane.fixed.lane(of_class, shard))

        if len(classes) == len(dues) == 1:
            return [Part(lane_for(classes[0]), dues[0], range(count))]
        places: dict[tuple[int, int], list[int]] = {}
        for at in range(count):
            of_one = classes[at % len(classes)], dues[at % len(dues)]
            places.setdefault(of_one, []).append(at)
        return [
            Part(lane_for(of_class), due_in_us, at) for (of_class, due_in_us), at in places.items()
        ]

    async def _put_parts(
        self,
        parts: Sequence[Part],
        rows: Sequence[Row],
        ttl_us: int,
        keys: Sequence[str | None] | None,
        until: Until,
    ) -> Puts:
        """Put the messages of one call, part by part."""
        if len(parts) == 1:
            return await self._put_part(parts[0], rows, ttl_us, keys, until)
        found: dict[int, Each] = {}
        for part in parts:
            some = [rows[at] for at in part.places]
            its_keys = None if keys is None else [keys[at] for at in part.places]
            try:
                put = await self._put_part(part, some, ttl_us, its_keys, until)
            except CassieqError as error:
                if not found:
                    raise
                stored = [message_id for message_id, _ in found.values()]
                raise after_a_part(part.lane.queue, stored, error) from error
            found.update(zip(part.places, put.each, strict=True))
        return Puts([found[at] for at in range(len(rows))])

    async def _put_part(
        self,
        part: Part,
        rows: Sequence[Row],
        ttl_us: int,
        keys: Sequence[str | None] | None,
        until: Until,
    ) -> Puts:
        """Put messages into a lane of this queue, or into a due lane of its priority.

        Args:
            keys: The deduplication key of each message; None if no message has one.

        Raises:
            CassieqError: See `Producer.put`, and `DueLanes.lane_for`.
        """
        lane, due_in_us = part.lane, part.due_in_us
        due_us = lane.clock.now_us() + due_in_us
        due = await self.due_lanes.lane_for(lane, due_us) if due_in_us else None
        times = Times(delay_us=due_in_us, ttl_us=ttl_us)
        if due is not None:
            times = Times(due_us=due_us, ttl_us=ttl_us)
        if keys is not None and not any(keys):
            keys = None
        due_id = None if due is None else due.lane_id
        kind = lane.lane_id, due_id, due_in_us, ttl_us, None if keys is None else until
        asked = Asked(kind=kind, lane=lane, due=due, times=times, rows=rows, keys=keys, until=until)
        return (await self._joined(asked)).checked(lane.queue)

    async def _joined(self, asked: Asked) -> Puts:
        """Put the messages of one caller, together with those of others.

        Raises:
            CassieqError: Nothing was stored, or the queue is gone.
            StoreTimeout: The caller's time was over before anything was sent.
        """
        rows, limits = asked.rows, asked.limits
        if len(rows) > MOST_MESSAGES or min(limits.until, limits.each_s) < inf:
            return await self._put([asked])
        entries = encode.entries_of(rows) - len(rows)  # a message without headers takes no time
        size = await off_loop(lambda: sum(map(encode.size, rows)), entries=entries)
        if size > MOST_BYTES:
            return await self._put([asked])
        clock = asked.lane.store.session.clock
        line = self._lines.get_or_make(asked.kind, lambda: _Line(Places(1, clock)))
        if line.last is None or not line.last.add(asked, size):
            batch = line.last = _Batch()
            batch.add(asked, size)
            begin_for_all(self._share(line, batch), self._tasks)
        with limits.waiting():
            found = await asked.answer
        limits.heard()
        return found

    async def _share(self, line: _Line, batch: _Batch) -> None:
        """Put the gathered messages when their turn comes, and give each caller its results."""
        place = await line.place.take(None)
        if line.last is batch:
            line.last = None
        try:
            if together := batch.begin():
                acting.set(together[0].account)  # the account in whose turn keys are taken
                clock = together[0].lane.store.session.clock
                with one_call(max(one.left_s for one in together), clock):
                    found = await self._put(together)
                end = 0
                for one in together:
                    start, end = end, end + len(one.rows)
                    if not one.answer.done():
                        one.answer.set_result(replace(found, each=found.each[start:end]))
        except BaseException as error:  # noqa: BLE001 - the waiting callers get it
            for one in batch.asked:
                one.fail(error)
        finally:
            line.place.leave(place)

    async def _put(self, together: Sequence[Asked]) -> Puts:
        """Put messages of several callers together. Return the result of each, in order."""
        # The last one has the newest settings, and is due the latest, if only by a moment.
        last = together[-1]
        rows = [row for one in together for row in one.rows]
        keys = taken = None
        positions: list[int] = []
        stands_for: list[int] = []
        if last.keys is not None:
            given = [key for one in together for key in one.keys or ()]
            positions, stands_for = firsts(given)
            rows = [rows[at] for at in positions]
            keys = [None if (key := given[at]) is None else stored_key(key) for at in positions]
            taken = Keys(round((last.lane.settings.dedup_window_s or 0) * 1e6), last.until)
        pack = partial(encode.pack, rows, bucket_size=last.lane.bucket_size, times=last.times)
        size = sum(len(row.body) for row in rows)
        entries = encode.entries_of(rows)
        packed = await off_loop(partial(pack, keys=keys), entries=entries, size_bytes=size)
        ordinary = partial(self._producer(last.lane).put, last.lane, keys=taken)
        if last.due is None:
            outcome = await ordinary(packed)
        else:
            outcome = await self._producer(last.due).put(last.due, packed, ordinary, taken)
        put = outcome.puts(last.lane, packed)
        if last.keys is None:
            return put
        return replace(put, each=for_all(put.each, positions, stands_for))

    def _producer(self, lane: Lane) -> Producer:
        return self.producers.get_or_make(lane.lane_id, Producer)

"""`Work` is the state that one client keeps of a queue between calls, for all its handles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from cassieq_spark import tracing
from cassieq_spark.entropy import Entropy
from cassieq_spark.errors import CassieqError
from cassieq_spark.model.ids import LaneId
from cassieq_spark.model.lanes import MAX_SHARDS, shard_of
from cassieq_spark.options import arguments
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.put import encode
from cassieq_spark.queue.put.dedup import Keys
from cassieq_spark.queue.put.encode import Times
from cassieq_spark.queue.put.producer import Producer
from cassieq_spark.queue.put.results import Once, Puts, after_a_part
from cassieq_spark.queue.put.together import Asked, Kind, Together
from cassieq_spark.queue.schedule import DueLanes
from cassieq_spark.queue.waiting import Waiting
from cassieq_spark.recent import Recent
from cassieq_spark.store.caller import off_loop
from cassieq_spark.store.chunk import Row

QUEUES: Final = 1_000
"""The number of queues without an open handle whose state a client keeps."""

LANES: Final = 1_000
"""The number of lanes whose producers a client keeps: there are ever more due lanes."""


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


@dataclass(slots=True, weakref_slot=True)
class Work:
    """The state that one client keeps for one queue, shared by all its handles.

    Everything that works on the queue holds it. At any other time a client may lose it: the
    producer's block stays as it is, and is sealed like the block of a producer that has ended.

    Attributes:
        producers: One for each lane that was put into.
        together: Joins puts of several callers.
        due_lanes: The due lanes that are known to exist.
        shard: The shard of messages without a key. It is one for all, so that a trickle fills one
            bucket.
        waiting: Serves the calls that wait for messages.
    """

    entropy: InitVar[Entropy]
    producers: Recent[LaneId, Producer] = field(default_factory=lambda: Recent(LANES))
    together: Together = field(default_factory=Together)
    due_lanes: DueLanes = field(default_factory=DueLanes)
    waiting: Waiting = field(init=False)
    shard: int = field(init=False)

    def __post_init__(self, entropy: Entropy) -> None:
        self.waiting = Waiting(entropy)
        self.shard = entropy.rng.randrange(MAX_SHARDS)

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

    async def put(
        self,
        lane: Lane,
        bodies: Iterable[object],
        where: Where,
        *,
        ttl: object,
        dedup_keys: object,
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
        if not rows:
            return Puts([])
        call = lane.store.session.call()
        with tracing.sending(lane.queue, [row.headers for row in rows]) as context, call:
            if context:
                rows = [encode.with_context(row, context) for row in rows]
            put = await self._put_parts(parts, rows, ttl_us, keys)
        if not all(part.due_in_us for part in parts):
            self.waiting.look_soon()
        return put

    async def _put_parts(
        self,
        parts: Sequence[Part],
        rows: Sequence[Row],
        ttl_us: int,
        keys: Sequence[str | None] | None,
    ) -> Puts:
        """Put the messages of one call, part by part."""
        if len(parts) == 1:
            return await self._put_part(parts[0], rows, ttl_us, keys)
        done: list[Puts] = []
        for part in parts:
            some = [rows[at] for at in part.places]
            its_keys = None if keys is None else [keys[at] for at in part.places]
            try:
                done.append(await self._put_part(part, some, ttl_us, its_keys))
            except CassieqError as error:
                if not done:
                    raise
                stored = [one for put in done for one in put.message_ids]
                raise after_a_part(part.lane.queue, stored, error) from error
        return Puts.joined(done, [part.places for part in parts])

    async def _put_part(
        self, part: Part, rows: Sequence[Row], ttl_us: int, keys: Sequence[str | None] | None
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
        kind = Kind(lane.lane_id, due_id, due_in_us, ttl_us, keys is not None)
        asked = Asked(kind=kind, lane=lane, due=due, times=times, rows=rows, keys=keys)
        return (await self.together.put(asked, self._put)).checked(lane.queue)

    async def _put(self, together: Sequence[Asked]) -> Puts:
        """Put messages of several callers together. Return the result of each, in order."""
        # The last one has the newest settings, and is due the latest, if only by a moment.
        lane, due, times = together[-1].lane, together[-1].due, together[-1].times
        rows = [row for one in together for row in one.rows]
        how: dict[str, Any] = {"bucket_size": lane.bucket_size, "times": times}
        once = taken = None
        if together[-1].keys is not None:
            once = Once.of([key for one in together for key in one.keys or ()])
            taken = Keys(round((lane.settings.dedup_window_s or 0) * 1e6))
            rows, how["keys"] = [rows[at] for at in once.positions], once.keys
        size = sum(len(row.body) for row in rows)
        packed = await off_loop(
            lambda: list(encode.pack(rows, **how)), entries=encode.entries_of(rows), size_bytes=size
        )
        ordinary = partial(self._producer(lane).put, lane, keys=taken)
        if due is None:
            outcome = await ordinary(packed)
        else:
            outcome = await self._producer(due).put(due, packed, ordinary, taken)
        put = outcome.puts(lane, packed)
        return put if once is None else once.results(put)

    def _producer(self, lane: Lane) -> Producer:
        return self.producers.get_or_make(lane.lane_id, Producer)

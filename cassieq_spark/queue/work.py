"""`Work` is what one client keeps of a queue between calls, for all its handles and threads."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cassieq_spark.entropy import shared
from cassieq_spark.errors import CassieqError
from cassieq_spark.model.lanes import MAX_SHARDS, shard_of
from cassieq_spark.model.sizes import OFFLOAD_BYTES, OFFLOAD_MESSAGES
from cassieq_spark.options import arguments
from cassieq_spark.queue.get.poll import GetRequest, Getter
from cassieq_spark.queue.put import encode
from cassieq_spark.queue.put.dedup import Keys
from cassieq_spark.queue.put.encode import Times
from cassieq_spark.queue.put.producer import Producer
from cassieq_spark.queue.put.results import Once, Puts, after_a_part, results
from cassieq_spark.queue.schedule import Births
from cassieq_spark.recent import Recent
from cassieq_spark.store.portal import in_a_thread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.options import QueueSettings
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.queue.put.encode import Packed
    from cassieq_spark.queue.put.results import Placed
    from cassieq_spark.store.chunk import Row


QUEUES: Final = 1_000
"""How many queues that no handle is open for a client keeps its work of."""

LANES: Final = 1_000
"""The same of lanes that were put into: of due lanes there are ever more."""


class Where(NamedTuple):
    """Where a caller wants the messages of one call, unchecked.

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
        due_in_us: 0: at once.
        places: Where they are among the messages of the call.
    """

    lane: Lane
    due_in_us: int
    places: Sequence[int]


@dataclass(slots=True, weakref_slot=True)
class Work:
    """The state that one client keeps for one queue, shared by all its handles and threads.

    Whatever works on the queue holds it. A client may lose it at any other time: its producer's
    block stays as it is, and is sealed like one whose producer has ended.

    Attributes:
        producers: One for each lane that was put into.
        births: The due lanes that are known to be there.
        shard: Of messages without a key: one for all, so that a trickle fills one bucket.
        polls: What serves those who wait in an event loop; see `aio.waiting`.
    """

    producers: Recent[LaneId, Producer] = field(default_factory=lambda: Recent(LANES))
    births: Births = field(default_factory=Births)
    getter: Getter = field(default_factory=Getter)
    shard: int = field(default_factory=lambda: shared.randrange(MAX_SHARDS))
    polls: object = None

    def parts(self, lane: Lane, where: Where, count: int) -> list[Part]:
        """Divide the messages of one call into those that are put together.

        Raises:
            OptionInvalid: A priority, a delay or the key has a wrong form; it says whose.
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
        if len(classes) == len(dues) == 1:
            return [Part(self.lane_for(lane, classes[0], where.key), dues[0], range(count))]
        places: dict[tuple[int, int], list[int]] = {}
        for at in range(count):
            of_one = classes[at % len(classes)], dues[at % len(dues)]
            places.setdefault(of_one, []).append(at)
        return [
            Part(self.lane_for(lane, of_class, where.key), due_in_us, at)
            for (of_class, due_in_us), at in places.items()
        ]

    def lane_for(self, lane: Lane, of_class: int, key: object) -> Lane:
        """The lane of this queue that a message of a class takes, as its producer wants it.

        Raises:
            OptionInvalid: The key is too long.
        """
        settings = lane.settings
        text = arguments.key("key", key)
        shard = self.shard % settings.shards
        if text is not None:
            shard = shard_of(text, settings.shards)
        return lane.sibling(lane.fixed.lane(of_class, shard))

    async def put(
        self,
        parts: Sequence[Part],
        rows: Sequence[Row],
        *,
        ttl_us: int,
        keys: Sequence[str | None] | None = None,
    ) -> Puts:
        """Put the messages of one call, part by part.

        Args:
            keys: The deduplication key of each; None: none has one.

        Raises:
            PutAmbiguous: A part was stored before another one failed, too; it names what.
            CassieqError: See `Producer.put`, and `Births.lane_for`.
        """
        if len(parts) == 1:
            return await self._put_part(parts[0], rows, ttl_us=ttl_us, keys=keys)
        done: list[Puts] = []
        for part in parts:
            some = [rows[at] for at in part.places]
            its_keys = None if keys is None else [keys[at] for at in part.places]
            try:
                done.append(await self._put_part(part, some, ttl_us=ttl_us, keys=its_keys))
            except CassieqError as error:
                if not done:
                    raise
                stored = [one for put in done for one in put.message_ids]
                raise after_a_part(part.lane.queue, stored, error) from error
        return Puts.joined(done, [part.places for part in parts])

    async def _put_part(
        self, part: Part, rows: Sequence[Row], *, ttl_us: int, keys: Sequence[str | None] | None
    ) -> Puts:
        """Put messages into a lane of this queue, or into a due lane of its class.

        Args:
            keys: The deduplication key of each; None: none has one.

        Raises:
            CassieqError: See `Producer.put`, and `Births.lane_for`.
        """
        lane, due_in_us = part.lane, part.due_in_us
        due_us = lane.clock.now_us() + due_in_us
        its_lane = await self.births.lane_for(lane, due_us) if due_in_us else None
        times = Times(delay_us=due_in_us, ttl_us=ttl_us)
        if its_lane is not None:
            times = Times(due_us=due_us, ttl_us=ttl_us)
        if keys is None or not any(keys):
            packed = await _packed(rows, bucket_size=lane.bucket_size, times=times)
            return results(lane, await self._put(lane, its_lane, packed))
        once = Once.of(keys)
        packed = await _packed(
            [rows[at] for at in once.positions],
            bucket_size=lane.bucket_size,
            times=times,
            keys=once.keys,
        )
        taken = Keys(round((lane.settings.dedup_window_s or 0) * 1e6))
        return once.results(results(lane, await self._put(lane, its_lane, packed, taken)))

    async def _put(
        self, lane: Lane, due: Lane | None, packed: Sequence[Packed], keys: Keys | None = None
    ) -> list[Placed]:
        ordinary = partial(self._producer(lane).put, lane, keys=keys)
        if due is None:
            return await ordinary(packed)
        return await self._producer(due).put(due, packed, ordinary, keys)

    def _producer(self, lane: Lane) -> Producer:
        return self.producers.get_or_make(lane.lane_id, Producer)

    def request(
        self,
        settings: QueueSettings,
        *,
        at_most: int,
        visibility: float | timedelta | None,
        wait: float | timedelta,
        consumer: str | None,
        at_least: int,
    ) -> GetRequest:
        """Check the arguments of a get.

        Raises:
            OptionInvalid: One of them has a wrong form.
        """
        visibility_us = None if visibility is None else arguments.visibility_us(visibility)
        return GetRequest(
            at_most=at_most,
            owner=_default_owner() if consumer is None else arguments.consumer(consumer),
            wait_s=arguments.wait_s(wait),
            visibility_us=visibility_us or int(settings.visibility_timeout_s * 1e6),
            priority_at_least=arguments.priority(
                "priority_at_least", at_least, settings.priorities
            ),
        )


async def _packed(rows: Sequence[Row], **how: Any) -> list[Packed]:
    """Pack messages, in a thread if it takes longer than a change of threads does."""
    pack = partial(encode.pack, rows, **how)
    if sum(len(row.body) for row in rows) < OFFLOAD_BYTES and len(rows) < OFFLOAD_MESSAGES:
        return list(pack())
    return list(await in_a_thread(pack))


def _default_owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"

"""`Work` is what one client keeps of a queue between calls, for all its handles and threads."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from cassieq_spark.entropy import generator
from cassieq_spark.model.lanes import MAX_SHARDS, shard_of
from cassieq_spark.options import arguments
from cassieq_spark.queue.get.poll import GetRequest, Getter
from cassieq_spark.queue.put.producer import Producer
from cassieq_spark.queue.schedule import Births
from cassieq_spark.queue.settle.ack_group import AckGroup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.options import QueueSettings
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.queue.put.encode import Packed
    from cassieq_spark.queue.put.producer import Placed


@dataclass(slots=True)
class Work:
    """The state that one client keeps for one queue, shared by all its handles and threads.

    Attributes:
        producers: One for each lane that was put into.
        births: The due lanes that are known to be there.
        shard: Of messages without a key: one for all, so that a trickle fills one bucket.
    """

    producers: defaultdict[LaneId, Producer] = field(default_factory=lambda: defaultdict(Producer))
    births: Births = field(default_factory=Births)
    getter: Getter = field(default_factory=Getter)
    acks: AckGroup = field(default_factory=AckGroup)
    shard: int = field(default_factory=lambda: generator().randrange(MAX_SHARDS))

    def lane_for(self, lane: Lane, priority: object, key: object) -> Lane:
        """The lane of this queue that a message takes, as its producer wants it.

        Raises:
            OptionInvalid: The priority is out of range, or the key is too long.
        """
        settings = lane.settings
        of_class = arguments.priority("priority", priority, settings.priorities)
        text = arguments.key(key)
        shard = self.shard % settings.shards
        if text is not None:
            shard = shard_of(text, settings.shards)
        return lane.sibling(lane.fixed.lane(of_class, shard))

    def put(self, lane: Lane, packed: Sequence[Packed], *, due_in_us: int) -> list[Placed]:
        """Put messages into a lane of this queue, or into a due lane of its class.

        Raises:
            CassieqError: See `Producer.put`, and `Births.lane_for`.
        """
        ordinary = partial(self.producers[lane.lane_id].put, lane)
        due_us = lane.clock.now_us() + due_in_us
        its_lane = self.births.lane_for(lane, due_us) if due_in_us else None
        if its_lane is None:
            return ordinary([replace(one, delay_us=due_in_us) for one in packed])
        scheduled = [replace(one, due_us=due_us) for one in packed]
        return self.producers[its_lane.lane_id].put(its_lane, scheduled, ordinary)

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


def _default_owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"

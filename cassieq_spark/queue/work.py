"""`Work` is what one client keeps of a queue between calls, for all its handles and threads."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cassieq_spark.entropy import generator
from cassieq_spark.model.lanes import MAX_SHARDS, shard_of
from cassieq_spark.options import arguments
from cassieq_spark.queue.get.poll import Getter
from cassieq_spark.queue.put.producer import Producer
from cassieq_spark.queue.settle.ack_group import AckGroup

if TYPE_CHECKING:
    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.queue.lane import Lane


@dataclass(slots=True)
class Work:
    """The state that one client keeps for one queue, shared by all its handles and threads.

    Attributes:
        producers: One for each lane that was put into.
        shard: Of messages without a key: one for all, so that a trickle fills one bucket.
    """

    producers: defaultdict[LaneId, Producer] = field(default_factory=lambda: defaultdict(Producer))
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

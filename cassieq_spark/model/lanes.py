"""Decide which lane of a queue a message takes, and in which order lanes are read (lanes 1 to 4).

Fixed lanes are minted with the queue, one for each class and shard. Due lanes hold what is due much
later, one for each period and class; their ids follow from the queue's, so nobody stores them.
Holds I10: a low class is slow, and never stuck.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid5
from zlib import crc32

from cassieq_spark.model.ids import LaneId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cassieq_spark.model.ids import QueueName

MAX_PRIORITIES: Final = 10
MAX_SHARDS: Final = 64
MAX_LANES: Final = 64
MAX_KEY_BYTES: Final = 1_024
"""The longest key of a message, in UTF-8."""

LONGEST_DELAY_US: Final = 400 * 86_400 * 1_000_000
LONGEST_PERIODS: Final = 10_000
"""A message may be due as far ahead as the lesser of the two allows."""

NOT_BEGUN_US: Final = 60 * 1_000_000
"""A producer takes a due lane only if its period begins later than this from now."""

LOOKED_AT_AHEAD_US: Final = 30 * 1_000_000
"""A reader looks at due lanes whose period begins within this time from now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """The lanes of one queue that are there from its creation, in order (class, shard).

    Attributes:
        ids: One for each class and shard. The first is the queue's identity and tombstone.
        priorities: How many classes; a higher class is handed out first.
        shards: How many lanes of each class.
    """

    ids: Sequence[LaneId]
    priorities: int = 1
    shards: int = 1

    def lane(self, priority: int, shard: int) -> LaneId:
        """The lane of a class and shard."""
        return self.ids[priority * self.shards + shard]

    def class_and_shard(self, lane: LaneId) -> tuple[int, int]:
        """(class, shard) of a lane.

        Raises:
            ValueError: It is none of these.
        """
        return divmod(list(self.ids).index(lane), self.shards)

    def has_others(self, lane: LaneId) -> bool:
        """Whether the queue has lanes beside this one: its name alone does not say which."""
        return tuple(self.ids) != (lane,)

    def title(self, queue: QueueName, lane: LaneId) -> str:
        """A lane, as errors name it: by its queue alone if that has no other."""
        return f"lane {lane} of queue {queue!r}" if self.has_others(lane) else f"queue {queue!r}"

    def in_turn(self, first_shard: int, *, at_least: int = 0) -> list[LaneId]:
        """Lanes as they are read: the highest class first, each from this shard around [U15]."""
        return [
            self.lane(priority, (first_shard + step) % self.shards)
            for priority in reversed(range(at_least, self.priorities))
            for step in range(self.shards)
        ]


def shard_of(key: str, shards: int) -> int:
    """The shard of a key, the same in each client: messages of one key keep their order.

    ``crc32`` is unsigned in Python 3; a negative hash has lost messages elsewhere.
    """
    return crc32(key.encode()) % shards


def offered_below(at_most: int, fairness: float, coin: float) -> int:
    """How many of a claim's messages are offered to a lower class first.

    A coin, and no count that a process keeps: a program that gets one message a minute and ends is
    fair, too [U15].

    Args:
        fairness: The share for lower classes, 0 to 0.5.
        coin: Drawn anew for each claim, 0 <= coin < 1.
    """
    whole, rest = divmod(at_most * fairness, 1)
    return int(whole) + (coin < rest)


@dataclass(frozen=True, slots=True, order=True)
class DueLane:
    """What a due lane is for: messages of one class that are due within one period."""

    period: int
    priority: int

    def lane_id(self, queue_id: UUID) -> LaneId:
        """Its id, the same for whoever computes it [U12]."""
        return LaneId(uuid5(queue_id, f"due:{self.period}:{self.priority}"))

    def begins_us(self, period_us: int) -> int:
        """When its period begins."""
        return self.period * period_us

    def created_us(self, period_us: int) -> int:
        """Where its time pointer starts: not at the queue's creation [U16]."""
        return self.begins_us(period_us) - NOT_BEGUN_US


def due_lane(
    due_us: int, priority: int, *, now_us: int, after_us: int, period_us: int
) -> DueLane | None:
    """The due lane that a message goes to; None: to an ordinary lane, with a delay.

    Args:
        after_us: What is due within this time from now takes an ordinary lane.
        period_us: The length of a period.
    """
    lane = DueLane(due_us // period_us, priority)
    is_near = due_us - now_us <= after_us
    return None if is_near or lane.begins_us(period_us) <= now_us + NOT_BEGUN_US else lane


def longest_delay_us(period_us: int) -> int:
    """How far ahead a message may be due."""
    return min(LONGEST_DELAY_US, LONGEST_PERIODS * period_us)


def looked_at(now_us: int, period_us: int) -> int:
    """The first period that readers do not look at yet."""
    return (now_us + LOOKED_AT_AHEAD_US) // period_us + 1

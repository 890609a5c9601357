"""Choose a message's lane, and the order in which lanes are read (docs/design/lanes.md).

Fixed lanes are minted with the queue, one for each class and shard. Due lanes
(docs/design/due-lanes.md) hold messages that are due much later, one for each period and class.
Their ids follow from the queue's, so nobody stores them. Holds I10: a low class is slow, but never
stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from uuid import UUID
from zlib import crc32

from cassieq_spark.model.ids import (
    ID_BITS,
    VERSION_8,
    VERSION_BITS,
    LaneId,
    QueueName,
    derived_message_id,
)

MAX_PRIORITIES: Final = 10
MAX_SHARDS: Final = 64
MAX_LANES: Final = 64
MAX_KEY_BYTES: Final = 1_024
"""The longest key of a message, in UTF-8."""

LONGEST_DELAY_US: Final = 400 * 86_400 * 1_000_000
LONGEST_PERIODS: Final = 10_000
"""The most periods that a message may be due ahead; the lesser of the two limits holds."""

NOT_BEGUN_US: Final = 60 * 1_000_000
"""The least time before its period begins at which a producer still takes a due lane."""

ENDED_AGO_US: Final = 3_600 * 1_000_000
"""The time after a period's end from which on repair finishes its due lanes."""

TURNS_US: Final = 86_400 * 1_000_000
"""The time in which repair goes through all due lanes that have not begun, a few in each pass."""

YEAR_US: Final = 31_556_952 * 1_000_000

_PERIOD_AT: Final = 96
_CLASS_AT: Final = 92
_LOWEST: Final = (1 << 62) - 1

LOOKED_AT_AHEAD_US: Final = 30 * 1_000_000
"""The time before a period begins from which on readers look at its due lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """The lanes of one queue that exist from its creation, in order (class, shard).

    Attributes:
        ids: One for each class and shard. The first is the queue's identity and tombstone.
        priorities: The number of classes; a higher class is handed out first.
        shards: The number of lanes of each class.
    """

    ids: Sequence[LaneId]
    priorities: int = 1
    shards: int = 1

    def lane(self, priority: int, shard: int) -> LaneId:
        """Return the lane of a class and shard."""
        return self.ids[priority * self.shards + shard]

    def class_and_shard(self, lane: LaneId) -> tuple[int, int]:
        """Return (class, shard) of a lane.

        Raises:
            ValueError: It is not one of these lanes.
        """
        return divmod(list(self.ids).index(lane), self.shards)

    @property
    def first(self) -> LaneId:
        """The lane that stands for the queue."""
        return self.ids[0]

    def due(self, lane: LaneId) -> DueLane | None:
        """Return the due lane of this queue with this id; None if it is not one."""
        said = None if lane in self.ids else DueLane.said_by(self.first, lane)
        return None if said is None or said.priority >= self.priorities else said

    def of_message(self, message_id: UUID) -> tuple[LaneId, int] | None:
        """Return the lane and id that a message id was derived from; None if not in this queue.

        A message id keeps the part of a due lane's id that holds its period and class (ADR 2).
        """
        number = message_id.int & ID_BITS
        for lane in (*self.ids, DueLane.in_bits_of(message_id).lane_id(self.first)):
            if self.has(lane) and derived_message_id(lane, number) == message_id:
                return lane, number
        return None

    def has(self, lane: LaneId) -> bool:
        """Whether it is a lane of this queue; a due lane's id proves that by itself [U12]."""
        return lane in self.ids or self.due(lane) is not None

    def priority_of(self, lane: LaneId) -> int:
        """Return the class of the messages in a lane.

        Raises:
            ValueError: It is not a lane of this queue.
        """
        due = self.due(lane)
        return self.class_and_shard(lane)[0] if due is None else due.priority

    def rank(self, lane: LaneId) -> tuple[int, int, int]:
        """Return a lane's place in reading order: highest class, then due lanes, then shards."""
        due = self.due(lane)
        if due is not None:
            return -due.priority, 0, due.period
        priority, shard = self.class_and_shard(lane)
        return -priority, 1, shard

    def has_others(self, lane: LaneId) -> bool:
        """Whether the queue has more lanes than this one: then its name alone is ambiguous."""
        return tuple(self.ids) != (lane,)

    def title(self, queue: QueueName, lane: LaneId) -> str:
        """Name a lane in errors: by its queue alone if that has no other lane."""
        return f"lane {lane} of queue {queue!r}" if self.has_others(lane) else f"queue {queue!r}"

    def in_turn(self, first_shard: int, *, at_least: int = 0) -> list[LaneId]:
        """Return lanes in reading order: highest class first, each from this shard around [U15]."""
        return [
            self.lane(priority, (first_shard + step) % self.shards)
            for priority in reversed(range(at_least, self.priorities))
            for step in range(self.shards)
        ]


def shard_of(key: str, shards: int) -> int:
    """Return the shard of a key, the same in each client: messages of one key keep their order.

    ``crc32`` is unsigned in Python 3; elsewhere, a negative hash has lost messages.
    """
    return crc32(key.encode()) % shards


def offered_below(at_most: int, fairness: float, coin: float) -> int:
    """Return how many messages of a claim are offered to a lower class first.

    A coin decides, not a count that a process keeps: a program that gets one message a minute and
    ends is fair, too [U15].

    Args:
        fairness: The share for lower classes, 0 to 0.5.
        coin: Drawn anew for each claim, 0 <= coin < 1.
    """
    whole, rest = divmod(at_most * fairness, 1)
    return int(whole) + (coin < rest)


def held_until(more_at: Iterable[float], *, until: float) -> float | None:
    """Return until when a get holds lower classes back; None: they may take the rest of it.

    A lower class gets more than its offer only if no higher class has more to give in time. A
    reader's first scan finds only young messages in open buckets: without this rule, the lane that
    it read first would give all.

    Args:
        more_at: For each lane of a higher class that has more: when its messages can be had, at
            once or after ``linger``.
        until: Messages that can be had only later than this are not waited for.
    """
    return max((at for at in more_at if at <= until), default=None)


@dataclass(frozen=True, slots=True, order=True)
class DueLane:
    """The content of a due lane: messages of one class that are due within one period."""

    period: int
    priority: int

    def lane_id(self, queue: LaneId) -> LaneId:
        """Return the lane's id. Every client computes the same; it holds period and class [U12].

        It is a version 8 UUID: 32 bits of period, 4 of class, 86 of a hash over these and the
        queue.

        Args:
            queue: The queue's first lane.
        """
        said = self.period << _PERIOD_AT | self.priority << _CLASS_AT
        digest = blake2b(queue.bytes + said.to_bytes(16), digest_size=11).digest()
        proof = int.from_bytes(digest) >> 2
        spread = (proof >> 74) << 80 | (proof >> 62 & 0xFFF) << 64 | proof & _LOWEST
        return LaneId(UUID(int=said | spread | VERSION_8))

    @classmethod
    def in_bits_of(cls, any_id: UUID) -> DueLane:
        """Read period and class from the id of a due lane or of a message in one.

        Any other id gives a due lane, too: callers compare its `lane_id`.
        """
        return cls(any_id.int >> _PERIOD_AT, any_id.int >> _CLASS_AT & 0xF)

    @classmethod
    def said_by(cls, queue: LaneId, lane: LaneId) -> DueLane | None:
        """Decode a lane's id; None: it is not a due lane of this queue.

        Args:
            queue: The queue's first lane.
        """
        if lane.int & VERSION_BITS != VERSION_8:
            return None
        one = cls.in_bits_of(lane)
        return one if one.lane_id(queue) == lane else None

    def year(self, period_us: int) -> int:
        """Return the partition of the schedule that names it: years since 1970, of equal length."""
        return self.begins_us(period_us) // YEAR_US

    def begins_us(self, period_us: int) -> int:
        """Return when its period begins."""
        return self.period * period_us

    def created_us(self, period_us: int) -> int:
        """Return where its time pointer starts: not at the queue's creation [U16]."""
        return self.begins_us(period_us) - NOT_BEGUN_US


def due_lane(
    due_us: int, priority: int, *, now_us: int, after_us: int, period_us: int
) -> DueLane | None:
    """Return a message's due lane; None: it takes an ordinary lane, with a delay.

    Args:
        after_us: Messages that are due within this time from now take an ordinary lane.
        period_us: The length of a period.
    """
    lane = DueLane(due_us // period_us, priority)
    is_near = due_us - now_us <= after_us
    return None if is_near or lane.begins_us(period_us) <= now_us + NOT_BEGUN_US else lane


def longest_delay_us(period_us: int) -> int:
    """Return how far ahead a message may be due."""
    return min(LONGEST_DELAY_US, LONGEST_PERIODS * period_us)


def looked_at(now_us: int, period_us: int) -> int:
    """Return the first period whose lanes readers do not read yet."""
    return (now_us + LOOKED_AT_AHEAD_US) // period_us + 1


def healed_always(now_us: int, period_us: int) -> int:
    """Return the first period whose lanes a repair pass may leave to their turn.

    No client whose clock is right to half a minute reads them yet. So they hold only messages that
    were put, and no dead ones.
    """
    return (now_us + NOT_BEGUN_US) // period_us + 1


def in_turn(
    first: int, end: int, *, since_us: int, now_us: int, period_us: int
) -> list[tuple[int, int]]:
    """Return the periods that repair goes through between two times: each period once a day.

    A period's turn depends on its number alone, so none is left out while time moves on.

    Args:
        first: The first period to consider.
        end: The first period not to consider. ``end - first`` is at most what `periods_end` looks
            ahead.

    Returns:
        Their (first, end), ascending.
    """
    cycle = periods_end(0, period_us) + 1
    begin = since_us * cycle // TURNS_US
    count = min(now_us * cycle // TURNS_US - begin, cycle)
    at = first + (begin - first) % cycle
    parts = [(first, at + count - cycle), (at, min(at + count, first + cycle))]
    return [(a, min(b, end)) for a, b in parts if a < min(b, end)]


def first_period(register: int, *, created_us: int, period_us: int) -> int:
    """Return the first period that a register of the schedule leaves; without one it is 0.

    Producers and readers start at the same period: a message put below is never found [U16].
    """
    return max(register, created_us // period_us)


def finished_below(now_us: int, period_us: int) -> int:
    """Return the first period that is not to be finished yet."""
    return max(0, now_us - ENDED_AGO_US) // period_us


def periods_end(now_us: int, period_us: int) -> int:
    """Return the first period too far ahead for any message, even by a clock a day ahead."""
    return (now_us + longest_delay_us(period_us) + 86_400 * 1_000_000) // period_us + 1


def years(first: int, end: int, period_us: int) -> Iterable[int]:
    """Return the schedule's partitions that name the periods from ``first`` to before ``end``."""
    if first >= end:
        return ()
    return range(DueLane(first, 0).year(period_us), DueLane(end - 1, 0).year(period_us) + 1)

"""Define the monotone pointers and the time grid of the expiry hints (docs/design/time.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cassieq_spark.model.ids import FIRST_BUCKET, ID_LIMIT, BucketNo

MINUTE_US = 60_000_000
HOUR_MINUTES = 60

PASS_AFTER_US = 30_000_000
"""The distance of the time pointer from a minute's end: a claimer may write its hint late [P17]."""

LATE_AFTER_US = PASS_AFTER_US // 2
"""The delay from which on a hint is written again: of a client that took longer to write it
[T7], or after its CAS, if another's clock may have passed the hint's minute this long ago [T4]."""

REACH_MINUTES = 4 * HOUR_MINUTES
"""The time that a reader looks back and ahead for hints, if the time pointer is ahead of now."""

HINT_SPARE_S = 2 * 86_400
"""The time that a hint outlives the moment that it names; then its TTL removes it [R13]."""

DELETED = ID_LIMIT
"""The repair pointer of a deleted queue: every late put fails its check against it [P13]."""


class Pointer(StrEnum):
    """The max registers of a lane (G4): absent means 0, and they never go back (I6)."""

    READER = "reader"
    REPAIR = "repair"
    TIME = "time"
    DROPPED = "dropped"
    END = "end"
    SCHEDULE = "schedule"
    SCHEDULE_CLOSED = "schedule_closed"
    SCHEDULE_HEALED = "schedule_healed"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointers:
    """All pointers of a lane, as one read returns them.

    Attributes:
        reader: No bucket below it holds anything that only the reader's scan would find.
        repair: The low-water mark L: every bucket below is dropped; L <= reader (G5).
        time: No minute below it has a hint that still matters.
        dropped: In a deleted lane: nothing is left of the buckets below it [T15].
        end: In a deleted lane: the first bucket of which no id was handed out [T15].
        schedule: In a queue's first lane: every due lane of a period below is finished.
        schedule_closed: In a queue's first lane: no due lane of a period below is created any more.
            It is never below ``schedule`` [U2].
        schedule_healed: In a queue's first lane: when repair last went through all due lanes (µs).
        paused: In a fixed lane: raised by each pause and each resumption. Odd: it is paused.
    """

    reader: BucketNo = FIRST_BUCKET
    repair: BucketNo = FIRST_BUCKET
    time: int = 0
    dropped: BucketNo = FIRST_BUCKET
    end: BucketNo = FIRST_BUCKET
    schedule: int = 0
    schedule_closed: int = 0
    schedule_healed: int = 0
    paused: int = 0

    @property
    def is_deleted(self) -> bool:
        """Whether the queue was deleted: its lane is dead for ever [R25]."""
        return self.repair >= DELETED

    @property
    def is_paused(self) -> bool:
        """Whether no message of the lane is handed out."""
        return self.paused % 2 == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of one expiry partition: minutes ``first`` to ``last`` of ``hour``, both included."""

    hour: int
    first: int
    last: int


def paused_at(registers: Iterable[int], *, pauses: bool, now_us: int) -> int:
    """Return the value that all these registers get when their lanes are paused, or resumed.

    It is above all that were read, so that calls at the same time choose different values if they
    are opposite: the greater one wins in every lane, in whatever order they write (G4). And it is
    above those of earlier calls that were not read, because their writes may land later: it counts
    milliseconds, twice.
    """
    least = max(max(registers) + 1, 2 * (now_us // 1_000))
    return least if least % 2 == pauses else least + 1


def minute_of(time_us: int) -> int:
    """Return the minutes since the epoch."""
    return time_us // MINUTE_US


def hour_of(minute: int) -> int:
    """Return the expiry partition that holds this minute."""
    return minute // HOUR_MINUTES


def slices(first: int, last: int) -> tuple[Slice, ...]:
    """Return the parts of expiry partitions that cover these minutes (inclusive), oldest first."""
    return tuple(
        Slice(
            hour=hour,
            first=max(first, hour * HOUR_MINUTES),
            last=min(last, hour * HOUR_MINUTES + HOUR_MINUTES - 1),
        )
        for hour in range(hour_of(first), hour_of(last) + 1)
        if first <= last
    )


def is_passable(minute: int, *, now_us: int) -> bool:
    """Whether the time pointer may pass this minute, if no hint of it matters now [P17]."""
    return (minute + 1) * MINUTE_US + PASS_AFTER_US < now_us


def first_minute(passed: int, *, created: int, now: int) -> int:
    """Return the first minute to look for hints in: the time pointer, or the queue's creation.

    A pointer that is ahead of now was moved by a client whose clock was ahead. It never goes back
    (I6), and hints of messages that came back meanwhile are below it [T7].
    """
    return max(created, passed if passed <= now else now - REACH_MINUTES)


def hint_minutes(minute: int, *, now: int, passed: int) -> tuple[int, ...]:
    """Return the minutes under which a hint for this minute is written, so that it is found.

    They are never before now: the time pointer may have passed a minute that is over. If the
    pointer is ahead of now, one is below it, found while that is so. Another is after it, for when
    now has reached it [T7].
    """
    at = max(minute, now)
    return (at,) if at >= passed else (at, passed + 1)


def hint_ttl_s(until_us: int, *, now_us: int) -> int:
    """Return how long a hint is kept, so that nobody ever has to delete one [R13]."""
    return max(0, until_us - now_us) // 1_000_000 + HINT_SPARE_S

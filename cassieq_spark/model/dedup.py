"""Decide whether the message of a deduplication key was put (docs/design/deduplication.md). Pure.

An entry holds the id of the last try to put a key. The bucket's manifest decides whether that put
happened, as for every message. Holds I1: nobody is told "duplicate" of a message that is not
delivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from hashlib import sha256
from typing import Final
from uuid import UUID

from cassieq_spark.model.bucket import Bucket, Status
from cassieq_spark.model.ids import BucketNo, LaneId, Runs, union
from cassieq_spark.model.lease import expired_of, is_expired

MIN_WINDOW_S: Final = 60
MAX_WINDOW_S: Final = 30 * 86_400

_SPARE_S: Final = 3_600
"""The time that an entry outlives its window: clocks differ, and a put takes its time."""

KEPT_S: Final = MAX_WINDOW_S + 2 * _SPARE_S
"""The time that the ids of a dropped bucket are kept. Any entry that names one of them ends
before, however long the window was when it was made [U5]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The last try to put a key.

    Attributes:
        lane, bucket, offset: The id of the try.
        message_id: The answer to a put of the same key, if this one happened.
        put_us: Cluster time when the put began; the window counts from here.
    """

    lane: LaneId
    bucket: BucketNo
    offset: int
    message_id: UUID
    put_us: int

    @property
    def place(self) -> tuple[LaneId, BucketNo, int]:
        """The id, which no other try has (I6)."""
        return self.lane, self.bucket, self.offset


class PutState(Enum):
    """The state of an entry's put."""

    HAPPENED = "happened"
    NEVER = "never"
    """The put did not happen, and never will: the manifest of its bucket is or was fixed (I5)."""
    OPEN = "open"
    """The put is not there yet. If the bucket is closed, it is in, or never will be [P5]."""
    KEPT = "kept"
    """The bucket was dropped. Only the kept part of its manifest decides [U5]."""


class Until(StrEnum):
    """How long a put keeps its key from others, within the window."""

    WINDOW = "window"
    """For the whole window, whatever becomes of the message."""
    ACKED = "acked"
    """Until it is acked, cancelled, expired or dead."""
    LEASED = "leased"
    """While it waits: not while a consumer holds it."""


def is_over(until: Until, row: Bucket | None, offset: int, *, now_us: int) -> bool:
    """Whether a message that was put keeps its key from others no longer.

    Args:
        row: The row of its bucket, which is not dropped; None: open, so nobody got the message yet.
    """
    if until is Until.WINDOW or row is None or row.status is Status.SEALING:
        return False
    ended = [*(one.runs for one in row.dead), expired_of(row, now_us)]
    if until is Until.LEASED:
        ended += [one.runs for one in row.leases if not is_expired(one, now_us)]
    return offset not in row.unacked - union(ended)


def judged(entry: Entry, *, is_stored: bool, row: Bucket | None, low: int) -> PutState:
    """Decide whether a put happened, from three reads in this order: message, bucket row, L (G5).

    Another order gives wrong verdicts. A reader of an open bucket, and then of no message, may have
    read them before and after the message was put, delivered and dropped [U3].

    Args:
        is_stored: Whether a quorum read found the message whole. Such a read is sticky [P20]: if
            its bucket is open, whoever seals it finds the message.
        row: The bucket's row, by quorum.
        low: L of the entry's lane.
    """
    if entry.bucket < low:
        return PutState.KEPT
    if row is None:
        return PutState.HAPPENED if is_stored else PutState.OPEN
    if row.status is Status.SEALING:
        return PutState.OPEN
    return by_manifest(entry, row.manifest)


def by_manifest(entry: Entry, manifest: Runs | None) -> PutState:
    """Decide by a fixed manifest; None: no message of that bucket had a key."""
    is_in = manifest is not None and entry.offset in manifest
    return PutState.HAPPENED if is_in else PutState.NEVER


def stored_key(key: str) -> bytes:
    """Return the key's SHA-256: it has one length, and reveals nothing about anybody."""
    return sha256(key.encode()).digest()


def entry_ttl_s(window_us: int) -> int:
    """Return the seconds that an entry lives."""
    return -(-window_us // 1_000_000) + _SPARE_S

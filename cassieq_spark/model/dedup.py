"""Decide whether the message that a deduplication key stands for was put (lanes 6). Pure.

An entry says under which id the last put of a key was tried. Whether that put happened is decided
where it is for every message: by the bucket's manifest. Holds I1: nobody is told "duplicate" of a
message that is not delivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.bucket import Status

if TYPE_CHECKING:
    from uuid import UUID

    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo, LaneId, Runs

MIN_WINDOW_S: Final = 60
MAX_WINDOW_S: Final = 30 * 86_400

_SPARE_S: Final = 3_600
"""How much longer an entry is there than its window: clocks differ, and a put takes its time."""

KEPT_S: Final = MAX_WINDOW_S + 2 * _SPARE_S
"""How long the ids of a dropped bucket are kept: any entry that names one of them ends before,
whatever the window was when it was made [U5]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The last try to put a key.

    Attributes:
        lane, bucket, offset: The id it was tried under.
        message_id: What a put of the same key returns, if this one happened.
        put_us: When it began, cluster time: the window counts from here.
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


class Verdict(Enum):
    """What is known of an entry's put."""

    HAPPENED = "happened"
    NEVER = "never"
    """It did not, and never will: the manifest of its bucket is fixed, or was (I5)."""
    OPEN = "open"
    """It is not there yet. Close its bucket: then it is in, or never will be [P5]."""
    KEPT = "kept"
    """Its bucket was dropped: what was kept of its manifest says it, and nothing else [U5]."""


def judged(entry: Entry, *, is_stored: bool, row: Bucket | None, low: int) -> Verdict:
    """What three reads in this order tell: the message's row, its bucket's row, L (G5).

    In another order it would be wrong: who reads an open bucket first, and then no message, may
    have read them before and after the message was put, delivered and dropped [U3].

    Args:
        is_stored: Whether a quorum read found the message whole. Such a read is sticky [P20]: if
            its bucket is open, whoever seals it finds the message.
        row: The bucket's row, by quorum.
        low: L of the entry's lane.
    """
    if entry.bucket < low:
        return Verdict.KEPT
    if row is None:
        return Verdict.HAPPENED if is_stored else Verdict.OPEN
    if row.status is Status.SEALING:
        return Verdict.OPEN
    return by_manifest(entry, row.manifest)


def by_manifest(entry: Entry, manifest: Runs | None) -> Verdict:
    """What a manifest that is fixed says of it; None: no message of that bucket had a key."""
    is_in = manifest is not None and entry.offset in manifest
    return Verdict.HAPPENED if is_in else Verdict.NEVER


def stored_key(key: str) -> bytes:
    """What stands for a key in the table: of one length, and it tells nothing about anybody."""
    return sha256(key.encode()).digest()


def entry_ttl_s(window_us: int) -> int:
    """How long an entry is there."""
    return -(-window_us // 1_000_000) + _SPARE_S

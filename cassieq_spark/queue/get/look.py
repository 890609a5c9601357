"""`Scan` is the result of one look at a lane."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.ids import BucketNo

if TYPE_CHECKING:
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.pointer import Pointers
    from cassieq_spark.queue.get.time_pointer import Hints
    from cassieq_spark.store.cas import Stored
    from cassieq_spark.store.tables.monotons import Monoton

Rows = dict[BucketNo, "Stored[Bucket]"]


FIRST_WINDOW: Final = 8
"""The number of bucket rows that a look reads at once at first."""


@dataclass(slots=True, kw_only=True)
class Scan:
    """The result of one look.

    Attributes:
        pointers: As read at the start or before, and as moved on since.
        monoton: As read at the start.
        looked_at: The time when the pointers were read, by the monotonic clock.
        is_begun: Whether it began with the reads of `Beginning.has_news`, and with older pointers.
        candidates: Sealed rows with something to claim: returned messages first, then by id.
        open: Reserved buckets without a row, oldest first. L was read after them, or beside them.
            In the latter case a bucket that is being dropped may be among them. Its seal reads L
            again (G5).
        half_sealed: Buckets whose seal has begun, with the time (cluster time). L was read as for
            ``open``.
        peeked: Whether an open bucket holds messages, for some of the open buckets.
        oldest_later_us: Per open bucket: some later bucket or the monoton row is at least this old,
            so this bucket was reserved before that (cluster time) [R11].
        available: Messages in ``candidates``, without those in the next field.
        available_in_crowds: Messages in ``candidates`` of buckets that come last: they have so many
            leases that others are preferred [R6], or other consumers are at work in them.
        available_bytes: The size of the available messages as stored, by the mean of each bucket.
        claimable: The number of buckets in ``candidates`` that hold claimable messages.
        is_settled: Whether every bucket that was looked at waits only for time, or for nothing: the
            next message has a new id, or a hint.
    """

    pointers: Pointers
    monoton: Monoton
    looked_at: float
    is_begun: bool = False
    candidates: Rows = field(default_factory=dict)
    open: list[BucketNo] = field(default_factory=list)
    half_sealed: dict[BucketNo, int] = field(default_factory=dict)
    peeked: dict[BucketNo, bool] = field(default_factory=dict)
    oldest_later_us: dict[BucketNo, int] = field(default_factory=dict)
    available: int = 0
    available_in_crowds: int = 0
    available_bytes: float = 0
    claimable: int = 0
    is_settled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The first reads of a look: its pointers, monoton row and hints.

    Attributes:
        fresh: The buckets that were reserved since the previous look, if that left none open.
    """

    scan: Scan
    hints: Hints
    now_us: int
    fresh: range = range(0)

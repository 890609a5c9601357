"""`Scan`: what one look at a lane has found (design 5)."""

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
"""How many bucket rows a look reads at once at first."""


@dataclass(slots=True, kw_only=True)
class Scan:
    """The result of one look.

    Attributes:
        pointers: As read at the start or before, and as moved on since.
        monoton: As read at the start.
        looked_at: When the pointers were read, by the monotonic clock.
        is_begun: It began with what `Beginning.has_news` had read, and with older pointers.
        candidates: Sealed rows with something to claim: what came back first, then by id.
        open: Reserved buckets without a row, oldest first; L was read after them, or beside them:
            then one that is dropped just now may be among them. Its seal reads L again (G5).
        half_sealed: Buckets that somebody began to seal, and when (cluster time); L was read as for
            ``open``.
        peeked: Whether some of the open buckets hold messages.
        oldest_later_us: Per open bucket: some later bucket or the monoton row is at least this old,
            so this bucket was reserved before that (cluster time) [R11].
        available: Messages in ``candidates``, without those in the next field.
        available_in_crowds: Messages in ``candidates`` that have so many leases that others are
            looked for first [R6], or in which others are at work.
        available_bytes: The size of the available messages as stored, by the mean of each bucket.
        claimable: Buckets in ``candidates`` that hold some of them.
        is_settled: Whether all that was looked at waits for time alone, or for nothing: what comes
            next is under a new id, or has a hint.
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
        fresh: The buckets that were reserved since the look before, if that left none open.
    """

    scan: Scan
    hints: Hints
    now_us: int
    fresh: range = range(0)

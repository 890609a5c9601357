"""The life of one bucket (design 3): its statuses, what it holds, and the moves between them.

    singles:  (no row) -> sealing -> sealed -> drained -> dropped
    bulk:     (no row) -> writing -> prepared -> sealed | void -> dropped

No row = open; a dropped bucket has no row either: which of the two it is, only the repair pointer
says (G5). All functions are pure; a move that the diagram does not have raises `IllegalMove`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from cassieq_spark.model.ids import EMPTY, BucketNo, Runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

LEASES_PREFERRED = 64
"""Above this many leases a claimer prefers another bucket [R6]."""

LEASES_LIMIT = 2_048
"""Above this many leases a bucket takes no further claim [R6]."""

DELAY_STEP_US = 1_000_000
"""Due times are rounded up to this step, so that groups stay few [R7]."""

DELAYED_GROUPS_LIMIT = 4_096
"""Above this many due-time groups the step is doubled until they fit: a seal is never refused
for its size [R7]."""


class Status(StrEnum):
    """What a bucket row says of itself."""

    SEALING = "sealing"
    SEALED = "sealed"
    WRITING = "writing"
    PREPARED = "prepared"
    VOID = "void"
    DRAINED = "drained"


MEANS_NOTHING_ALONE = frozenset({Status.SEALING, Status.WRITING})
"""Like no row at all, these mean nothing until the repair pointer was read after them (G5) [P2]."""

FINISHED = frozenset({Status.VOID, Status.DRAINED})
"""Nothing of such a bucket is ever delivered again."""


class IllegalMove(ValueError):
    """A move that design 3 does not have: a caller's mistake, never an expected state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRef:
    """Which transaction a bulk bucket belongs to.

    Attributes:
        epoch: The sink row's epoch as the writing task read it.
        block_end: First bucket behind the reserved block: readers jump the whole block [P22].
    """

    sink_id: str
    epoch: int
    block_end: BucketNo


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One delivery: an exclusive, time-bounded right to messages (I2).

    Attributes:
        lease_id: Fresh for every delivery.
        owner: Who holds it, for people.
        run: The Spark run that holds it; None outside Spark [P25].
        delivery_count: Of every message in it: 1 at the first delivery.
        runs: What is not acked yet.
        until_us: Cluster time when it runs out.
    """

    lease_id: UUID
    owner: str
    run: UUID | None
    delivery_count: int
    runs: Runs
    until_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """Messages that were delivered ``deliveries`` times and are held by nobody now."""

    deliveries: int
    runs: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed:
    """Messages that nobody gets before ``due_us``."""

    due_us: int
    runs: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadSet:
    """Out of deliveries by one CAS. Never extended or merged: a mover may have it [R14]."""

    set_id: UUID
    runs: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket row, without what the CAS machinery keeps beside it.

    Every unacked message is in exactly one of fresh, returned, delayed, leases, dead; what the
    manifest names and none of them holds is acked (I4).

    Attributes:
        status: See the module's diagram.
        changed_us: Cluster time of the CAS that wrote this row.
        manifest: The offsets that exist, for ever (I5).
        size_bytes: Stored bytes of the messages, 0 where nobody counted.
        sink: Set on bulk buckets only.
        fresh: Never delivered.
    """

    status: Status
    changed_us: int
    manifest: Runs = EMPTY
    size_bytes: int = 0
    sink: SinkRef | None = None
    fresh: Runs = EMPTY
    returned: tuple[Returned, ...] = ()
    delayed: tuple[Delayed, ...] = ()
    leases: tuple[Lease, ...] = ()
    dead: tuple[DeadSet, ...] = field(default=())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to deliver, to wait for or to move."""
        return not (self.fresh or self.returned or self.delayed or self.leases or self.dead)

    @property
    def is_behind_reader(self) -> bool:
        """Whether the reader pointer may pass: nothing here is left that only a look-ahead finds.

        What is leased, returned or delayed has an expiry hint instead (design 6).
        """
        return self.status in FINISHED or (self.status is Status.SEALED and not self.fresh)

    def lease(self, lease_id: UUID) -> Lease | None:
        """The lease of that id, None if it ended."""
        return next((lease for lease in self.leases if lease.lease_id == lease_id), None)

    def earliest_return_us(self) -> int | None:
        """When the next message comes back by time; 0 if one is there now; None if none ever."""
        if self.returned:
            return 0
        times = [lease.until_us for lease in self.leases] + [group.due_us for group in self.delayed]
        return min(times, default=None)


def sealing(*, now_us: int) -> Bucket:
    """The row that closes an open bucket: from here on no put into it is acknowledged."""
    return Bucket(status=Status.SEALING, changed_us=now_us)


def sealed(
    row: Bucket, *, manifest: Runs, due_us: Mapping[int, int], size_bytes: int, now_us: int
) -> Bucket:
    """Fix what a closed bucket holds.

    Args:
        due_us: Offset to due time, for the delayed messages only.
    """
    _require(row, Status.SEALING)
    groups = group_delays(due_us, now_us=now_us)
    return drained_if_empty(
        replace(
            row,
            status=Status.SEALED,
            changed_us=now_us,
            manifest=manifest,
            size_bytes=size_bytes,
            fresh=manifest - _all_of(groups),
            delayed=groups,
        )
    )


def writing(sink: SinkRef, *, now_us: int) -> Bucket:
    """The row a bulk writer inserts before its first chunk."""
    return Bucket(status=Status.WRITING, changed_us=now_us, sink=sink)


def prepared(
    row: Bucket, *, manifest: Runs, due_us: Mapping[int, int], size_bytes: int, now_us: int
) -> Bucket:
    """What the bulk writer wrote, all of it stored; invisible until its sink row lists it (I7)."""
    _require(row, Status.WRITING)
    groups = group_delays(due_us, now_us=now_us)
    return replace(
        row,
        status=Status.PREPARED,
        changed_us=now_us,
        manifest=manifest,
        size_bytes=size_bytes,
        fresh=manifest - _all_of(groups),
        delayed=groups,
    )


def published(row: Bucket, *, now_us: int) -> Bucket:
    """Roll a listed bucket forward: its messages become visible."""
    _require(row, Status.PREPARED)
    return drained_if_empty(replace(row, status=Status.SEALED, changed_us=now_us))


def voided(row: Bucket, *, now_us: int) -> Bucket:
    """End a bulk bucket that its transaction did not list."""
    _require(row, Status.WRITING, Status.PREPARED)
    return Bucket(status=Status.VOID, changed_us=now_us, sink=row.sink)


def unused(sink: SinkRef, *, now_us: int) -> Bucket:
    """The row by which a bulk writer gives back a reserved bucket it did not need.

    Its ids were its own, so nothing can be in it; without the row a reader would wait for the gap
    timeout before its pointer may pass (I10).
    """
    return Bucket(status=Status.VOID, changed_us=now_us, sink=sink)


def drained_if_empty(row: Bucket) -> Bucket:
    """The CAS that leaves nothing is the one that drains (design 3). The manifest stays (I5)."""
    return replace(row, status=Status.DRAINED) if row.is_empty else row


def group_delays(due_us: Mapping[int, int], *, now_us: int) -> tuple[Delayed, ...]:
    """Group offsets by due time, rounded up to a step; what is due already is in no group.

    The step is widened until the groups fit a row, so no number of distinct delays can stop a
    seal [R7].
    """
    waiting = {offset: due for offset, due in due_us.items() if due > now_us}
    step = DELAY_STEP_US
    while True:
        groups: dict[int, list[int]] = {}
        for offset, due in waiting.items():
            groups.setdefault(-(-due // step) * step, []).append(offset)
        if len(groups) <= DELAYED_GROUPS_LIMIT:
            return tuple(
                Delayed(due_us=due, runs=Runs.from_offsets(offsets))
                for due, offsets in sorted(groups.items())
            )
        step *= 2


def merge_returned(parts: Iterable[Returned]) -> tuple[Returned, ...]:
    """One entry per delivery count, fewest deliveries first [R6]."""
    by_count: dict[int, Runs] = {}
    for part in parts:
        by_count[part.deliveries] = by_count.get(part.deliveries, EMPTY) | part.runs
    return tuple(
        Returned(deliveries=count, runs=runs) for count, runs in sorted(by_count.items()) if runs
    )


def _all_of(groups: Iterable[Delayed]) -> Runs:
    together = EMPTY
    for group in groups:
        together |= group.runs
    return together


def _require(row: Bucket, *allowed: Status) -> None:
    if row.status not in allowed:
        raise IllegalMove(f"a bucket that is {row.status.value} is not {' or '.join(allowed)}")
